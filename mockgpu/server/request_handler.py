"""Handling of one request, from its body to the last byte of its answer, with its row in the attempt log."""

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
from mockgpu.faults.decisions import AnswerStatus
from mockgpu.server.attempt_log import LogRow, RowOutcome, body_hash_of
from mockgpu.server.engine import JobHandle, Progress
from mockgpu.server.listening import require_identity_encoding
from mockgpu.server.raw_http import CLOSED, EventStream, send_part, send_whole
from mockgpu.server.run_state import RunState
from mockgpu.server.token_stream import TokenStream

# Status, type and text of the answer to a job that was refused or failed, by reason.
_REFUSALS: Mapping[str, tuple[int, str, str]] = MappingProxyType(
    {
        "queue_full": (503, "service_unavailable", "the waiting queue is full"),
        "out_of_memory": (503, "service_unavailable", "the model does not fit into the memory"),
        "asleep": (503, "service_unavailable", "the server is asleep"),
        "not_found": (404, "invalid_request_error", "the model does not exist; it was unloaded, or its adapter was"),
        "too_long": (400, "invalid_request_error", "prompt and output exceed the model's context length"),
        "engine_dead": (500, "InternalServerError", "EngineCore encountered an issue: the engine is dead"),
    }
)
_NONE: Mapping[str, str] = MappingProxyType({})
# Exceeds any rounding error of a difference of two times.
_ROUNDING_S = 1e-8
# With this option, closing sends a reset immediately and drops unsent data.
_NO_LINGER = struct.pack("ii", 1, 0)


