"""KServe's and Triton's calls on models and on the model repository."""

from __future__ import annotations

from mockgpu.api import kserve, wire
from mockgpu.api.calls import ApiCall, ApiReply
from mockgpu.server.run_state import RunState


def _states(core: RunState) -> dict[str, str]:
    """State by name of all models there are: those of the setup, and whatever else is in memory or on its way."""
    return dict(core.engine.model_states())


async def server(core: RunState, call: ApiCall) -> ApiReply:
    """``GET /v2``."""
    return ApiReply(kserve.server_metadata(core.name, "mockgpu"))


async def index(core: RunState, call: ApiCall) -> ApiReply:
    """``POST /v2/repository/index``; with ``{"ready": true}`` only what is ready."""
    ready = wire.read_json(call.body).get("ready", False)
    if not isinstance(ready, bool):
        raise wire.BadRequestError(f"ready is {wire.shown(ready)}, expected true or false")
    return ApiReply(kserve.index(_states(core), ready))


async def model(core: RunState, call: ApiCall) -> ApiReply:
    """``GET /v2/models/{model}[/versions/{version}][/ready|/config|/stats]``; 404 for one without a name."""
    place = kserve.place_of(call.path.removeprefix("/v2/models/"))
    name = place.model
    if not name or not core.knows(name) or place.version not in ("", kserve.VERSION):
        which = f"'{name}'" + (f" version {place.version}" if place.version else "")
        raise wire.BadRequestError(f"Request for unknown model: {which} is not found", status=404)
    match place.action:
        case "ready":
            return ApiReply(status=200 if _states(core).get(name) == "ready" else 400)
        case "config":
            return ApiReply(kserve.model_config(name, core.setup.gpu.max_running))
        case "stats":
            return ApiReply(kserve.model_stats(name, core.tally.sums(name)))
    return ApiReply(kserve.model_metadata(name))


async def load(core: RunState, call: ApiCall) -> ApiReply:
    """``POST /v2/repository/models/{model}/load``: answers when the model is there, or can't be."""
    wire.read_json(call.body)
    name = _named(core, call, "/load")
    core.engine.load(name)
    await core.engine.until(lambda: _states(core).get(name) != "loading")
    if _states(core).get(name) != "ready":
        raise wire.BadRequestError(kserve.no_room(name))
    return ApiReply()


async def unload(core: RunState, call: ApiCall) -> ApiReply:
    """``POST /v2/repository/models/{model}/unload``: answers at once; the model goes when its jobs have ended."""
    wire.read_json(call.body)
    core.engine.unload(_named(core, call, "/unload"))
    return ApiReply()


def _named(core: RunState, call: ApiCall, action: str) -> str:
    name = call.path.removeprefix("/v2/repository/models/").removesuffix(action)
    if not name or not core.knows(name):
        problem = f"failed to {action[1:]} '{name}', failed to poll from model repository"
        raise wire.BadRequestError(problem, status=404 if name else 400)
    return name
