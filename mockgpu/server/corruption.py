"""Answers corrupted by faults: stalled, slowed down, truncated, replaced by noise, or of the wrong length.

Good answers cost one check of ``RequestHandler.corrupted`` per event. ``mockgpu.faults.kinds`` describes each kind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import shake_128

from aiohttp import ClientConnectionResetError, web
from aiohttp.web_request import BaseRequest

from mockgpu.api import metrics, wire
from mockgpu.api.calls import ApiCall, ApiReply
from mockgpu.api.wire import Api
from mockgpu.faults.kinds import (
    BadMetrics,
    Corruption,
    Drip,
    Garbage,
    NotAlive,
    Stall,
    StreamError,
    Truncated,
    WrongLength,
)
from mockgpu.server.attempt_log import LogRow, RowOutcome
from mockgpu.server.raw_http import CLOSED, EventStream, begin_whole, send_piece
from mockgpu.server.request_handler import RequestHandler
from mockgpu.server.run_state import RunState

_LIVENESS = ("/ping", "/v2/health/live")
_LOAD_REPORTS = ("/health", "/metrics", "/loads", "/v1/loads", "/get_load")
_MIN_NOISE_BYTES = 64
# vLLM's error for a failed generation.
_GENERATION_FAILED = wire.Problem("Internal server error", "InternalServerError", 500)


def noise(text: str, length: int) -> bytes:
    """``length`` meaningless bytes that depend on ``text`` only."""
    return shake_128(text.encode()).digest(length)


class CorruptedRequestHandler(RequestHandler):
    """A request handler with a corrupted answer. ``released`` completes when a stalled answer must be reset."""

    corrupted = True
    __slots__ = ("_ending", "_gap_s", "_garbage", "_length_error", "_next_due_s", "number", "released")

    def __init__(
        self,
        run: RunState,
        api: Api,
        request: BaseRequest,
        row: LogRow,
        number: int,
        corruptions: tuple[Corruption, ...],
    ) -> None:
        super().__init__(run, api, request, row)
        self.number = number
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending: Stall | Truncated | StreamError | None = None
        self._gap_s = 0.0
        self._garbage = False
        self._length_error = 0
        self._next_due_s = 0.0
        for corruption in corruptions:
            match corruption:
                case Stall() | Truncated() | StreamError():
                    self._ending = corruption
                case Drip():
                    self._gap_s = corruption.gap_s
                case Garbage():
                    self._garbage = True
                case WrongLength():
                    self._length_error = corruption.by

    async def stream(self, parsed: wire.ParsedRequest) -> web.StreamResponse:
        """Like ``RequestHandler.stream``, with the corruptions applied."""
        try:
            return await super().stream(parsed)
        finally:
            if self._garbage:
                self._row.tokens_out = 0

    def _stop(self, tokens: int) -> int | None:
        """Tokens after which the answer stops; None: it is sent to its end."""
        if self.cut_after_tokens is not None:
            return min(self.cut_after_tokens, tokens)
        return None if self._ending is None else min(self._ending.after_tokens, tokens)

    async def _corrupt(self, data: bytes) -> bytes:
        await self._wait_for_gap()
        return self._garbled(data)

    def _end_stream(self, stream: EventStream, closing: bytes) -> None:
        if not self._length_error:
            super()._end_stream(stream, closing)
            return
        self._row.bytes_out += stream.end_with_wrong_length(closing, self._length_error)
        self._row.outcome = RowOutcome.CUT

    async def _stop_stream(
        self, stream: EventStream, events: wire.Events, sent: int, following: bytes
    ) -> web.StreamResponse:
        if self.cut_after_tokens is None:
            if isinstance(self._ending, StreamError):
                return self._end_with_error(stream, events, sent, _GENERATION_FAILED)
            if isinstance(self._ending, Truncated):
                part = self._garbled(following[: len(following) // 2])
                stream.end(part)
                self._row.bytes_out += len(part)
                self._row.outcome = RowOutcome.CUT
                return stream.response()
            await self.released
        return self.reset_connection()

    async def _fail_stream(self, stream: EventStream, events: wire.Events, sent: int) -> web.StreamResponse:
        return await self._keep_stalling() or await super()._fail_stream(stream, events, sent)

    async def _refuse(self) -> web.StreamResponse:
        return await self._keep_stalling() or await super()._refuse()

    async def _keep_stalling(self) -> web.StreamResponse | None:
        """Stall even after the engine's death until released; None if this answer is not to stall."""
        assert self.job_handle is not None
        if not isinstance(self._ending, Stall) or self.job_handle.refused != "engine_dead":
            return None
        await self.released
        return self.reset_connection()

    async def _complete(self, whole: wire.WholeAnswer, tokens: int, choices: int = 1) -> web.StreamResponse:
        if isinstance(self._ending, StreamError):
            return await self.refuse(500, _GENERATION_FAILED)
        row, body = self._row, self._garbled(whole.body)
        count, stop = max(tokens, 1), self._stop(max(tokens, 1))
        part = len(body) if stop is None else min(len(body) * stop // count, len(body) - 1)
        length = part if isinstance(self._ending, Truncated) and self.cut_after_tokens is None else len(body)
        headers = {**self._headers(), **(whole.headers or {})}
        row.status = 200
        row.first_byte_s = time.monotonic()
        try:
            response = begin_whole(self._request, max(0, length + self._length_error), whole.content_type, headers)
            for piece in self._pieces(body[:part], len(body), count):
                await self._wait_for_gap()
                send_piece(self._request, piece)
                row.bytes_out += len(piece)
                sent = -(-row.bytes_out * count // len(body))  # rounded up, as the part was rounded down
                row.tokens_out = 0 if self._garbage else min(sent, tokens) * choices
        except ClientConnectionResetError:
            row.outcome = RowOutcome.CLIENT_GONE
            return CLOSED
        if self.cut_after_tokens is not None:
            return self.reset_connection()
        if isinstance(self._ending, Stall):
            await self.released
            return self.reset_connection()
        broken = self._ending is not None or self._length_error != 0
        row.outcome = RowOutcome.CUT if broken else RowOutcome.ANSWERED
        return CLOSED if self._length_error else response

    def _pieces(self, part: bytes, length: int, count: int) -> Iterator[bytes]:
        """The part of a body of ``length`` bytes, whole or, with a drip fault, split at the body's ``count`` pieces."""
        if not self._gap_s:
            yield part
            return
        for number in range(count):
            piece = part[length * number // count : length * (number + 1) // count]
            if piece:
                yield piece

    async def _wait_for_gap(self) -> None:
        """Wait until the next token may be sent."""
        if self._gap_s:
            if self._next_due_s:
                await self._run.clock.sleep_until(self._next_due_s)
            self._next_due_s = time.monotonic() + self._gap_s

    def _garbled(self, data: bytes) -> bytes:
        return noise(f"{self._run.name}/{self.tag}", len(data)) if self._garbage else data


# -- reports -------------------------------------------------------------------------------------------------


def freeze_metrics(run: RunState) -> bytes:
    """Freeze the load figures of ``run`` for its ``metrics`` fault; returns the current metrics page."""
    state = run.faults.freeze(run.engine.state_with_progress())
    return metrics.page(state, run.counters, run.setup, run.adapters_in_use(), time.time())


def apply_report_faults(run: RunState, call: ApiCall, reply: ApiReply, page: bytes) -> ApiReply:
    """Apply the report faults to a health-check reply; ``page`` is the frozen metrics page."""
    faults, path = run.faults, call.path.rstrip("/")
    if path in _LIVENESS and reply.status == 200 and faults.hit(NotAlive.kind):
        return replace(reply, status=503)
    how = faults.metrics_mode
    if not how or path not in _LOAD_REPORTS or reply.status not in (200, 503) or not faults.hit(BadMetrics.kind):
        return reply
    match how:
        case "garbage":
            body = noise(f"{run.name}{path}", max(len(reply.body), _MIN_NOISE_BYTES))
            return replace(reply, body=body)
        case "missing" if path == "/health":
            return replace(reply, body=b"")
        case "missing":
            text = f"no such path: {call.method} {call.path}"
            return ApiReply(wire.error(text, "not_found", "not_found"), 404)
        case _:
            return replace(reply, body=page) if path == "/metrics" else reply
