"""HTTP around one GPU model: inference, updates, health, metrics, and the attempt log of it all.

Paths
-----
- ``POST /v1/completions``: as OpenAI has it, whole or as server-sent events, one per token. The head of a
  stream is sent with its first token.
- ``GET /v1/models/{model}/answer``: the same service by GET; ``x-prompt-tokens``, ``x-output-tokens``.
- ``POST /v1/updates``: changes state and needs no model.
- ``/health``, ``/ready``, ``/v2/health/live``, ``/v2/health/ready``, ``/v1/models``, ``/metrics``: check-ups,
  as is every unknown path.
- ``/mock/ping``, ``/mock/reset``, ``/mock/log``, ``/mock/faults``: control, never logged. POST to the last sets and
  clears faults, ``{"set": [{"kind": "status", "status": 500, "first": 3}], "clear": ["slow"]}``, and answers when
  they are in force, as GET does: with the active ones and how many requests each has hit. See ``mockgpu.faults``.

There is one handler for all paths and no router: routing and middlewares of a web framework would cost about
as much as the mock itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Literal

from aiohttp import web
from aiohttp.web_request import BaseRequest

from mockgpu import wire
from mockgpu.catalogue import Setup
from mockgpu.clock import Clock
from mockgpu.engine import Engine, Stay
from mockgpu.faults import KINDS, Answer, Change, FaultError, Hold, RequestFaults, Serve
from mockgpu.listening import PortError, authorised, http_server, json_response, listen, read_nonce
from mockgpu.log import AttemptLog, Kind, Outcome, Row
from mockgpu.model import Evicted, Loaded, Loading, State
from mockgpu.tags import Tags, nonce_of
from mockgpu.visit import Visit, read_body, send

_JSON = "application/json"
_RESIDENCY_KINDS = {
    Loading: Kind.RESIDENCY_LOADING,
    Loaded: Kind.RESIDENCY_LOADED,
    Evicted: Kind.RESIDENCY_EVICTED,
}
# (status, body, content type)
Report = tuple[int, bytes, str]


class Backend:
    """One mock backend. Make it inside a running event loop; it owns neither the clock nor the log."""

    def __init__(
        self, name: str, setup: Setup, clock: Clock, log: AttemptLog, *, nonce: int = 0, token: str = ""
    ) -> None:
        self.name = name
        self._setup = setup
        self._clock = clock
        self._log = log
        self._nonce = nonce
        self._token = token
        self._created = int(time.time())
        self._engine = Engine(setup, clock, self._note_residency)
        self._faults = RequestFaults(name)
        self._arrived = 0
        self._held: dict[int, asyncio.Future[None]] = {}  # requests that hang, by their order of arrival
        self._runner = http_server(self.handle)
        self._check_ups: dict[str, Callable[[], Report]] = {
            "/health": lambda: self._health(with_body=True),
            "/ready": lambda: self._health(with_body=False),
            "/v2/health/ready": lambda: self._health(with_body=False),
            "/v2/health/live": lambda: (200, b"", _JSON),
            "/v1/models": self._models,
            "/metrics": self._metrics,
        }

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
        """Begin run ``nonce``: nothing resident, nobody waiting, no fault, an empty log.

        Requests in flight are served to the end beside the new run, but those that hang are reset; their rows are
        dropped.
        """
        self.change_faults(Change(clear=frozenset(KINDS)))
        self._engine.retire()
        self._engine = Engine(self._setup, self._clock, self._note_residency)
        self._log.clear()
        self._nonce = nonce

    def change_faults(self, change: Change) -> list[dict[str, object]]:
        """Clear and set faults, in force at once; returns what ``RequestFaults.report`` says then."""
        for number in self._faults.change(time.monotonic(), change):
            future = self._held.get(number)
            if future is not None and not future.done():
                future.set_result(None)
        return self._faults.report()

    async def handle(self, request: BaseRequest) -> web.StreamResponse:
        """Answer any request."""
        path = request.path
        if path == "/v1/completions" and request.method == "POST":
            return await self._serve(request, Kind.INFERENCE)
        if path == "/v1/updates" and request.method == "POST":
            return await self._serve(request, Kind.UPDATE)
        if path.startswith("/v1/models/") and path.endswith("/answer") and request.method == "GET":
            return await self._serve(request, Kind.INFERENCE)
        if path.startswith("/mock/"):
            return await self._control(request)
        return await self._check_up(request)

    # -- inference and updates -------------------------------------------------------------------------------

    async def _serve(self, request: BaseRequest, kind: Kind) -> web.StreamResponse:
        engine = self._engine  # a request stays with the run in which it arrived
        row = Row(kind, time.monotonic(), request.method)
        tags = Tags(request.headers)
        self._note_tags(row, kind, tags)
        ticket = self._log.add(row)
        visit = Visit(self.name, self._clock, self._created, request, row)
        try:
            try:
                body = await read_body(request, row)
                data = wire.read_json(body)
                tags.read_body(data.get("seed"), data.get("prompt"))
                self._note_tags(row, kind, tags)
                visit.tag = tags.echo
                ask = self._ask(request, data, kind)
                row.model = ask.model
                self._arrived += 1
                lot = self._faults.arrive(row.arrival_s, self._arrived, ask.prompt_tokens + ask.output_tokens)
                match lot:
                    case Answer():
                        return await visit.fail(lot)
                    case Hold():
                        self._log.update(ticket, row)
                        return await self._hold(self._arrived, visit)
                    case Serve():
                        visit.stay = stay = self._submit(engine, kind, ask, lot)
                        visit.cut_after_tokens = lot.cut_after_tokens
                        row.service_asked_s = stay.service_asked_s
                # Should we be killed now, the row says whose request it was even if only the body does.
                self._log.update(ticket, row)
                if kind is Kind.UPDATE:
                    return await visit.update()
                return await (visit.stream(ask) if ask.stream else visit.whole(ask))
            except wire.BadRequestError as bad:
                visit.tag = tags.echo
                return await visit.reply(400, wire.error(str(bad), "invalid_request_error", "bad_request", bad.param))
        except asyncio.CancelledError:
            row.outcome = Outcome.CLIENT_GONE
            raise
        finally:
            if visit.stay is not None:
                engine.leave(visit.stay)
            row.end_s = time.monotonic()
            self._log.update(ticket, row)

    @staticmethod
    def _submit(engine: Engine, kind: Kind, ask: wire.Ask, lot: Serve) -> Stay:
        job_kind: Literal["update", "inference"] = "update" if kind is Kind.UPDATE else "inference"
        return engine.submit(job_kind, ask.model, ask.prompt_tokens, ask.output_tokens, lot.slowness)

    async def _hold(self, number: int, visit: Visit) -> web.StreamResponse:
        """Keep a request without an answer until the fault is taken back; its client may leave before."""
        self._held[number] = released = asyncio.get_running_loop().create_future()
        try:
            await released
            visit.break_off()
        finally:
            del self._held[number]
            self._faults.leave(number)
        return web.Response()  # goes nowhere

    def _ask(self, request: BaseRequest, data: Mapping[str, object], kind: Kind) -> wire.Ask:
        if kind is Kind.UPDATE:
            return wire.Ask(request.headers.get("x-model-id", ""), prompt_tokens=0, output_tokens=0)
        if request.method == "GET":
            named = request.path.removeprefix("/v1/models/").removesuffix("/answer")
            ask = wire.read_answer_get(request.headers, named)
        else:
            ask = wire.read_completion(request.headers, data)
        return ask if ask.model else ask.with_model(self._setup.default_model.name)

    def _note_tags(self, row: Row, kind: Kind, tags: Tags) -> None:
        row.tag = tags.tag
        row.carriers = tags.carriers
        row.kind = Kind.FOREIGN if self._nonce and nonce_of(row.tag) != self._nonce else kind

    # -- check-ups -------------------------------------------------------------------------------------------

    async def _check_up(self, request: BaseRequest) -> web.StreamResponse:
        row = Row(Kind.CHECK_UP, time.monotonic(), request.method)
        ticket = self._log.add(row)
        try:
            with contextlib.suppress(wire.BadRequestError):
                await read_body(request, row)
            known = self._check_ups.get(request.path)
            if known is None:
                status, content_type = 404, _JSON
                body = wire.error(f"no such path: {request.method} {request.path}", "not_found", "not_found")
            elif request.method not in ("GET", "HEAD"):
                status, content_type = 405, _JSON
                body = wire.error(f"{request.method} {request.path}: expected GET", "method_not_allowed", "not_allowed")
            else:
                status, body, content_type = known()
            row.status = status
            row.bytes_out = 0 if request.method == "HEAD" else len(body)
            response = web.Response(status=status, body=body, content_type=content_type)
            await send(request, response, row)
            return response
        except asyncio.CancelledError:
            row.outcome = Outcome.CLIENT_GONE
            raise
        finally:
            row.end_s = time.monotonic()
            self._log.update(ticket, row)

    def _state(self) -> State:
        return self._faults.seen_in(self._engine.state())

    def _health(self, *, with_body: bool) -> Report:
        state = self._state()
        return (200 if state.ready else 503, wire.health(state) if with_body else b"", _JSON)

    def _models(self) -> Report:
        names = [self._setup.default_model.name, *(model.name for model in self._setup.models)]
        names += self._engine.state().models
        return (200, wire.model_list(list(dict.fromkeys(names)), self._created), _JSON)

    def _metrics(self) -> Report:
        return (200, wire.metrics(self._state(), self._setup.default_model.name), "text/plain")

    # -- control ---------------------------------------------------------------------------------------------

    async def _control(self, request: BaseRequest) -> web.Response:
        if not authorised(request, self._token):
            return json_response(403, wire.error("x-mock-token is missing or wrong", "forbidden", "forbidden"))
        try:
            match request.method, request.path:
                case "GET", "/mock/ping":
                    return json_response(200, b"{}")
                case "GET", "/mock/log":
                    return web.Response(body=self._log.dump(), content_type="application/octet-stream")
                case "POST", "/mock/reset":
                    self.reset(read_nonce(await request.content.read()))
                    return json_response(200, b"{}")
                case "GET", "/mock/faults":
                    return json_response(200, wire.faults(self._faults.report()))
                case "POST", "/mock/faults":
                    change = Change.from_json(wire.read_json(await request.content.read()))
                    return json_response(200, wire.faults(self.change_faults(change)))
        except (wire.BadRequestError, FaultError) as bad:
            param = bad.param if isinstance(bad, wire.BadRequestError) else None
            return json_response(400, wire.error(str(bad), "invalid_request_error", "bad_request", param))
        return json_response(
            404, wire.error(f"no such path: {request.method} {request.path}", "not_found", "not_found")
        )

    def _note_residency(self, event: Loading | Loaded | Evicted) -> None:
        self._log.add(
            Row(
                kind=_RESIDENCY_KINDS[type(event)],
                arrival_s=event.at_s,
                end_s=event.at_s,
                model=event.model,
                outcome=Outcome.ANSWERED,
            )
        )
