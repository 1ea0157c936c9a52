"""One request at a backend, from its body to the last byte of its answer, all of it noted in its row of the log."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import ClientConnectionResetError, web
from aiohttp.web_request import BaseRequest

from mockgpu import faults, wire
from mockgpu.clock import Clock
from mockgpu.engine import Stage, Stay
from mockgpu.log import Outcome, Row, body_hash_of
from mockgpu.tags import hex_of

_JSON = "application/json"
_REFUSALS = {
    "queue_full": "the waiting queue is full",
    "out_of_memory": "the model does not fit into the memory",
}
_NONE: Mapping[str, str] = MappingProxyType({})
# Closing with this set sends a reset at once and drops what was not sent yet.
_NO_LINGER = struct.pack("ii", 1, 0)


class Visit:
    """A request to be served: waits for its stay to progress and writes the answer, noting all in its row.

    ``cut_after_tokens``: the answer breaks off there, see ``mockgpu.faults.Cut``; None: it does not.
    """

    __slots__ = ("_backend", "_clock", "_created", "_request", "_row", "cut_after_tokens", "stay", "tag")

    def __init__(self, backend: str, clock: Clock, created: int, request: BaseRequest, row: Row) -> None:
        self._backend = backend
        self._clock = clock
        self._created = created
        self._request = request
        self._row = row
        self.tag = row.tag
        self.stay: Stay | None = None
        self.cut_after_tokens: int | None = None

    async def update(self) -> web.StreamResponse:
        """Answer when the update is done."""
        if not await self._come_to(Stage.ENDED):
            return await self._refuse()
        return await self._complete(wire.update_done(tag=self.tag, backend=self._backend), tokens=0)

    async def whole(self, ask: wire.Ask) -> web.StreamResponse:
        """Answer when all tokens are there."""
        if not await self._come_to(Stage.ENDED):
            return await self._refuse()
        body = wire.completion(ask, tag=self.tag, backend=self._backend, created=self._created)
        return await self._complete(body, ask.output_tokens)

    async def stream(self, ask: wire.Ask) -> web.StreamResponse:
        """Answer with an event per token, each at its own time, which does not depend on the one before."""
        if not await self._come_to(Stage.FIRST_TOKEN):
            return await self._refuse()
        stay = self.stay
        assert stay is not None
        row = self._row
        events = wire.chunks(ask, tag=self.tag, backend=self._backend, created=self._created)
        response = web.StreamResponse(headers=self._headers())
        response.content_type = "text/event-stream"
        row.status = 200
        row.first_byte_s = time.monotonic()
        try:
            await response.prepare(self._request)
            sent_whole = ask.output_tokens if self.cut_after_tokens is None else self.cut_after_tokens
            for number in range(min(sent_whole, ask.output_tokens - 1)):
                await self._clock.sleep_until(stay.first_token_s + number * stay.decode_step_s)
                await response.write(events.token)
                row.bytes_out += len(events.token)
            if sent_whole >= ask.output_tokens:
                await self._come_to(Stage.ENDED)
                ending = events.last_token if ask.output_tokens else b""
                if ending:
                    await response.write(ending)
                row.bytes_out += len(ending)
            if self.cut_after_tokens is not None:
                self.break_off()
                return response
            await response.write(events.tail)
            row.bytes_out += len(events.tail)
            await response.write_eof()
            row.outcome = Outcome.ANSWERED
        except ClientConnectionResetError:
            row.outcome = Outcome.CLIENT_GONE
        return response

    async def _complete(self, body: bytes, tokens: int) -> web.StreamResponse:
        """Answer what was served, or that part of it after which it is to be cut; never all of it then."""
        cut = self.cut_after_tokens
        if cut is None:
            return await self.reply(200, body)
        row = self._row
        part = body[: min(len(body) * cut // max(tokens, 1), len(body) - 1)]
        response = web.StreamResponse(headers=self._headers())
        response.content_type = _JSON
        response.content_length = len(body)
        row.status = 200
        row.first_byte_s = time.monotonic()
        try:
            await response.prepare(self._request)
            await response.write(part)
            row.bytes_out = len(part)
            self.break_off()
        except ClientConnectionResetError:
            row.outcome = Outcome.CLIENT_GONE
        return response

    def break_off(self) -> None:
        """Reset the connection, whatever has been sent."""
        self._row.outcome = Outcome.CUT
        transport = self._request.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            transport.abort()

    async def fail(self, lot: faults.Answer) -> web.StreamResponse:
        """Answer as a fault has it."""
        text = "the capacity is used up" if lot.refused else f"a fault answers {lot.status}"
        headers = {}
        if lot.retry_after_s is not None:
            headers["Retry-After"] = str(math.ceil(lot.retry_after_s))
        response = await self.reply(lot.status, wire.error(text, "service_unavailable", "fault"), headers)
        if lot.refused and self._row.outcome is Outcome.ANSWERED:
            self._row.outcome = Outcome.REFUSED
        return response

    async def reply(self, status: int, body: bytes, headers: Mapping[str, str] = _NONE) -> web.StreamResponse:
        """Answer with a JSON body."""
        response = web.Response(status=status, body=body, headers={**self._headers(), **headers}, content_type=_JSON)
        self._row.status = status
        self._row.bytes_out = len(body)
        await send(self._request, response, self._row)
        return response

    async def _come_to(self, stage: Stage) -> bool:
        """Wait for a stage and note what is known by then; False if the job was refused."""
        stay, row = self.stay, self._row
        assert stay is not None
        try:
            await stay.until(stage)
        finally:
            if stay.stage >= Stage.STARTED and not stay.refused:
                row.cold = int(stay.cold)
                row.queue_wait_s = stay.queue_wait_s
        if stay.refused:
            return False
        if stay.stage is Stage.ENDED:
            row.service_actual_s = time.monotonic() - stay.started_s
        return True

    async def _refuse(self) -> web.StreamResponse:
        assert self.stay is not None
        reason = self.stay.refused
        response = await self.reply(503, wire.error(_REFUSALS[reason], "service_unavailable", reason))
        if self._row.outcome is Outcome.ANSWERED:
            self._row.outcome = Outcome.REFUSED
        return response

    def _headers(self) -> dict[str, str]:
        headers = {"x-backend-id": self._backend, "x-mock-cold": str(self._row.cold)}
        if self.tag:
            headers["x-mock-tag"] = hex_of(self.tag)
        return headers


async def read_body(request: BaseRequest, row: Row) -> bytes:
    """The whole body, however large."""
    if "expect" in request.headers and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        body = await request.content.read()
    except (web.RequestPayloadError, ConnectionError) as error:
        raise wire.BadRequestError(f"the body broke off: {error}") from None
    row.bytes_in = len(body)
    row.body_hash = body_hash_of(body)
    return body


async def send(request: BaseRequest, response: web.Response, row: Row) -> None:
    """Write a whole response; a client that has gone is noted, not raised."""
    row.first_byte_s = time.monotonic()
    try:
        await response.prepare(request)
        await response.write_eof()
        row.outcome = Outcome.ANSWERED
    except ClientConnectionResetError:
        row.outcome = Outcome.CLIENT_GONE
        row.status = row.bytes_out = 0
