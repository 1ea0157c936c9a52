"""HTTP around one GPU model: inference, updates, health checks, control, and the attempt log of it all.

- Inference: ``POST /v1/completions``, ``/v1/chat/completions``, ``/v1/responses``, ``/v1/embeddings``,
  ``/v2/models/{model}[/versions/{version}]/infer``, and ``GET /v1/models/{model}/answer``. Whole, or as server-sent
  events, one per token; the head of a stream is sent with its first token.
- ``POST /v1/updates`` changes state; ``x-update: weights`` says that it brings new weights for its model.
- Health checks: all that ``mockgpu.server.routes`` lists, and every unknown path.
- Control, never logged: ``/mock/ping`` (``?bytes=N``: an answer of so many), ``/mock/reset``, ``/mock/log``;
  ``/mock/evict`` empties the memory of what is idle, ``/mock/pin`` with ``{"model": ..., "pinned": true}`` keeps a
  model there. POST to ``/mock/faults`` sets and clears faults, ``{"set": [{"kind": "status", "status": 500, "first":
  3}], "clear": ["slow"]}``, and answers when they are in force, as GET does: with the active ones and how many requests
  each has hit. See ``mockgpu.faults.decisions``.

There is one handler for all paths and no router: routing and middlewares of a web framework would cost about
as much as the mock itself.
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
from mockgpu.faults.decisions import KINDS, AnswerStatus, Change, FaultError, Hold, Serve
from mockgpu.faults.in_band import brought
from mockgpu.gpu.events import Evicted, Loaded, Loading
from mockgpu.gpu.setup import Setup
from mockgpu.server import routes
from mockgpu.server.attempt_log import AttemptLog, LogRow, RowKind, RowOutcome
from mockgpu.server.clock import Clock
from mockgpu.server.corruption import CorruptedRequestHandler, frozen_page, misreported
from mockgpu.server.engine import JobHandle
from mockgpu.server.listening import PortError, http_server, json_response, listen, must_be_plain, objection, read_nonce
from mockgpu.server.request_handler import RequestHandler, read_body, send
from mockgpu.server.run_state import PLAIN, Options, RunState

_RESIDENCY_KINDS = {
    Loading: RowKind.RESIDENCY_LOADING,
    Loaded: RowKind.RESIDENCY_LOADED,
    Evicted: RowKind.RESIDENCY_EVICTED,
}
MOST_PING_BYTES = 16_000_000
_UPDATES, _BY_GET, _INFER = Updates(), AnswerByGet(), Infer()
_POSTS: dict[str, Api] = {
    "/v1/completions": Completions(),
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/embeddings": Embeddings(),
}


class MockBackend:
    """One mock backend. Make it inside a running event loop; it owns neither the clock nor the log."""

    def __init__(
        self,
        name: str,
        setup: Setup,
        clock: Clock,
        log: AttemptLog,
        *,
        nonce: int = 0,
        token: str = "",
        options: Options = PLAIN,
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
        self._held: dict[int, asyncio.Future[None]] = {}  # those that hang or may stall, by their order of arrival
        self._frozen_page = b""
        self._runner = http_server(self.handle)
        self._core = self._new_core()

    def _new_core(self) -> RunState:
        return RunState(self.name, self._setup, self._options, self._clock, self._created, self._note_residency)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises PortError."""
        await self._runner.setup()
        try:
            return await listen(self._runner, host, port)
        except PortError:
            await self._runner.cleanup()
            raise

    async def close(self) -> None:
        """Stop listening and cancel what is inside."""
        await self._runner.cleanup()

    def reset(self, nonce: int) -> None:
        """Begin run ``nonce``: nothing resident, nobody waiting, no fault, nothing counted, an empty log.

        Requests in flight are served to the end beside the new run, but those that hang or stall are reset; their rows
        are dropped.
        """
        self.change_faults(Change(clear=frozenset(KINDS)))
        self._core.engine.retire()
        self._core = self._new_core()
        self._log.clear()
        self._nonce = nonce

    def change_faults(self, change: Change) -> list[dict[str, object]]:
        """Clear and set faults, in force at once; returns what ``RequestFaults.report`` says then."""
        faults = self._core.faults
        for number in faults.change(time.monotonic(), change):
            future = self._held.get(number)
            if future is not None and not future.done():
                future.set_result(None)
        if change.evicts:
            self._core.engine.evict()
        if change.kills:
            self._core.engine.die()
        if change.freezes:
            self._frozen_page = frozen_page(self._core)
        return faults.report()

    def handle(self, request: BaseRequest) -> Awaitable[web.StreamResponse]:
        """Answer any request."""
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
            named = path.removeprefix("/v1/models/").removesuffix("/answer")
            return self._serve(request, RowKind.INFERENCE, _BY_GET, named)
        if path.startswith("/mock/"):
            return self._control(request)
        return self._health_check(request)

    # -- inference and updates -------------------------------------------------------------------------------

    async def _serve(self, request: BaseRequest, kind: RowKind, api: Api, named: str = "") -> web.StreamResponse:
        core = self._core  # a request stays with the run in which it arrived
        headers = request.headers
        row = LogRow(kind, time.monotonic(), request.method)
        tags = Tags(headers)
        self._note_tags(row, kind, tags)
        ticket = self._log.add(row)
        visit = RequestHandler(core, api, request, row)
        try:
            body = await read_body(request, row)
            data = api.load(headers, body)
            tags.read_body(*api.carriers(data))
            self._note_tags(row, kind, tags)
            visit.tag = tags.echo
            row.retry = _retry_of(headers.get("x-stainless-retry-count"))
            ask = api.ask(headers, named, data)
            base = core.settle(ask)
            row.model, row.prompt_tokens = ask.model, ask.prompt_tokens
            own = brought(headers, data)
            self._arrived = number = self._arrived + 1
            tokens = ask.prompt_tokens + ask.output_tokens * ask.choices
            lot = core.faults.arrive(row.arrival_s, number, tokens, own)
            if isinstance(lot, AnswerStatus):
                if lot.kills:
                    core.engine.die()
                return await visit.fail(lot)
            if isinstance(lot, Hold):
                self._log.update(ticket, row)
                return await self._hold(core, number, visit)
            if lot.spoils:
                visit = self._spoiled(core, api, request, row, number, lot)
                visit.tag = tags.echo
            visit.stay = stay = self._submit(core, kind, ask, base, lot)
            visit.cut_after_tokens = lot.cut_after_tokens
            row.submitted_s = stay.submitted_s
            row.service_asked_s = stay.service_asked_s
            # Should we be killed now, the row says whose request it was even if only the body does.
            self._log.update(ticket, row)
            if kind is RowKind.UPDATE:
                return await visit.update(ask)
            return await (visit.stream(ask) if ask.stream else visit.whole(ask))
        except wire.BadRequestError as bad:
            visit.tag = tags.echo
            return await visit.refuse(bad.status, Problem(str(bad), "invalid_request_error", bad.code, bad.param))
        except asyncio.CancelledError:
            row.outcome = RowOutcome.CLIENT_GONE
            raise
        finally:
            if isinstance(visit, CorruptedRequestHandler):
                del self._held[visit.number]
                core.faults.leave(visit.number)
            self._end(core, visit, row)
            self._log.update(ticket, row)

    def _spoiled(
        self, core: RunState, api: Api, request: BaseRequest, row: LogRow, number: int, lot: Serve
    ) -> CorruptedRequestHandler:
        visit = CorruptedRequestHandler(core, api, request, row, number, lot.spoils)
        self._held[number] = visit.released
        return visit

    @staticmethod
    def _end(core: RunState, visit: RequestHandler, row: LogRow) -> None:
        row.end_s = time.monotonic()
        stay = visit.stay
        if stay is not None:
            core.engine.leave(stay)
            if stay.job.adapter:
                core.left(stay)
            if stay.job.kind == "inference" and (row.outcome is not RowOutcome.ANSWERED or row.status != 200):
                gone = row.outcome is RowOutcome.CLIENT_GONE
                core.tally.failed(stay.job.model, row.end_s - row.arrival_s, aborted=gone)

    @staticmethod
    def _submit(core: RunState, kind: RowKind, ask: wire.ParsedRequest, base: str, lot: Serve) -> JobHandle:
        if kind is RowKind.UPDATE:
            update: Literal["weights", "embedding"] = "weights" if ask.details == "weights" else "embedding"
            return core.engine.submit("update", base, 0, 0, lot.slowness, update=update)
        adapter = "" if base == ask.model else ask.model
        stay = core.engine.submit(
            "inference",
            base,
            ask.prompt_tokens,
            ask.output_tokens,
            lot.slowness,
            prompt_blocks=core.blocks(ask, base),
            adapter=adapter,
            sequences=ask.choices,
        )
        if adapter:
            core.entered(stay)
        return stay

    async def _hold(self, core: RunState, number: int, visit: RequestHandler) -> web.StreamResponse:
        """Keep a request without an answer until the fault is taken back; its client may leave before."""
        self._held[number] = released = asyncio.get_running_loop().create_future()
        try:
            await released
            return visit.break_off()
        finally:
            del self._held[number]
            core.faults.leave(number)

    def _note_tags(self, row: LogRow, kind: RowKind, tags: Tags) -> None:
        row.tag = tags.tag
        row.carriers = tags.carriers
        row.kind = RowKind.FOREIGN if self._nonce and nonce_of(row.tag) != self._nonce else kind

    # -- health checks -------------------------------------------------------------------------------------------

    async def _health_check(self, request: BaseRequest) -> web.StreamResponse:
        row = LogRow(RowKind.HEALTH_CHECK, time.monotonic(), request.method)
        ticket = self._log.add(row)
        try:
            core = self._core
            try:
                call = routes.ApiCall(request.method, request.path, request.query, await read_body(request, row))
            except wire.BadRequestError as bad:
                reply = routes.problem(request.path, bad)
            else:
                reply = await routes.answer(core, call)
                if core.faults.active:
                    reply = misreported(core, call, reply, self._frozen_page)
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
        if refused := objection(request, self._token):
            return json_response(403, wire.error(refused, "forbidden", "forbidden"))
        try:
            must_be_plain(request.headers)
            match request.method, request.path:
                case "GET", "/mock/ping":
                    return json_response(200, b"{}".ljust(_bytes_of(request.query.get("bytes", "0"))))
                case "GET", "/mock/log":
                    return web.Response(body=self._log.dump(), content_type="application/octet-stream")
                case "POST", "/mock/reset":
                    self.reset(read_nonce(await request.content.read()))
                    return json_response(200, b"{}")
                case "POST", "/mock/evict":
                    self._core.engine.evict()
                    return json_response(200, b"{}")
                case "POST", "/mock/pin":
                    pin = wire.read_json(await request.content.read())
                    self._core.engine.pin(routes.text_of(pin, "model"), pin.get("pinned", True) is True)
                    return json_response(200, b"{}")
                case "GET", "/mock/faults":
                    return json_response(200, wire.faults(self._core.faults.report()))
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

    def _note_residency(self, event: Loading | Loaded | Evicted) -> None:
        self._log.add(
            LogRow(
                kind=_RESIDENCY_KINDS[type(event)],
                arrival_s=event.at_s,
                end_s=event.at_s,
                model=event.model,
                outcome=RowOutcome.ANSWERED,
            )
        )


def _retry_of(text: str | None) -> int:
    """Which try it is, as OpenAI's client says."""
    return min(int(text), 255) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


def _bytes_of(text: str) -> int:
    """How long the answer to a ping is to be."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MOST_PING_BYTES):
        raise wire.BadRequestError(f"bytes is {wire.shown(text)}, expected from 0 to {MOST_PING_BYTES}", "bytes")
    return int(text)
