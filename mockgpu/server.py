"""HTTP around one GPU model: inference, updates, health, metrics, and the attempt log of it all.

Paths
-----
- ``POST /v1/completions``: as OpenAI has it, whole or as server-sent events, one per token. The head of a
  stream is sent with its first token.
- ``GET /v1/models/{model}/answer``: the same service by GET; ``x-prompt-tokens``, ``x-output-tokens``.
- ``POST /v1/updates``: changes state and needs no model.
- ``/health``, ``/ready``, ``/v2/health/live``, ``/v2/health/ready``, ``/v1/models``, ``/metrics``: check-ups,
  as is every unknown path.
- ``/mock/ping``, ``/mock/reset``, ``/mock/log``: control, never logged.

There is one handler for all paths and no router: routing and middlewares of a web framework would cost about
as much as the mock itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Literal

from aiohttp import ClientConnectionResetError, web
from aiohttp.web_request import BaseRequest

from mockgpu import wire
from mockgpu.catalogue import Setup
from mockgpu.clock import Clock
from mockgpu.engine import Engine, Stage, Stay
from mockgpu.listening import PortError, authorised, http_server, json_response, listen, read_nonce
from mockgpu.log import AttemptLog, Kind, Outcome, Row, body_hash_of
from mockgpu.model import Evicted, Loaded, Loading
from mockgpu.tags import Tags, hex_of, nonce_of

_JSON = "application/json"
_RESIDENCY_KINDS = {
    Loading: Kind.RESIDENCY_LOADING,
    Loaded: Kind.RESIDENCY_LOADED,
    Evicted: Kind.RESIDENCY_EVICTED,
}
_REFUSALS = {
    "queue_full": "the waiting queue is full",
    "out_of_memory": "the model does not fit into the memory",
}
# (status, body, content type)
Answer = tuple[int, bytes, str]


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
        self._runner = http_server(self.handle)
        self._check_ups: dict[str, Callable[[], Answer]] = {
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
        """Begin run ``nonce``: nothing resident, nobody waiting, an empty log.

        Requests in flight are served to the end beside the new run; their rows are dropped.
        """
        self._engine.retire()
        self._engine = Engine(self._setup, self._clock, self._note_residency)
        self._log.clear()
        self._nonce = nonce

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
        visit = _Visit(self.name, self._clock, self._created, request, row)
        try:
            try:
                body = await _read_body(request, row)
                data = wire.read_json(body)
                tags.read_body(data.get("seed"), data.get("prompt"))
                self._note_tags(row, kind, tags)
                visit.tag = tags.echo
                ask = self._ask(request, data, kind)
                row.model = ask.model
                job_kind: Literal["update", "inference"] = "update" if kind is Kind.UPDATE else "inference"
                visit.stay = stay = engine.submit(job_kind, ask.model, ask.prompt_tokens, ask.output_tokens)
                # Should we be killed now, the row says whose request it was even if only the body does.
                row.service_asked_s = stay.service_asked_s
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
                await _read_body(request, row)
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
            await _send(request, response, row)
            return response
        except asyncio.CancelledError:
            row.outcome = Outcome.CLIENT_GONE
            raise
        finally:
            row.end_s = time.monotonic()
            self._log.update(ticket, row)

    def _health(self, *, with_body: bool) -> Answer:
        state = self._engine.state()
        return (200 if state.ready else 503, wire.health(state) if with_body else b"", _JSON)

    def _models(self) -> Answer:
        names = [self._setup.default_model.name, *(model.name for model in self._setup.models)]
        names += self._engine.state().models
        return (200, wire.model_list(list(dict.fromkeys(names)), self._created), _JSON)

    def _metrics(self) -> Answer:
        return (200, wire.metrics(self._engine.state(), self._setup.default_model.name), "text/plain")

    # -- control ---------------------------------------------------------------------------------------------

    async def _control(self, request: BaseRequest) -> web.Response:
        if not authorised(request, self._token):
            return json_response(403, wire.error("x-mock-token is missing or wrong", "forbidden", "forbidden"))
        match request.method, request.path:
            case "GET", "/mock/ping":
                return json_response(200, b"{}")
            case "GET", "/mock/log":
                return web.Response(body=self._log.dump(), content_type="application/octet-stream")
            case "POST", "/mock/reset":
                try:
                    self.reset(read_nonce(await request.content.read()))
                except wire.BadRequestError as bad:
                    return json_response(400, wire.error(str(bad), "invalid_request_error", "bad_request", bad.param))
                return json_response(200, b"{}")
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
