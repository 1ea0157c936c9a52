"""What is asked of a backend beside inference: readiness, models, metrics, and what routers and operators look for.

=============================================  ===========================================================
``/health``, ``/ready``, ``/ping``             readiness, with and without a body; a sign of life
``/v2/health/ready``, ``/v2/health/live``      the same by KServe's names
``/metrics``                                   see ``mockgpu.api.metrics``
``/v1/models``, ``/v1/models/{model}``         models and adapters by OpenAI's names
``/v2``, ``/v2/models/...``, ``/v2/repository/...``  see ``mockgpu.server.model_repository``
``/version``, ``/server_info``, ...            see ``mockgpu.server.engine_routes``
=============================================  ===========================================================

A path that is not there is answered 404, another method than its own 405 with the header ``Allow``, in JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from mockgpu.api import kserve, wire
from mockgpu.api.calls import ApiCall, ApiReply, text_of
from mockgpu.server import engine_routes as extras
from mockgpu.server import model_repository as repository
from mockgpu.server.run_state import RunState

__all__ = ["ApiCall", "ApiReply", "answer", "text_of"]

Handler: TypeAlias = Callable[[RunState, ApiCall], Awaitable[ApiReply]]

_EXACT: Mapping[str, Mapping[str, Handler]] = MappingProxyType(
    {
        "/health": {"GET": extras.health},
        "/ready": {"GET": extras.ready},
        "/ping": {"GET": extras.alive, "POST": extras.alive},
        "/metrics": {"GET": extras.metrics_page},
        "/v1/models": {"GET": extras.models},
        "/version": {"GET": extras.version},
        "/server_info": {"GET": extras.server_info},
        "/get_server_info": {"GET": extras.server_info},
        "/model_info": {"GET": extras.model_info},
        "/get_model_info": {"GET": extras.model_info},
        "/loads": {"GET": extras.loads},
        "/v1/loads": {"GET": extras.loads},
        "/get_load": {"GET": extras.load},
        "/tokenize": {"POST": extras.tokenize},
        "/detokenize": {"POST": extras.detokenize},
        "/v1/load_lora_adapter": {"POST": extras.load_adapter},
        "/v1/unload_lora_adapter": {"POST": extras.unload_adapter},
        "/sleep": {"POST": extras.sleep},
        "/wake_up": {"POST": extras.wake},
        "/is_sleeping": {"GET": extras.is_sleeping},
        "/reset_prefix_cache": {"POST": extras.reset_prefix_cache},
        "/v2": {"GET": repository.server},
        "/v2/health/live": {"GET": extras.alive},
        "/v2/health/ready": {"GET": extras.ready},
        "/v2/repository/index": {"POST": repository.index},
    }
)

ELSEWHERE = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/updates")
"""Paths of which ``mockgpu.server.server`` takes every POST, so that none comes here."""


async def answer(core: RunState, call: ApiCall) -> ApiReply:
    """Answer anything that is no inference, update or control."""
    methods = _find(call.path)
    if methods is None and call.path in ELSEWHERE:
        return _not_allowed(call, ["POST"])
    if methods is None:
        return _problem(call.path, 404, f"no such path: {call.method} {call.path}", "not_found")
    # HEAD is a GET without the body, which the caller leaves out.
    handler = methods.get("GET" if call.method == "HEAD" else call.method)
    if handler is None:
        return _not_allowed(call, list(methods))
    try:
        return await handler(core, call)
    except wire.BadRequestError as bad:
        return problem(call.path, bad)


def problem(path: str, bad: wire.BadRequestError) -> ApiReply:
    """What is wrong with a call, in the form that its path has."""
    return _problem(path, bad.status, str(bad), bad.code, bad.param)


def _find(path: str) -> Mapping[str, Handler] | None:
    """Handlers by method; exact paths first, then those that name a model."""
    found = _EXACT.get(path)
    if found is None and len(path) > 1 and path.endswith("/"):
        found = _EXACT.get(path[:-1])
    if found is not None:
        return found
    if path.startswith("/v1/models/"):
        return {"GET": extras.model}
    if path.startswith("/v2/models/") and path != "/v2/models/":
        if path.endswith("/infer") and path != "/v2/models/infer":
            return {"POST": repository.model}  # never called: each POST is an inference
        return {"GET": repository.model}
    if path.startswith("/v2/repository/models/"):
        if path.endswith("/load"):
            return {"POST": repository.load}
        if path.endswith("/unload"):
            return {"POST": repository.unload}
    return None


def _not_allowed(call: ApiCall, methods: list[str]) -> ApiReply:
    reply = _problem(
        call.path, 405, f"{call.method} {call.path}: expected {' or '.join(methods)}", "method_not_allowed"
    )
    allowed = [*methods, "HEAD"] if "GET" in methods else methods
    return replace(reply, headers={"Allow": ", ".join(allowed)})


def _problem(path: str, status: int, message: str, code: str, param: str | None = None) -> ApiReply:
    message = wire.clean(message)
    if path.startswith("/v2"):
        return ApiReply(kserve.error(message), status)
    kind = "invalid_request_error" if status in (400, 415) else code
    return ApiReply(wire.error(message, kind, code, param), status)
