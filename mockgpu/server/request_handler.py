"""One request at a backend, from its body to the last byte of its answer, all of it noted in its row of the log."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from aiohttp import ClientConnectionResetError, web
from aiohttp.web_request import BaseRequest

from mockgpu.api import kserve, wire
from mockgpu.api.metrics import ServedRequest
from mockgpu.api.tags import hex_of
from mockgpu.api.wire import Api, Problem, Served
from mockgpu.faults import decisions as faults
from mockgpu.server.attempt_log import LogRow, RowOutcome, body_hash_of
from mockgpu.server.engine import JobHandle, Progress
from mockgpu.server.listening import must_be_plain
from mockgpu.server.raw_http import GONE, EventStream, send_part, send_whole
from mockgpu.server.run_state import RunState
from mockgpu.server.token_stream import TokenStream

# Status, type and text of an answer to a request that the model did not take.
_REFUSALS: Mapping[str, tuple[int, str, str]] = MappingProxyType(
    {
        "queue_full": (503, "service_unavailable", "the waiting queue is full"),
        "out_of_memory": (503, "service_unavailable", "the model does not fit into the memory"),
        "asleep": (503, "service_unavailable", "the server sleeps"),
        "not_found": (404, "invalid_request_error", "the model is not there; it was unloaded, or its adapter was"),
        "too_long": (400, "invalid_request_error", "prompt and output are longer than the model can take"),
        "engine_dead": (500, "InternalServerError", "EngineCore encountered an issue: the engine is dead"),
    }
)
_NONE: Mapping[str, str] = MappingProxyType({})
# Far more than the difference of two times can be off by rounding.
_ROUNDING_S = 1e-8
# Closing with this set sends a reset at once and drops what was not sent yet.
_NO_LINGER = struct.pack("ii", 1, 0)


class RequestHandler:
    """A request to be served: waits for its stay to progress and writes the answer, noting all in its row.

    ``cut_after_tokens``: the answer breaks off there, see ``mockgpu.faults.decisions.Cut``; None: it does not.
    ``spoiled``: parts of streams are for ``mockgpu.server.corruption`` to look at.
    """

    spoiled: ClassVar[bool] = False
    __slots__ = ("_api", "_core", "_request", "_row", "cut_after_tokens", "stay", "tag")

    def __init__(self, core: RunState, api: Api, request: BaseRequest, row: LogRow) -> None:
        self._core = core
        self._api = api
        self._request = request
        self._row = row
        self.tag = row.tag
        self.stay: JobHandle | None = None
        self.cut_after_tokens: int | None = None

    async def update(self, ask: wire.ParsedRequest) -> web.StreamResponse:
        """Answer when the update is done."""
        if not await self._come_to(Progress.ENDED):
            return await self._refuse()
        return await self._complete(self._api.whole(ask, self._served()), tokens=0)

    async def whole(self, ask: wire.ParsedRequest) -> web.StreamResponse:
        """Answer when all tokens are there."""
        stay = self.stay
        assert stay is not None
        for _ in () if stay.refused else self._api.build(ask):
            await asyncio.sleep(0)
            if stay.refused:  # meanwhile
                break
        if not await self._come_to(Progress.ENDED):
            return await self._refuse()
        response = await self._complete(self._api.whole(ask, self._served()), ask.output_tokens, ask.choices)
        if self._row.outcome is RowOutcome.ANSWERED and self._row.status == 200:
            self._count(ask)
        return response

    async def stream(self, ask: wire.ParsedRequest) -> web.StreamResponse:
        """Answer with an event per token, each at its own time, which does not depend on when the one before went."""
        if not await self._come_to(Progress.FIRST_TOKEN):
            return await self._refuse()
        stay, row, tokens = self.stay, self._row, ask.output_tokens
        assert stay is not None
        events = self._api.events(ask, self._served())
        row.status = 200
        row.first_byte_s = time.monotonic()
        stop = self._stop(tokens)
        stream = EventStream(self._request, wire.EVENTS, self._headers())
        try:
            if stop == 0 or not tokens:
                stream.begin()
            number, end = 0, tokens if stop is None else stop
            feeder = TokenStream(stay, self._core.clock, stream, events, row, ask.choices)
            while number < end:
                if not self.spoiled and number < tokens - 1:
                    number = await feeder.feed(number, min(end, tokens - 1))
                    await stream.drain()
                    if number == end:
                        break
                if not await (self._token(number) if number < tokens - 1 else self._come_to(Progress.ENDED)):
                    return await self._break_stream(stream, events, number)
                event = events.token(number, number == tokens - 1)
                if self.spoiled:
                    event = await self._spoil(event)
                if stream.put(event):
                    await stream.drain()
                number += 1
                row.bytes_out += len(event)
                row.tokens_out = number * ask.choices
            closing = events.closing if tokens else events.empty + events.closing
            if stop is not None:
                following = events.token(stop, stop == tokens - 1) if stop < tokens else closing
                return await self._stop_stream(stream, events, stop, following)
            if not tokens:
                await self._come_to(Progress.ENDED)
            if self.spoiled:
                closing = await self._spoil(closing)
            self._end_stream(stream, closing)
            if row.outcome is RowOutcome.ANSWERED:
                self._count(ask)
        except ClientConnectionResetError:
            row.outcome = RowOutcome.CLIENT_GONE
        return stream.response() if row.outcome is not RowOutcome.CUT else GONE

    def _stop(self, tokens: int) -> int | None:
        """After how many tokens the answer goes no further; None: it goes to its end."""
        return None if self.cut_after_tokens is None else min(self.cut_after_tokens, tokens)

    async def _spoil(self, data: bytes) -> bytes:
        """What goes out in place of a part of a stream, and when; asked only where ``spoiled`` is set."""
        return data

    def _noisy(self, data: bytes) -> bytes:
        """What goes out in place of a part of an answer."""
        return data

    async def _stop_stream(
        self, stream: EventStream, events: wire.Events, sent: int, following: bytes
    ) -> web.StreamResponse:
        """Go no further after so many tokens; ``following`` would have come next."""
        return self.break_off()

    async def _break_stream(self, stream: EventStream, events: wire.Events, sent: int) -> web.StreamResponse:
        """The job has failed after so many tokens: say so in an event, the last one."""
        assert self.stay is not None
        _, kind, text = _REFUSALS[self.stay.refused]
        return self._end_broken(stream, events, sent, Problem(text, kind, self.stay.refused))

    def _end_broken(self, stream: EventStream, events: wire.Events, sent: int, problem: Problem) -> web.StreamResponse:
        said = self._noisy(self._api.broken(problem, events.first_number + sent if sent else 0))
        stream.end(said)
        self._row.bytes_out += len(said)
        self._row.outcome = RowOutcome.CUT
        return stream.response()

    def _end_stream(self, stream: EventStream, closing: bytes) -> None:
        stream.end(closing)
        self._row.bytes_out += len(closing)
        self._row.outcome = RowOutcome.ANSWERED

    async def _token(self, number: int) -> bool:
        """Return when this token is there; False: the job has failed. What else runs may put it off while we wait."""
        stay = self.stay
        assert stay is not None
        while not stay.refused:
            due_s = stay.token_due_s(number)
            if due_s is None:  # it lost its place on the GPU
                await self._core.engine.until(lambda: stay.token_due_s(number) is not None)
            elif due_s > time.monotonic():
                await stay.sleep_until(due_s, self._core.clock)
            else:
                return True
        return False

    async def _complete(self, whole: wire.WholeAnswer, tokens: int, choices: int = 1) -> web.StreamResponse:
        """Answer what was served, or that part of it after which it is to be cut; never all of it then.

        ``tokens`` are those of each of the ``choices``.
        """
        cut, body = self.cut_after_tokens, whole.body
        if cut is None:
            self._row.tokens_out = tokens * choices
            return await self.reply(200, body, whole.headers or _NONE, whole.content_type)
        row = self._row
        part = min(len(body) * cut // max(tokens, 1), len(body) - 1)
        headers = {**self._headers(), **(whole.headers or _NONE)}
        row.status = 200
        row.first_byte_s = time.monotonic()
        try:
            send_part(self._request, body, part, whole.content_type, headers)
            row.bytes_out = part
            row.tokens_out = min(cut, tokens) * choices
        except ClientConnectionResetError:
            row.outcome = RowOutcome.CLIENT_GONE
            return GONE
        return self.break_off()

    def break_off(self) -> web.StreamResponse:
        """Reset the connection, whatever has been sent."""
        self._row.outcome = RowOutcome.CUT
        transport = self._request.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            transport.abort()
        return GONE

    async def fail(self, lot: faults.AnswerStatus) -> web.StreamResponse:
        """Answer as a fault has it."""
        text = "the capacity is used up" if lot.refused else f"a fault answers {lot.status}"
        status, problem = lot.status, Problem(text, "service_unavailable", "fault")
        if lot.reason == "out_of_memory":
            status, problem = self._out_of_memory(lot.status)
        elif lot.reason:
            _, kind, text = _REFUSALS[lot.reason]
            problem = Problem(text, kind, lot.reason)
        headers = {}
        if lot.retry_after_s is not None:
            headers["Retry-After"] = str(math.ceil(lot.retry_after_s))
        response = await self.refuse(status, problem, headers)
        if lot.refused and self._row.outcome is RowOutcome.ANSWERED:
            self._row.outcome = RowOutcome.REFUSED
        return response

    def _out_of_memory(self, status: int) -> tuple[int, Problem]:
        """What a GPU out of memory makes a server say: Triton when it loads a model, vLLM when it serves one."""
        if isinstance(self._api, kserve.Infer):
            return 400, Problem(kserve.no_room(self._row.model), "service_unavailable", "out_of_memory")
        return status, Problem("CUDA out of memory", "InternalServerError", "out_of_memory")

    async def refuse(self, status: int, problem: Problem, headers: Mapping[str, str] = _NONE) -> web.StreamResponse:
        """Answer with what is wrong, in the form that the request's path has."""
        return await self.reply(status, self._api.problem(problem), headers)

    async def reply(
        self, status: int, body: bytes, headers: Mapping[str, str] = _NONE, content_type: str = wire.JSON
    ) -> web.StreamResponse:
        """Answer in one piece."""
        ours, row = self._headers(), self._row
        if headers:
            ours.update(headers)
        row.first_byte_s = time.monotonic()
        try:
            response = send_whole(self._request, status, body, content_type, ours)
        except ClientConnectionResetError:
            row.outcome = RowOutcome.CLIENT_GONE
            return GONE
        row.status = status
        row.bytes_out = len(body)
        row.outcome = RowOutcome.ANSWERED
        return response

    async def _come_to(self, stage: Progress) -> bool:
        """Wait for a stage and note what is known by then; False if the job was refused."""
        stay, row = self.stay, self._row
        assert stay is not None
        try:
            await stay.until(stage)
        finally:
            if stay.stage >= Progress.STARTED and not stay.refused:
                row.cold = int(stay.cold)
                row.queue_wait_s = stay.queue_wait_s
                row.batch = stay.batch
                row.cached_tokens = stay.cached_tokens
        if stay.refused:
            return False
        if stay.stage is Progress.ENDED:
            took_s = stay.ended_s - stay.started_s
            if abs(took_s - row.service_asked_s) > _ROUNDING_S:
                # Others beside it changed what the model asks for; only the rest is our own lateness.
                row.service_asked_s = took_s
            row.service_actual_s = time.monotonic() - stay.started_s
        return True

    async def _refuse(self) -> web.StreamResponse:
        assert self.stay is not None
        reason = self.stay.refused
        status, kind, text = _REFUSALS[reason]
        if reason == "out_of_memory" and isinstance(self._api, kserve.Infer):
            status, text = 400, kserve.no_room(self.stay.job.model)
        response = await self.refuse(status, Problem(text, kind, reason))
        if self._row.outcome is RowOutcome.ANSWERED:
            self._row.outcome = RowOutcome.REFUSED
        return response

    def _count(self, ask: wire.ParsedRequest) -> None:
        """Note in the metrics that all was served."""
        stay = self.stay
        assert stay is not None
        submitted_s = stay.started_s - stay.queue_wait_s
        self._core.tally.answered(
            stay.job.model,
            ServedRequest(
                ask.prompt_tokens,
                ask.output_tokens,
                stay.queue_wait_s,
                stay.first_token_s - submitted_s,
                stay.ended_s - submitted_s,
                ask.finish,
            ),
        )

    def _served(self) -> Served:
        core, stay = self._core, self.stay
        assert stay is not None
        cached = stay.cached_tokens if core.caches(stay.job.model) else -1
        return Served(self.tag, core.name, core.created, cached)

    def _headers(self) -> dict[str, str]:
        headers = {"x-backend-id": self._core.name, "x-mock-cold": "1" if self._row.cold else "0"}
        if self.tag:
            headers["x-mock-tag"] = hex_of(self.tag)
        return headers


async def read_body(request: BaseRequest, row: LogRow) -> bytes:
    """The whole body, however large; raises BadRequestError where it breaks off or is encoded."""
    if "expect" in request.headers and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    try:
        # Most often all of it has come with the head.
        body = content.read_nowait() if content.is_eof() else await content.read()
    except (web.RequestPayloadError, ConnectionError) as error:
        raise wire.BadRequestError(f"the body broke off: {error}") from None
    row.bytes_in = len(body)
    row.body_hash = body_hash_of(body)
    must_be_plain(request.headers)
    return body


async def send(request: BaseRequest, response: web.Response, row: LogRow) -> None:
    """Write a whole response; a client that has gone is noted, not raised."""
    row.first_byte_s = time.monotonic()
    try:
        await response.prepare(request)
        await response.write_eof()
        row.outcome = RowOutcome.ANSWERED
    except ClientConnectionResetError:
        row.outcome = RowOutcome.CLIENT_GONE
        row.status = row.bytes_out = 0
