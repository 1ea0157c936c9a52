"""HTTP server of one mock backend: inference, updates, health checks, control requests and the attempt log.

- Inference: ``POST /v1/completions``, ``/v1/chat/completions``, ``/v1/responses``, ``/v1/embeddings``,
  ``/v2/models/{model}[/versions/{version}]/infer``, and ``GET /v1/models/{model}/answer``. The answer is whole or a
  stream of server-sent events, one per token; the head of a stream is sent with its first token.
- ``POST /v1/updates`` changes state; with ``x-update: weights`` it is an update of its model's weights.
- Health checks: all routes of ``mockgpu.server.routes``, and every unknown path.
- Control, never logged: ``/mock/ping`` (``?bytes=N``: an answer of N bytes), ``/mock/reset``, ``/mock/log``;
  ``/mock/evict`` evicts idle models, ``/mock/pin`` with ``{"model": ..., "pinned": true}`` protects a model from
  eviction. POST to ``/mock/faults`` sets and clears faults, ``{"set": [{"kind": "status", "status": 500, "first":
  3}], "clear": ["slow"]}``, and answers when they are in force. Like GET, it answers with the active faults and their
  hit counts. See ``mockgpu.faults.decisions``.

One handler serves all paths without a router: a web framework's routing and middlewares would cost about as much as
the mock itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Literal

from aiohttp import web
from aiohttp.web_request import BaseRequest

from mockgpu.api import wire
from mockgpu.api.completions import AnswerByGet, ChatCompletions, Completions
from mockgpu.api.embeddings import Embeddings
from mockgpu.api.kserve import Infer
from mockgpu.api.responses import Responses
from mockgpu.api.tags import Tags, nonce_of
from mockgpu.api.updates import Updates
from mockgpu.api.wire import Api, Problem
from mockgpu.faults.decisions import AnswerStatus, Change, Hold, Serve
from mockgpu.faults.in_band import in_band_faults
from mockgpu.faults.kinds import KINDS
from mockgpu.faults.selection import FaultError
from mockgpu.gpu.events import Evicted, Loaded, Loading
from mockgpu.gpu.setup import Setup
from mockgpu.server import routes
from mockgpu.server.attempt_log import AttemptLog, LogRow, RowKind, RowOutcome
from mockgpu.server.clock import Clock
from mockgpu.server.corruption import CorruptedRequestHandler, apply_report_faults, freeze_metrics
from mockgpu.server.engine import JobHandle
from mockgpu.server.listening import (
    PortError,
    control_refusal,
    http_server,
    json_response,
    listen,
    read_nonce,
    require_identity_encoding,
)
from mockgpu.server.request_handler import RequestHandler, read_body, send
from mockgpu.server.run_state import DEFAULT_OPTIONS, Options, RunState

_RESIDENCY_KINDS = {
    Loading: RowKind.RESIDENCY_LOADING,
    Loaded: RowKind.RESIDENCY_LOADED,
    Evicted: RowKind.RESIDENCY_EVICTED,
}
MAX_PING_BYTES = 16_000_000
_UPDATES, _BY_GET, _INFER = Updates(), AnswerByGet(), Infer()
_POSTS: dict[str, Api] = {
    "/v1/completions": Completions(),
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/embeddings": Embeddings(),
}


class MockBackend:
    """One mock backend. Create it inside a running event loop; it owns neither the clock nor the log."""

    def __init__(
        self,
        name: str,
        setup: Setup,
        clock: Clock,
        log: AttemptLog,
        *,
        nonce: int = 0,
        token: str = "",
        options: Options = DEFAULT_OPTIONS,
    ) -> None:
        self.name = name
        self._setup = setup
        self._options = options
        self._clock = clock
        self._log = log
        self._nonce = nonce
        self._token = token
        self._created = int(time.time())
        self._arrived = 0
        self._held: dict[int, asyncio.Future[None]] = {}  # of requests that hang or may stall, by arrival number
        self._frozen_page = b""
        self._runner = http_server(self.handle)
        self._run = self._new_run()

    def _new_run(self) -> RunState:
        return RunState(self.name, self._setup, self._options, self._clock, self._created, self._log_residency)

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port; raises PortError."""
        await self._runner.setup()
        try:
            return await listen(self._runner, host, port)
        except PortError:
            await self._runner.cleanup()
            raise

    async def close(self) -> None:
        """Stop listening and cancel requests in flight."""
        await self._runner.cleanup()

    def reset(self, nonce: int) -> None:
        """Begin run ``nonce``: no resident model, no queue, no faults, counters at zero, an empty log.

        Requests in flight are served to the end beside the new run, except that hanging and stalled ones are reset;
        their rows are dropped.
        """
        self.change_faults(Change(clear=frozenset(KINDS)))
        self._run.engine.retire()
        self._run = self._new_run()
        self._log.clear()
        self._nonce = nonce

    def change_faults(self, change: Change) -> list[dict[str, object]]:
        """Clear and set faults, effective immediately; returns ``RequestFaults.report``."""
        faults = self._run.faults
        for number in faults.change(time.monotonic(), change):
            future = self._held.get(number)
            if future is not None and not future.done():
                future.set_result(None)
        if change.evicts:
            self._run.engine.evict()
        if change.kills:
            self._run.engine.die()
        if change.freezes:
            self._frozen_page = freeze_metrics(self._run)
        return faults.report()

    def handle(self, request: BaseRequest) -> Awaitable[web.StreamResponse]:
        """Handle any request."""
        path, method = request.path, request.method
        if method == "POST":
            api = _POSTS.get(path)
            if api is not None:
                return self._serve(request, RowKind.INFERENCE, api)
            if path == "/v1/updates":
                return self._serve(request, RowKind.UPDATE, _UPDATES)
            if path.startswith("/v2/models/") and path.endswith("/infer"):
                return self._serve(request, RowKind.INFERENCE, _INFER, path.removeprefix("/v2/models/"))
        elif method == "GET" and path.startswith("/v1/models/") and path.endswith("/answer"):
            model = path.removeprefix("/v1/models/").removesuffix("/answer")
            return self._serve(request, RowKind.INFERENCE, _BY_GET, model)
        if path.startswith("/mock/"):
            return self._control(request)
        return self._health_check(request)

    # -- inference and updates -------------------------------------------------------------------------------

    async def _serve(self, request: BaseRequest, kind: RowKind, api: Api, model: str = "") -> web.StreamResponse:
        run = self._run  # a request stays with the run in which it arrived
        headers = request.headers
        row = LogRow(kind, time.monotonic(), request.method)
        tags = Tags(headers)
        self._record_tags(row, kind, tags)
        ticket = self._log.add(row)
        handler = RequestHandler(run, api, request, row)
        try:
            body = await read_body(request, row)
            data = api.decode(headers, body)
            tags.read_body(*api.carriers(data))
            self._record_tags(row, kind, tags)
            handler.tag = tags.echo
            row.retry = _retry_count(headers.get("x-stainless-retry-count"))
            parsed = api.parse(headers, model, data)
            base = run.resolve_model(parsed)
            row.model, row.prompt_tokens = parsed.model, parsed.prompt_tokens
            own = in_band_faults(headers, data)
            self._arrived = number = self._arrived + 1
            tokens = parsed.prompt_tokens + parsed.output_tokens * parsed.choices
            decision = run.faults.arrive(row.arrival_s, number, tokens, own)
            if isinstance(decision, AnswerStatus):
                if decision.kills:
                    run.engine.die()
                return await handler.fail(decision)
            if isinstance(decision, Hold):
                self._log.update(ticket, row)
                return await self._hold(run, number, handler)
            if decision.corruptions:
                handler = self._corrupted_handler(run, api, request, row, number, decision)
                handler.tag = tags.echo
            handler.job_handle = handle = self._submit(run, kind, parsed, base, decision)
            handler.cut_after_tokens = decision.cut_after_tokens
            row.submitted_s = handle.submitted_s
            row.service_asked_s = handle.service_asked_s
            # If the process is killed from here on, the row has the tag even if only the body carried it.
            self._log.update(ticket, row)
            if kind is RowKind.UPDATE:
                return await handler.update(parsed)
            return await (handler.stream(parsed) if parsed.stream else handler.whole(parsed))
        except wire.BadRequestError as bad:
            handler.tag = tags.echo
            return await handler.refuse(bad.status, Problem(str(bad), "invalid_request_error", bad.code, bad.param))
        except asyncio.CancelledError:
            row.outcome = RowOutcome.CLIENT_GONE
            raise
        finally:
            if isinstance(handler, CorruptedRequestHandler):
                del self._held[handler.number]
                run.faults.leave(handler.number)
            self._finish(run, handler, row)
            self._log.update(ticket, row)

    def _corrupted_handler(
        self, run: RunState, api: Api, request: BaseRequest, row: LogRow, number: int, decision: Serve
    ) -> CorruptedRequestHandler:
        handler = CorruptedRequestHandler(run, api, request, row, number, decision.corruptions)
        self._held[number] = handler.released
        return handler

    @staticmethod
    def _finish(run: RunState, handler: RequestHandler, row: LogRow) -> None:
        row.end_s = time.monotonic()
        handle = handler.job_handle
        if handle is not None:
            run.engine.leave(handle)
            if handle.job.adapter:
                run.adapter_request_ended(handle)
            if handle.job.kind == "inference" and (row.outcome is not RowOutcome.ANSWERED or row.status != 200):
                aborted = row.outcome is RowOutcome.CLIENT_GONE
                run.counters.record_failure(handle.job.model, row.end_s - row.arrival_s, aborted=aborted)

    @staticmethod
    def _submit(run: RunState, kind: RowKind, parsed: wire.ParsedRequest, base: str, decision: Serve) -> JobHandle:
        if kind is RowKind.UPDATE:
            update: Literal["weights", "embedding"] = "weights" if parsed.details == "weights" else "embedding"
            return run.engine.submit("update", base, 0, 0, decision.slowness, update=update)
        adapter = "" if base == parsed.model else parsed.model
        handle = run.engine.submit(
            "inference",
            base,
            parsed.prompt_tokens,
            parsed.output_tokens,
            decision.slowness,
            prompt_blocks=run.blocks(parsed, base),
            adapter=adapter,
            sequences=parsed.choices,
        )
        if adapter:
            run.adapter_request_started(handle)
        return handle

    async def _hold(self, run: RunState, number: int, handler: RequestHandler) -> web.StreamResponse:
        """Hold a request without an answer until its fault is cleared or its client leaves."""
        self._held[number] = released = asyncio.get_running_loop().create_future()
        try:
            await released
            return handler.reset_connection()
        finally:
            del self._held[number]
            run.faults.leave(number)

    def _record_tags(self, row: LogRow, kind: RowKind, tags: Tags) -> None:
        row.tag = tags.tag
        row.carriers = tags.carriers
        row.kind = RowKind.FOREIGN if self._nonce and nonce_of(row.tag) != self._nonce else kind

    # -- health checks -------------------------------------------------------------------------------------------

    async def _health_check(self, request: BaseRequest) -> web.StreamResponse:
        row = LogRow(RowKind.HEALTH_CHECK, time.monotonic(), request.method)
        ticket = self._log.add(row)
        try:
            run = self._run
            try:
                call = routes.ApiCall(request.method, request.path, request.query, await read_body(request, row))
            except wire.BadRequestError as bad:
                reply = routes.problem(request.path, bad)
            else:
                reply = await routes.answer(run, call)
                if run.faults.active:
                    reply = apply_report_faults(run, call, reply, self._frozen_page)
            row.status = reply.status
            row.bytes_out = 0 if request.method == "HEAD" else len(reply.body)
            response = web.Response(
                status=reply.status, body=reply.body, content_type=reply.content_type, headers=reply.headers
            )
            await send(request, response, row)
            return response
        except asyncio.CancelledError:
            row.outcome = RowOutcome.CLIENT_GONE
            raise
        finally:
            row.end_s = time.monotonic()
            self._log.update(ticket, row)

    # -- control ---------------------------------------------------------------------------------------------

    async def _control(self, request: BaseRequest) -> web.Response:
        if reason := control_refusal(request, self._token):
            return json_response(403, wire.error(reason, "forbidden", "forbidden"))
        try:
            require_identity_encoding(request.headers)
            match request.method, request.path:
                case "GET", "/mock/ping":
                    return json_response(200, b"{}".ljust(_ping_bytes(request.query.get("bytes", "0"))))
                case "GET", "/mock/log":
                    return web.Response(body=self._log.dump(), content_type="application/octet-stream")
                case "POST", "/mock/reset":
                    self.reset(read_nonce(await request.content.read()))
                    return json_response(200, b"{}")
                case "POST", "/mock/evict":
                    self._run.engine.evict()
                    return json_response(200, b"{}")
                case "POST", "/mock/pin":
                    pin = wire.read_json(await request.content.read())
                    self._run.engine.pin(routes.text_of(pin, "model"), pin.get("pinned", True) is True)
                    return json_response(200, b"{}")
                case "GET", "/mock/faults":
                    return json_response(200, wire.faults(self._run.faults.report()))
                case "POST", "/mock/faults":
                    change = Change.from_json(wire.read_json(await request.content.read()))
                    return json_response(200, wire.faults(self.change_faults(change)))
        except (wire.BadRequestError, FaultError) as bad:
            param = bad.param if isinstance(bad, wire.BadRequestError) else None
            status = bad.status if isinstance(bad, wire.BadRequestError) else 400
            return json_response(status, wire.error(str(bad), "invalid_request_error", "bad_request", param))
        return json_response(
            404, wire.error(f"no such path: {request.method} {request.path}", "not_found", "not_found")
        )

    def _log_residency(self, event: Loading | Loaded | Evicted) -> None:
        self._log.add(
            LogRow(
                kind=_RESIDENCY_KINDS[type(event)],
                arrival_s=event.at_s,
                end_s=event.at_s,
                model=event.model,
                outcome=RowOutcome.ANSWERED,
            )
        )


def _retry_count(text: str | None) -> int:
    """The retry number, as OpenAI's client sends it."""
    return min(int(text), 255) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


def _ping_bytes(text: str) -> int:
    """The requested length of the answer to a ping; raises BadRequestError."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MAX_PING_BYTES):
        raise wire.BadRequestError(f"bytes is {wire.shown(text)}, expected from 0 to {MAX_PING_BYTES}", "bytes")
    return int(text)