class RequestHandler:
    """Serves one request: waits for its job's progress, writes the answer and fills in its row.

    ``cut_after_tokens``: tokens after which the connection is reset, see ``mockgpu.faults.kinds.CutOff``; None:
    never. ``corrupted``: whether parts of streams pass through ``mockgpu.server.corruption``.
    """

    corrupted: ClassVar[bool] = False
    __slots__ = ("_api", "_request", "_row", "_run", "cut_after_tokens", "job_handle", "tag")

    def __init__(self, run: RunState, api: Api, request: BaseRequest, row: LogRow) -> None:
        self._run = run
        self._api = api
        self._request = request
        self._row = row
        self.tag = row.tag
        self.job_handle: JobHandle | None = None
        self.cut_after_tokens: int | None = None

    async def update(self, parsed: wire.ParsedRequest) -> web.StreamResponse:
        """Answer when the update is done."""
        if not await self._wait_for(Progress.ENDED):
            return await self._refuse()
        return await self._complete(self._api.whole(parsed, self._served()), tokens=0)

    async def whole(self, parsed: wire.ParsedRequest) -> web.StreamResponse:
        """Answer when all tokens are generated."""
        handle = self.job_handle
        assert handle is not None
        for _ in () if handle.refused else self._api.prepare(parsed):
            await asyncio.sleep(0)
            if handle.refused:  # while yielding
                break
        if not await self._wait_for(Progress.ENDED):
            return await self._refuse()
        response = await self._complete(self._api.whole(parsed, self._served()), parsed.output_tokens, parsed.choices)
        if self._row.outcome is RowOutcome.ANSWERED and self._row.status == 200:
            self._count_served(parsed)
        return response

    async def stream(self, parsed: wire.ParsedRequest) -> web.StreamResponse:
        """Answer with one event per token, each sent when its token is due, independent of earlier send times."""
        if not await self._wait_for(Progress.FIRST_TOKEN):
            return await self._refuse()
        handle, row, tokens = self.job_handle, self._row, parsed.output_tokens
        assert handle is not None
        events = self._api.events(parsed, self._served())
        row.status = 200
        row.first_byte_s = time.monotonic()
        stop = self._stop(tokens)
        stream = EventStream(self._request, wire.EVENTS, self._headers())
        try:
            if stop == 0 or not tokens:
                stream.begin()
            number, end = 0, tokens if stop is None else stop
            token_stream = TokenStream(handle, self._run.clock, stream, events, row, parsed.choices)
            while number < end:
                if not self.corrupted and number < tokens - 1:
                    number = await token_stream.send(number, min(end, tokens - 1))
                    await stream.drain()
                    if number == end:
                        break
                if not await (self._token(number) if number < tokens - 1 else self._wait_for(Progress.ENDED)):
                    return await self._fail_stream(stream, events, number)
                event = events.token(number, number == tokens - 1)
                if self.corrupted:
                    event = await self._corrupt(event)
                if stream.put(event):
                    await stream.drain()
                number += 1
                row.bytes_out += len(event)
                row.tokens_out = number * parsed.choices
            closing = events.closing if tokens else events.empty + events.closing
            if stop is not None:
                following = events.token(stop, stop == tokens - 1) if stop < tokens else closing
                return await self._stop_stream(stream, events, stop, following)
            if not tokens:
                await self._wait_for(Progress.ENDED)
            if self.corrupted:
                closing = await self._corrupt(closing)
            self._end_stream(stream, closing)
            if row.outcome is RowOutcome.ANSWERED:
                self._count_served(parsed)
        except ClientConnectionResetError:
            row.outcome = RowOutcome.CLIENT_GONE
        return stream.response() if row.outcome is not RowOutcome.CUT else CLOSED

    def _stop(self, tokens: int) -> int | None:
        """Tokens after which the answer stops; None: it is sent to its end."""
        return None if self.cut_after_tokens is None else min(self.cut_after_tokens, tokens)

    async def _corrupt(self, data: bytes) -> bytes:
        """Wait if needed, and return the data to send in place of ``data``; called only if ``corrupted`` is set."""
        return data

    def _garbled(self, data: bytes) -> bytes:
        """The data to send in place of a part of an answer."""
        return data

    async def _stop_stream(
        self, stream: EventStream, events: wire.Events, sent: int, following: bytes
    ) -> web.StreamResponse:
        """Stop after ``sent`` tokens; ``following`` is the event that would come next."""
        return self.reset_connection()

    async def _fail_stream(self, stream: EventStream, events: wire.Events, sent: int) -> web.StreamResponse:
        """End the stream with an error event because the job failed after ``sent`` tokens."""
        assert self.job_handle is not None
        _, kind, text = _REFUSALS[self.job_handle.refused]
        return self._end_with_error(stream, events, sent, Problem(text, kind, self.job_handle.refused))

    def _end_with_error(
        self, stream: EventStream, events: wire.Events, sent: int, problem: Problem
    ) -> web.StreamResponse:
        event = self._garbled(self._api.error_event(problem, events.first_number + sent if sent else 0))
        stream.end(event)
        self._row.bytes_out += len(event)
        self._row.outcome = RowOutcome.CUT
        return stream.response()

    def _end_stream(self, stream: EventStream, closing: bytes) -> None:
        stream.end(closing)
        self._row.bytes_out += len(closing)
        self._row.outcome = RowOutcome.ANSWERED

    async def _token(self, number: int) -> bool:
        """Wait for token ``number``; False if the job has failed. Its due time may move while waiting."""
        handle = self.job_handle
        assert handle is not None
        while not handle.refused:
            due_s = handle.token_due_s(number)
            if due_s is None:  # the job is preempted
                await self._run.engine.until(lambda: handle.token_due_s(number) is not None)
            elif due_s > time.monotonic():
                await handle.sleep_until(due_s, self._run.clock)
            else:
                return True
        return False

    async def _complete(self, whole: wire.WholeAnswer, tokens: int, choices: int = 1) -> web.StreamResponse:
        """Send the whole answer, or, if it is to be cut, a part of it that is always incomplete.

        ``tokens`` is the number of tokens of each of the ``choices``.
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
            return CLOSED
        return self.reset_connection()

    def reset_connection(self) -> web.StreamResponse:
        """Reset the connection, whatever has been sent so far."""
        self._row.outcome = RowOutcome.CUT
        transport = self._request.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            transport.abort()
        return CLOSED

    async def fail(self, decision: AnswerStatus) -> web.StreamResponse:
        """Answer with the status that a fault decided on."""
        text = "the capacity is used up" if decision.refused else f"a fault answers {decision.status}"
        status, problem = decision.status, Problem(text, "service_unavailable", "fault")
        if decision.reason == "out_of_memory":
            status, problem = self._out_of_memory(decision.status)
        elif decision.reason:
            _, kind, text = _REFUSALS[decision.reason]
            problem = Problem(text, kind, decision.reason)
        headers = {}
        if decision.retry_after_s is not None:
            headers["Retry-After"] = str(math.ceil(decision.retry_after_s))
        response = await self.refuse(status, problem, headers)
        if decision.refused and self._row.outcome is RowOutcome.ANSWERED:
            self._row.outcome = RowOutcome.REFUSED
        return response

    def _out_of_memory(self, status: int) -> tuple[int, Problem]:
        """Status and error for a GPU out of memory: Triton's when loading a model, vLLM's when serving one."""
        if isinstance(self._api, kserve.Infer):
            return 400, Problem(kserve.no_room(self._row.model), "service_unavailable", "out_of_memory")
        return status, Problem("CUDA out of memory", "InternalServerError", "out_of_memory")

    async def refuse(self, status: int, problem: Problem, headers: Mapping[str, str] = _NONE) -> web.StreamResponse:
        """Answer with an error in the form of the request's API."""
        return await self.reply(status, self._api.problem(problem), headers)

    async def reply(
        self, status: int, body: bytes, headers: Mapping[str, str] = _NONE, content_type: str = wire.JSON
    ) -> web.StreamResponse:
        """Send a whole response."""
        merged, row = self._headers(), self._row
        if headers:
            merged.update(headers)
        row.first_byte_s = time.monotonic()
        try:
            response = send_whole(self._request, status, body, content_type, merged)
        except ClientConnectionResetError:
            row.outcome = RowOutcome.CLIENT_GONE
            return CLOSED
        row.status = status
        row.bytes_out = len(body)
        row.outcome = RowOutcome.ANSWERED
        return response

    async def _wait_for(self, progress: Progress) -> bool:
        """Wait for ``progress`` and record it in the row; False if the job was refused or failed."""
        handle, row = self.job_handle, self._row
        assert handle is not None
        try:
            await handle.until(progress)
        finally:
            if handle.progress >= Progress.STARTED and not handle.refused:
                row.cold = int(handle.cold)
                row.queue_wait_s = handle.queue_wait_s
                row.batch = handle.batch
                row.cached_tokens = handle.cached_tokens
        if handle.refused:
            return False
        if handle.progress is Progress.ENDED:
            took_s = handle.ended_s - handle.started_s
            if abs(took_s - row.service_asked_s) > _ROUNDING_S:
                # The batch changed the model's service time; only the remainder is the mock's own delay.
                row.service_asked_s = took_s
            row.service_actual_s = time.monotonic() - handle.started_s
        return True

    async def _refuse(self) -> web.StreamResponse:
        assert self.job_handle is not None
        reason = self.job_handle.refused
        status, kind, text = _REFUSALS[reason]
        if reason == "out_of_memory" and isinstance(self._api, kserve.Infer):
            status, text = 400, kserve.no_room(self.job_handle.job.model)
        response = await self.refuse(status, Problem(text, kind, reason))
        if self._row.outcome is RowOutcome.ANSWERED:
            self._row.outcome = RowOutcome.REFUSED
        return response

    def _count_served(self, parsed: wire.ParsedRequest) -> None:
        """Count a fully served request in the metrics."""
        handle = self.job_handle
        assert handle is not None
        submitted_s = handle.started_s - handle.queue_wait_s
        self._run.counters.record_answer(
            handle.job.model,
            ServedRequest(
                parsed.prompt_tokens,
                parsed.output_tokens,
                handle.queue_wait_s,
                handle.first_token_s - submitted_s,
                handle.ended_s - submitted_s,
                parsed.finish,
            ),
        )

    def _served(self) -> Served:
        run, handle = self._run, self.job_handle
        assert handle is not None
        cached = handle.cached_tokens if run.caches(handle.job.model) else -1
        return Served(self.tag, run.name, run.created, cached)

    def _headers(self) -> dict[str, str]:
        headers = {"x-backend-id": self._run.name, "x-mock-cold": "1" if self._row.cold else "0"}
        if self.tag:
            headers["x-mock-tag"] = hex_of(self.tag)
        return headers


async def read_body(request: BaseRequest, row: LogRow) -> bytes:
    """Read the whole body, of any size; raises BadRequestError if it is incomplete or encoded."""
    if "expect" in request.headers and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    try:
        # Usually the whole body has arrived with the head.
        body = content.read_nowait() if content.is_eof() else await content.read()
    except (web.RequestPayloadError, ConnectionError) as error:
        raise wire.BadRequestError(f"the body broke off: {error}") from None
    row.bytes_in = len(body)
    row.body_hash = body_hash_of(body)
    require_identity_encoding(request.headers)
    return body


async def send(request: BaseRequest, response: web.Response, row: LogRow) -> None:
    """Write a whole response; if the client has left, record it instead of raising."""
    row.first_byte_s = time.monotonic()
    try:
        await response.prepare(request)
        await response.write_eof()
        row.outcome = RowOutcome.ANSWERED
    except ClientConnectionResetError:
        row.outcome = RowOutcome.CLIENT_GONE
        row.status = row.bytes_out = 0
