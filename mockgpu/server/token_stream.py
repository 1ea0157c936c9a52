"""Streams that go by themselves: the clock's own callback sends each event when its token is due.

To wake a task for each token costs a future and a further turn of the event loop, with its look at all sockets: about a
fifth of what an event costs in all.
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
    """Sends tokens of one stream, all but the last; ``row`` is told of each. ``choices`` share every step."""

    __slots__ = ("_choices", "_clock", "_done", "_end", "_events", "_number", "_row", "_stay", "_stream", "_timer")

    def __init__(
        self, stay: JobHandle, clock: Clock, stream: EventStream, events: Events, row: LogRow, choices: int
    ) -> None:
        self._stay = stay
        self._clock = clock
        self._stream = stream
        self._events = events
        self._row = row
        self._choices = choices
        self._number = self._end = 0
        self._timer: Timer | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def feed(self, number: int, end: int) -> int:
        """Send the tokens from ``number`` to before ``end``, each when it is due; returns the first that was not sent.

        That is not ``end`` where the job has lost its place or ended, or the client is far behind. Raises
        ClientConnectionResetError if it has gone.
        """
        self._number, self._end = number, end
        self._done = asyncio.get_running_loop().create_future()
        self._go_on()
        self._stay.tell_end(self._done)
        try:
            await self._done
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return self._number

    def _go_on(self) -> None:
        """Send what is due and come back for the next; what else runs may have put that off."""
        if self._done.done():
            return
        stay, row = self._stay, self._row
        try:
            while self._number < self._end and not stay.refused:
                due_s = stay.token_due_s(self._number)
                if due_s is None:
                    break
                if due_s > time.monotonic():
                    self._timer = self._clock.call_at(due_s, self._go_on)
                    return
                event = self._events.token(self._number, False)
                behind = self._stream.put(event)
                self._number += 1
                row.bytes_out += len(event)
                row.tokens_out = self._number * self._choices
                if behind:
                    break
        except ClientConnectionResetError as gone:
            self._done.set_exception(gone)
        else:
            self._done.set_result(None)
