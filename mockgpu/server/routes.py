"""Routes of a backend other than inference, updates and control.

===================================================  ===============================================
``/health``, ``/ready``, ``/ping``                   readiness with and without a body, and liveness
``/v2/health/ready``, ``/v2/health/live``            the same under KServe's names
``/metrics``                                         see ``mockgpu.api.metrics``
``/v1/models``, ``/v1/models/{model}``               models and adapters in OpenAI's form
``/v2``, ``/v2/models/...``, ``/v2/repository/...``  see ``mockgpu.server.model_repository``
``/version``, ``/tokenize``, ``/sleep``, ...         see ``mockgpu.server.vllm_routes``
``/server_info``, ``/loads``, ...                    see ``mockgpu.server.sglang_routes``
===================================================  ===============================================

An unknown path is answered 404, and a wrong method 405 with the header ``Allow``, in JSON. No answer contains the path
of a model: a router that finds one may try to fetch a tokenizer from there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mockgpu.api import kserve, metrics, wire
from mockgpu.api.calls import ApiCall, ApiReply, json_reply, text_of
from mockgpu.server import model_repository, sglang_routes, vllm_routes
from mockgpu.server.run_state import Handler, Routes, RunState

__all__ = ["ApiCall", "ApiReply", "answer", "text_of"]


async def health(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /health``: readiness, with the load in the body."""
    state = run.reported_state()
    return ApiReply(wire.health(state), 200 if state.ready else 503)


async def ready(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /ready``, ``/v2/health/ready``: readiness without a body."""
    return ApiReply(status=200 if run.reported_state().ready else 503)


async def alive(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /ping``, ``/v2/health/live``: liveness; only the fault ``not-alive`` makes it fail."""
    return ApiReply()


async def metrics_page(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /metrics``."""
    page = metrics.page(run.reported_load(progress=True), run.counters, run.setup, run.adapters_in_use(), time.time())
    return ApiReply(page, content_type="text/plain")


def _card(run: RunState, name: str, base: str | None = None) -> dict[str, Any]:
    spec = next((model for model in run.setup.models if model.name == (base or name)), run.setup.default_model)
    return {
        "id": name,
        "object": "model",
        "created": run.created,
        "owned_by": "mockgpu",
        "root": base or name,
        "parent": base,
        "max_model_len": spec.max_model_tokens,
    }


async def models(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /v1/models``: all models, then all adapters."""
    cards = [_card(run, name) for name in run.names()]
    cards += [_card(run, name, base) for name, base in run.adapters().items()]
    return json_reply({"object": "list", "data": cards})


async def model(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /v1/models/{model}``."""
    name = call.path.removeprefix("/v1/models/")
    if not name or not run.knows(name):
        raise wire.BadRequestError(f"the model `{name}` does not exist", "model", status=404, code="model_not_found")
    return json_reply(_card(run, name, run.adapters().get(name)))


ROUTES: Routes = MappingProxyType(
    {
        "/health": {"GET": health},
        "/ready": {"GET": ready},
        "/ping": {"GET": alive, "POST": alive},
        "/metrics": {"GET": metrics_page},
        "/v1/models": {"GET": models},
        "/v2/health/live": {"GET": alive},
        "/v2/health/ready": {"GET": ready},
        **model_repository.ROUTES,
        **vllm_routes.ROUTES,
        **sglang_routes.ROUTES,
    }
)

ELSEWHERE = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/updates")
"""Paths whose POST requests ``mockgpu.server.server`` handles itself; other methods are answered 405 here."""


async def answer(run: RunState, call: ApiCall) -> ApiReply:
    """Answer a call that is no inference, update or control request."""
    methods = _find(call.path)
    if methods is None and call.path in ELSEWHERE:
        return _not_allowed(call, ["POST"])
    if methods is None:
        return _problem(call.path, 404, f"no such path: {call.method} {call.path}", "not_found")
    # HEAD is answered like GET; the caller drops the body.
    handler = methods.get("GET" if call.method == "HEAD" else call.method)
    if handler is None:
        return _not_allowed(call, list(methods))
    try:
        return await handler(run, call)
    except wire.BadRequestError as bad:
        return problem(call.path, bad)


def problem(path: str, bad: wire.BadRequestError) -> ApiReply:
    """The error reply to a bad call, in the form of its path's protocol."""
    return _problem(path, bad.status, str(bad), bad.code, bad.param)


def _find(path: str) -> Mapping[str, Handler] | None:
    """Handlers by method: exact paths first, then paths with a model name."""
    found = ROUTES.get(path)
    if found is None and len(path) > 1 and path.endswith("/"):
        found = ROUTES.get(path[:-1])
    if found is not None:
        return found
    if path.startswith("/v1/models/"):
        return {"GET": model}
    if path.startswith("/v2/models/") and path != "/v2/models/":
        if path.endswith("/infer") and path != "/v2/models/infer":
            return {"POST": model_repository.model}  # never called: the server handles each POST as inference
        return {"GET": model_repository.model}
    if path.startswith("/v2/repository/models/"):
        if path.endswith("/load"):
            return {"POST": model_repository.load}
        if path.endswith("/unload"):
            return {"POST": model_repository.unload}
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
