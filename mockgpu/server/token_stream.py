"""Token streams driven by clock callbacks: each event is sent from the callback when its token is due.

Waking a task per token would cost a future and another iteration of the event loop, including its poll of all sockets:
about a fifth of the total cost of an event.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import ClientConnectionResetError

from mockgpu.api.wire import Events
from mockgpu.server.attempt_log import LogRow
from mockgpu.server.clock import Clock, Timer
from mockgpu.server.engine import JobHandle
from mockgpu.server.raw_http import EventStream


class TokenStream:
    """Sends the tokens of one stream except the last and updates ``row``; one event has a token of each choice."""

    __slots__ = ("_choices", "_clock", "_done", "_end", "_events", "_handle", "_number", "_row", "_stream", "_timer")

    def __init__(
        self, handle: JobHandle, clock: Clock, stream: EventStream, events: Events, row: LogRow, choices: int
    ) -> None:
        self._handle = handle
        self._clock = clock
        self._stream = stream
        self._events = events
        self._row = row
        self._choices = choices
        self._number = self._end = 0
        self._timer: Timer | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(self, number: int, end: int) -> int:
        """Send the tokens ``number`` to ``end`` - 1, each when it is due; returns the first token not sent.

        That is less than ``end`` if the job was preempted or has failed, or the client is far behind. Raises
        ClientConnectionResetError if the client has left.
        """
        self._number, self._end = number, end
        self._done = asyncio.get_running_loop().create_future()
        self._send_due()
        self._handle.complete_at_end(self._done)
        try:
            await self._done
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return self._number

    def _send_due(self) -> None:
        """Send the due tokens and schedule the next call; a due time may move later when the batch changes."""
        if self._done.done():
            return
        handle, row = self._handle, self._row
        try:
            while self._number < self._end and not handle.refused:
                due_s = handle.token_due_s(self._number)
                if due_s is None:
                    break
                if due_s > time.monotonic():
                    self._timer = self._clock.call_at(due_s, self._send_due)
                    return
                event = self._events.token(self._number, False)
                behind = self._stream.put(event)
                self._number += 1
                row.bytes_out += len(event)
                row.tokens_out = self._number * self._choices
                if behind:
                    break
        except ClientConnectionResetError as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)
