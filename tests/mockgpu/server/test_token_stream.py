"""Token streams driven by clock callbacks: each token when it is due, and the conditions that stop a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import ClientConnectionResetError

from mockgpu.api.wire import Events
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import LogRow, RowKind, RowOutcome
from mockgpu.server.clock import Clock
from mockgpu.server.engine import Engine, JobHandle, Progress
from mockgpu.server.raw_http import EventStream
from mockgpu.server.token_stream import TokenStream
from tests.mockgpu.fault_calls import ask, part_of

STEP_S = 0.005
SETUP = Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 1e9, STEP_S))
EVENTS = Events(before=b"<", after=b">", last_after=b"!", closing=b"")


class Sink:
    """Receives events in place of a connection; ``full`` and ``gone`` are numbers of events until it is so."""

    def __init__(self, full: int = 1_000, gone: int = 1_000) -> None:
        self.received: list[tuple[bytes, float]] = []
        self._full, self._gone = full, gone

    def put(self, data: bytes) -> bool:
        if len(self.received) == self._gone:
            raise ClientConnectionResetError("gone")
        self.received.append((data, time.monotonic()))
        return len(self.received) == self._full


def with_job(test: Callable[[Engine, JobHandle, Clock], Awaitable[None]], tokens: int = 10) -> None:
    async def main() -> None:
        clock = Clock(asyncio.get_running_loop())
        engine = Engine(SETUP, clock, lambda _: None)
        handle = engine.submit("inference", "m", 0, tokens)
        await handle.until(Progress.FIRST_TOKEN)
        await test(engine, handle, clock)
        clock.close()

    asyncio.run(main())


def token_stream_of(handle: JobHandle, clock: Clock, sink: Sink, choices: int = 1) -> tuple[TokenStream, LogRow]:
    row = LogRow(RowKind.INFERENCE, 0.0, "POST")
    return TokenStream(handle, clock, cast(EventStream, sink), EVENTS, row, choices), row


def test_each_token_goes_out_when_it_is_due_and_not_before() -> None:
    async def test(engine: Engine, handle: JobHandle, clock: Clock) -> None:
        sink = Sink()
        token_stream, row = token_stream_of(handle, clock, sink, choices=3)
        assert await token_stream.send(0, 6) == 6
        assert await token_stream.send(6, 9) == 9
        assert [data for data, _ in sink.received] == [b"<%d>" % number for number in range(9)]
        for number, (_, at_s) in enumerate(sink.received):
            assert at_s >= handle.started_s + (number + 1) * STEP_S - 1e-9
        assert (row.bytes_out, row.tokens_out) == (9 * 3, 9 * 3)
        await handle.until(Progress.ENDED)
        assert await token_stream.send(9, 10) == 10, "due tokens are sent immediately"

    with_job(test)


def test_it_stops_where_the_client_is_far_behind_or_has_gone() -> None:
    async def test(engine: Engine, handle: JobHandle, clock: Clock) -> None:
        token_stream, row = token_stream_of(handle, clock, Sink(full=3, gone=5))
        assert await token_stream.send(0, 9) == 3
        with pytest.raises(ClientConnectionResetError):
            await token_stream.send(3, 9)
        assert row.tokens_out == 5, "no more than were sent"

    with_job(test)


def test_it_stops_when_the_job_fails_and_sends_nothing_after_it_was_cancelled() -> None:
    async def test(engine: Engine, handle: JobHandle, clock: Clock) -> None:
        sink = Sink()
        token_stream, _ = token_stream_of(handle, clock, sink)
        left = asyncio.create_task(token_stream.send(0, 900))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        sent = len(sink.received)
        await clock.sleep_until(time.monotonic() + 3 * STEP_S)
        assert len(sink.received) == sent
        streaming = asyncio.create_task(token_stream.send(sent, 900))
        await asyncio.sleep(0)
        engine.die()
        assert await streaming < 900
        assert handle.refused == "engine_dead"

    with_job(test, tokens=1_000)


def test_a_waiter_for_a_token_learns_immediately_that_the_job_has_failed() -> None:
    """A token takes a quarter of an hour here."""

    async def main() -> None:
        clock = Clock(asyncio.get_running_loop())
        engine = Engine(Setup(SETUP.gpu, Model("any", 0, 0.0, 1e9, 900.0)), clock, lambda _: None)
        handles = [engine.submit("inference", "m", 0, 5) for _ in range(2)]
        token_stream, _ = token_stream_of(handles[0], clock, Sink())
        streaming = asyncio.create_task(token_stream.send(0, 4))
        sleeping = asyncio.create_task(handles[1].sleep_until(time.monotonic() + 900.0, clock))
        await asyncio.sleep(0)
        engine.die()
        async with asyncio.timeout(20):
            assert await streaming == 0
            await sleeping
        clock.close()

    asyncio.run(main())


def test_a_client_that_reads_late_gets_every_token_in_order(serve: Any) -> None:
    """The server must stop when the connection's buffer is full, and continue later."""
    tokens = 60_000  # more than the kernel buffers

    async def test(it: Any) -> None:
        body = ask(stream=True, max_tokens=tokens)
        got, reader, writer = await part_of(it, body, lambda got: b'"token": 0' in got)
        (connection,) = (each for each in it.backend._runner.server.connections if each._current_request is not None)
        await it.until(lambda: connection.transport.get_write_buffer_size() > 65_536)
        assert connection.transport.get_write_buffer_size() < 70_000, "it waits for the client"
        parts = [got]
        async with asyncio.timeout(20):
            while not parts[-1].endswith(b"0\r\n\r\n"):
                parts.append(await reader.read(1 << 20))
        writer.close()
        numbers = [int(part.partition(b",")[0]) for part in b"".join(parts).split(b'"token": ')[1:]]
        assert numbers == list(range(tokens))
        await it.until(lambda: it.rows()[-1].outcome is RowOutcome.ANSWERED)

    serve(test, Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 1e9, 1e-6)))
