"""Answers as faults spoil them: silent after a part, dripping, too short, full of noise, or of the wrong length.

Good answers pay one look at ``RequestHandler.spoiled`` for each event. ``mockgpu.faults.kinds`` says what each kind
does.
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
from mockgpu.faults.decisions import (
    DripFault,
    GarbageFault,
    MetricsFault,
    NotAliveFault,
    Spoil,
    StallFault,
    StreamErrorFault,
    TruncatedFault,
    WrongLengthFault,
)
from mockgpu.server.attempt_log import LogRow, RowOutcome
from mockgpu.server.raw_http import GONE, EventStream, begin_whole, send_piece
from mockgpu.server.request_handler import RequestHandler
from mockgpu.server.run_state import RunState

_LIVENESS = ("/ping", "/v2/health/live")
_FIGURES = ("/health", "/metrics", "/loads", "/v1/loads", "/get_load")
_LEAST_NOISE = 64
# What vLLM says of a generation that has failed.
_FAILED = wire.Problem("Internal server error", "InternalServerError", 500)


def noise(text: str, length: int) -> bytes:
    """So many bytes that mean nothing, always the same for the same text."""
    return shake_128(text.encode()).digest(length)


class CorruptedRequestHandler(RequestHandler):
    """A visit whose answer is spoiled. ``released`` is done when the one that stalls is to be reset."""

    spoiled = True
    __slots__ = ("_drip", "_ending", "_garbage", "_paced_s", "_wrong", "number", "released")

    def __init__(
        self, core: RunState, api: Api, request: BaseRequest, row: LogRow, number: int, spoils: tuple[Spoil, ...]
    ) -> None:
        super().__init__(core, api, request, row)
        self.number = number
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending: StallFault | TruncatedFault | StreamErrorFault | None = None
        self._drip = 0.0
        self._garbage = False
        self._wrong = 0
        self._paced_s = 0.0
        for spoil in spoils:
            match spoil:
                case StallFault() | TruncatedFault() | StreamErrorFault():
                    self._ending = spoil
                case DripFault():
                    self._drip = spoil.gap_s
                case GarbageFault():
                    self._garbage = True
                case WrongLengthFault():
                    self._wrong = spoil.by

    async def stream(self, ask: wire.ParsedRequest) -> web.StreamResponse:
        """As ``RequestHandler.stream``, spoiled."""
        try:
            return await super().stream(ask)
        finally:
            if self._garbage:
                self._row.tokens_out = 0

    def _stop(self, tokens: int) -> int | None:
        """After how many tokens the answer goes no further; None: it goes to its end."""
        if self.cut_after_tokens is not None:
            return min(self.cut_after_tokens, tokens)
        return None if self._ending is None else min(self._ending.after_tokens, tokens)

    async def _spoil(self, data: bytes) -> bytes:
        await self._pace()
        return self._noisy(data)

    def _end_stream(self, stream: EventStream, closing: bytes) -> None:
        if not self._wrong:
            super()._end_stream(stream, closing)
            return
        self._row.bytes_out += stream.end_wrongly(closing, self._wrong)
        self._row.outcome = RowOutcome.CUT

    async def _stop_stream(
        self, stream: EventStream, events: wire.Events, sent: int, following: bytes
    ) -> web.StreamResponse:
        if self.cut_after_tokens is None:
            if isinstance(self._ending, StreamErrorFault):
                return self._end_broken(stream, events, sent, _FAILED)
            if isinstance(self._ending, TruncatedFault):
                part = self._noisy(following[: len(following) // 2])
                stream.end(part)
                self._row.bytes_out += len(part)
                self._row.outcome = RowOutcome.CUT
                return stream.response()
            await self.released
        return self.break_off()

    async def _break_stream(self, stream: EventStream, events: wire.Events, sent: int) -> web.StreamResponse:
        return await self._stall_on() or await super()._break_stream(stream, events, sent)

    async def _refuse(self) -> web.StreamResponse:
        return await self._stall_on() or await super()._refuse()

    async def _stall_on(self) -> web.StreamResponse | None:
        """The engine's death does not end what is to stall; None: this one is not."""
        assert self.stay is not None
        if not isinstance(self._ending, StallFault) or self.stay.refused != "engine_dead":
            return None
        await self.released
        return self.break_off()

    async def _complete(self, whole: wire.WholeAnswer, tokens: int, choices: int = 1) -> web.StreamResponse:
        if isinstance(self._ending, StreamErrorFault):
            return await self.refuse(500, _FAILED)
        row, body = self._row, self._noisy(whole.body)
        count, stop = max(tokens, 1), self._stop(max(tokens, 1))
        part = len(body) if stop is None else min(len(body) * stop // count, len(body) - 1)
        length = part if isinstance(self._ending, TruncatedFault) and self.cut_after_tokens is None else len(body)
        headers = {**self._headers(), **(whole.headers or {})}
        row.status = 200
        row.first_byte_s = time.monotonic()
        try:
            response = begin_whole(self._request, max(0, length + self._wrong), whole.content_type, headers)
            for piece in self._pieces(body[:part], len(body), count):
                await self._pace()
                send_piece(self._request, piece)
                row.bytes_out += len(piece)
                made = -(-row.bytes_out * count // len(body))  # rounded up, as the part was rounded down
                row.tokens_out = 0 if self._garbage else min(made, tokens) * choices
        except ClientConnectionResetError:
            row.outcome = RowOutcome.CLIENT_GONE
            return GONE
        if self.cut_after_tokens is not None:
            return self.break_off()
        if isinstance(self._ending, StallFault):
            await self.released
            return self.break_off()
        broken = self._ending is not None or self._wrong != 0
        row.outcome = RowOutcome.CUT if broken else RowOutcome.ANSWERED
        return GONE if self._wrong else response

    def _pieces(self, part: bytes, length: int, count: int) -> Iterator[bytes]:
        """The part of a body of ``length`` bytes at once, or as many of its ``count`` pieces as there are in it."""
        if not self._drip:
            yield part
            return
        for number in range(count):
            piece = part[length * number // count : length * (number + 1) // count]
            if piece:
                yield piece

    async def _pace(self) -> None:
        """Wait until the next token may go out."""
        if self._drip:
            if self._paced_s:
                await self._core.clock.sleep_until(self._paced_s)
            self._paced_s = time.monotonic() + self._drip

    def _noisy(self, data: bytes) -> bytes:
        return noise(f"{self._core.name}/{self.tag}", len(data)) if self._garbage else data


# -- reports -------------------------------------------------------------------------------------------------


def frozen_page(core: RunState) -> bytes:
    """Freeze the load figures of ``core`` under its fault ``metrics``; returns the page of metrics as of now."""
    state = core.faults.freeze(core.engine.figures())
    return metrics.page(state, core.tally, core.setup, core.adapters_in_use(), time.time())


def misreported(core: RunState, call: ApiCall, reply: ApiReply, page: bytes) -> ApiReply:
    """A reply to a health check as the faults that concern reports leave it; ``page`` is what was frozen."""
    faults, path = core.faults, call.path.rstrip("/")
    if path in _LIVENESS and reply.status == 200 and faults.hit(NotAliveFault.kind):
        return replace(reply, status=503)
    how = faults.figures
    if not how or path not in _FIGURES or reply.status not in (200, 503) or not faults.hit(MetricsFault.kind):
        return reply
    match how:
        case "garbage":
            body = noise(f"{core.name}{path}", max(len(reply.body), _LEAST_NOISE))
            return replace(reply, body=body)
        case "missing" if path == "/health":
            return replace(reply, body=b"")
        case "missing":
            text = f"no such path: {call.method} {call.path}"
            return ApiReply(wire.error(text, "not_found", "not_found"), 404)
        case _:
            return replace(reply, body=page) if path == "/metrics" else reply
