"""One request at a backend, from its body to the last byte of its answer, all of it noted in its row of the log."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time

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
# Closing with this set sends a reset at once and drops what was not sent yet.
_NO_LINGER = struct.pack("ii", 1, 0)


class Visit:
    """A request to be served: waits for its stay to progress and writes the answer, noting all in its row."""

    __slots__ = ("_backend", "_clock", "_created", "_request", "_row", "stay", "tag")

    def __init__(self, backend: str, clock: Clock, created: int, request: BaseRequest, row: Row) -> None:
        self._backend = backend
        self._clock = clock
        self._created = created
        self._request = request
        self._row = row
        self.tag = row.tag
        self.stay: Stay | None = None

    async def update(self) -> web.StreamResponse:
        """Answer when the update is done."""
        if not await self._come_to(Stage.ENDED):
            return await self._refuse()
        return await self.reply(200, wire.update_done(tag=self.tag, backend=self._backend))

    async def whole(self, ask: wire.Ask) -> web.StreamResponse:
        """Answer when all tokens are there."""
        if not await self._come_to(Stage.ENDED):
            return await self._refuse()
        body = wire.completion(ask, tag=self.tag, backend=self._backend, created=self._created)
        return await self.reply(200, body)

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
            for number in range(ask.output_tokens - 1):
                await self._clock.sleep_until(stay.first_token_s + number * stay.decode_step_s)
                await response.write(events.token)
                row.bytes_out += len(events.token)
            await self._come_to(Stage.ENDED)
            ending = events.last_token if ask.output_tokens else b""
            if ending:
                await response.write(ending)
            await response.write(events.tail)
            row.bytes_out += len(ending) + len(events.tail)
            await response.write_eof()
            row.outcome = Outcome.ANSWERED
        except ClientConnectionResetError:
            row.outcome = Outcome.CLIENT_GONE
        return response

    async def reply(self, status: int, body: bytes) -> web.StreamResponse:
        """Answer with a JSON body."""
        response = web.Response(status=status, body=body, headers=self._headers(), content_type=_JSON)
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
