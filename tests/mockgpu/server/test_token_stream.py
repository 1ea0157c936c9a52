"""Streams that go by themselves: each token at its time, and what stops them."""

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
    """Takes events in place of a connection. ``full`` after so many, ``gone`` after so many."""

    def __init__(self, full: int = 1_000, gone: int = 1_000) -> None:
        self.seen: list[tuple[bytes, float]] = []
        self._full, self._gone = full, gone

    def put(self, data: bytes) -> bool:
        if len(self.seen) == self._gone:
            raise ClientConnectionResetError("gone")
        self.seen.append((data, time.monotonic()))
        return len(self.seen) == self._full


def feed(test: Callable[[Engine, JobHandle, Clock], Awaitable[None]], tokens: int = 10) -> None:
    async def main() -> None:
        clock = Clock(asyncio.get_running_loop())
        engine = Engine(SETUP, clock, lambda _: None)
        stay = engine.submit("inference", "m", 0, tokens)
        await stay.until(Progress.FIRST_TOKEN)
        await test(engine, stay, clock)
        clock.close()

    asyncio.run(main())


def feeder_of(stay: JobHandle, clock: Clock, sink: Sink, choices: int = 1) -> tuple[TokenStream, LogRow]:
    row = LogRow(RowKind.INFERENCE, 0.0, "POST")
    return TokenStream(stay, clock, cast(EventStream, sink), EVENTS, row, choices), row


def test_each_token_goes_out_when_it_is_due_and_not_before() -> None:
    async def test(engine: Engine, stay: JobHandle, clock: Clock) -> None:
        sink = Sink()
        feeder, row = feeder_of(stay, clock, sink, choices=3)
        assert await feeder.send(0, 6) == 6
        assert await feeder.send(6, 9) == 9
        assert [data for data, _ in sink.seen] == [b"<%d>" % number for number in range(9)]
        for number, (_, at_s) in enumerate(sink.seen):
            assert at_s >= stay.started_s + (number + 1) * STEP_S - 1e-9
        assert (row.bytes_out, row.tokens_out) == (9 * 3, 9 * 3)
        await stay.until(Progress.ENDED)
        assert await feeder.send(9, 10) == 10, "what is due already goes out at once"

    feed(test)


def test_it_stops_where_the_client_is_far_behind_or_has_gone() -> None:
    async def test(engine: Engine, stay: JobHandle, clock: Clock) -> None:
        feeder, row = feeder_of(stay, clock, Sink(full=3, gone=5))
        assert await feeder.send(0, 9) == 3
        with pytest.raises(ClientConnectionResetError):
            await feeder.send(3, 9)
        assert row.tokens_out == 5, "none more than went out"

    feed(test)


def test_it_stops_when_the_job_fails_and_sends_nothing_after_it_was_cancelled() -> None:
    async def test(engine: Engine, stay: JobHandle, clock: Clock) -> None:
        sink = Sink()
        feeder, _ = feeder_of(stay, clock, sink)
        left = asyncio.create_task(feeder.send(0, 900))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        sent = len(sink.seen)
        await clock.sleep_until(time.monotonic() + 3 * STEP_S)
        assert len(sink.seen) == sent
        feeding = asyncio.create_task(feeder.send(sent, 900))
        await asyncio.sleep(0)
        engine.die()
        assert await feeding < 900
        assert stay.refused == "engine_dead"

    feed(test, tokens=1_000)


def test_whoever_waits_for_a_token_is_told_at_once_that_the_job_has_failed() -> None:
    """A token takes a quarter of an hour here."""

    async def main() -> None:
        clock = Clock(asyncio.get_running_loop())
        engine = Engine(Setup(SETUP.gpu, Model("any", 0, 0.0, 1e9, 900.0)), clock, lambda _: None)
        stays = [engine.submit("inference", "m", 0, 5) for _ in range(2)]
        feeder, _ = feeder_of(stays[0], clock, Sink())
        feeding = asyncio.create_task(feeder.send(0, 4))
        sleeping = asyncio.create_task(stays[1].sleep_until(time.monotonic() + 900.0, clock))
        await asyncio.sleep(0)
        engine.die()
        async with asyncio.timeout(20):
            assert await feeding == 0
            await sleeping
        clock.close()

    asyncio.run(main())


def test_a_client_that_reads_late_gets_every_token_in_order(serve: Any) -> None:
    """The server must stop at what the connection holds, and go on."""
    tokens = 60_000  # more than the kernel holds

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
