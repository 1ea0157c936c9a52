"""Routes of KServe and Triton for models and the model repository."""

from __future__ import annotations

from types import MappingProxyType

from mockgpu.api import kserve, wire
from mockgpu.api.calls import ApiCall, ApiReply
from mockgpu.server.run_state import Routes, RunState


def _states(run: RunState) -> dict[str, str]:
    """State of every model by name: those of the setup, and others that are loaded or loading."""
    return dict(run.engine.model_states())


async def server(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /v2``."""
    return ApiReply(kserve.server_metadata(run.name, "mockgpu"))


async def index(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /v2/repository/index``; with ``{"ready": true}`` ready models only."""
    ready = wire.read_json(call.body).get("ready", False)
    if not isinstance(ready, bool):
        raise wire.BadRequestError(f"ready is {wire.shown(ready)}, expected true or false")
    return ApiReply(kserve.index(_states(run), ready))


async def model(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /v2/models/{model}[/versions/{version}][/ready|/config|/stats]``; 404 without a name."""
    parsed = kserve.parse_model_path(call.path.removeprefix("/v2/models/"))
    name = parsed.model
    if not name or not run.knows(name) or parsed.version not in ("", kserve.VERSION):
        which = f"'{name}'" + (f" version {parsed.version}" if parsed.version else "")
        raise wire.BadRequestError(f"Request for unknown model: {which} is not found", status=404)
    match parsed.action:
        case "ready":
            return ApiReply(status=200 if _states(run).get(name) == "ready" else 400)
        case "config":
            return ApiReply(kserve.model_config(name, run.setup.gpu.max_running))
        case "stats":
            return ApiReply(kserve.model_stats(name, run.counters.sums(name)))
    return ApiReply(kserve.model_metadata(name))


async def load(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /v2/repository/models/{model}/load``: answers when the model is loaded or cannot be."""
    wire.read_json(call.body)
    name = _model_name(run, call, "/load")
    run.engine.load(name)
    await run.engine.until(lambda: _states(run).get(name) != "loading")
    if _states(run).get(name) != "ready":
        raise wire.BadRequestError(kserve.no_room(name))
    return ApiReply()


async def unload(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /v2/repository/models/{model}/unload``: answers immediately; the model leaves when its jobs have ended."""
    wire.read_json(call.body)
    run.engine.unload(_model_name(run, call, "/unload"))
    return ApiReply()


def _model_name(run: RunState, call: ApiCall, action: str) -> str:
    name = call.path.removeprefix("/v2/repository/models/").removesuffix(action)
    if not name or not run.knows(name):
        problem = f"failed to {action[1:]} '{name}', failed to poll from model repository"
        raise wire.BadRequestError(problem, status=404 if name else 400)
    return name


ROUTES: Routes = MappingProxyType(
    {
        "/v2": {"GET": server},
        "/v2/repository/index": {"POST": index},
    }
)
