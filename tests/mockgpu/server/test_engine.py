"""The model on a real clock: progress of job handles and waiters. test_server.py tests the timing itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from mockgpu.gpu.catalogue import Setup, setup_of
from mockgpu.gpu.events import Evicted, Loaded, Loading
from mockgpu.server.clock import Clock
from mockgpu.server.engine import Engine, Progress

FULL = setup_of("tiny-full", "tiny-full").scaled(0.1)
Events = list[Loading | Loaded | Evicted]


def run(test: Callable[[Engine, Events], Awaitable[None]], setup: Setup = FULL) -> None:
    async def main() -> None:
        clock = Clock(asyncio.get_running_loop())
        events: Events = []
        engine = Engine(setup, clock, events.append)
        try:
            await asyncio.wait_for(test(engine, events), 20)
        finally:
            clock.close()

    asyncio.run(main())


def test_a_stay_knows_when_each_token_is_due() -> None:
    async def test(engine: Engine, _: Events) -> None:
        cold = engine.submit("inference", "m", 100, 5)
        assert cold.token_due_s(0) is None  # its model is not loaded
        await cold.until(Progress.ENDED)
        handle = engine.submit("inference", "m", 100, 5)
        due_s = [handle.token_due_s(number) for number in range(5)]
        await handle.until(Progress.ENDED)
        assert [due_s[0], due_s[4]] == pytest.approx([handle.first_token_s, handle.ended_s], abs=1e-9)
        assert handle.token_due_s(4) == handle.ended_s <= time.monotonic()
        assert [(one.cold, one.batch) for one in (cold, handle)] == [(True, 1), (False, 1)]

    run(test)


def test_a_first_token_that_was_due_counts_though_its_client_leaves() -> None:
    async def test(engine: Engine, _: Events) -> None:
        firsts: list[float] = []
        engine._on_first_token = lambda model, after_s: firsts.append(after_s)
        await engine.submit("inference", "m", 100, 1).until(Progress.ENDED)
        handle = engine.submit("inference", "m", 100, 5)
        due_s = handle.token_due_s(0)
        assert due_s is not None
        while time.monotonic() < due_s:  # busy waiting, so that no callback runs
            pass
        engine.leave(handle)
        assert len(firsts) == 2

    run(test)


def test_a_stay_knows_its_batch_and_what_was_cached() -> None:
    async def test(engine: Engine, _: Events) -> None:
        blocks = (1, 2, 3, 4)
        first = engine.submit("inference", "m", 65, 1, prompt_blocks=blocks)
        await first.until(Progress.ENDED)
        handles = [engine.submit("inference", "m", 65, 3_000, prompt_blocks=blocks) for _ in range(2)]
        assert [(handle.batch, handle.cached_tokens) for handle in handles] == [(1, 64), (2, 64)]
        engine.invalidate("m")
        third = engine.submit("inference", "m", 65, 1, prompt_blocks=blocks)
        assert (third.batch, third.cached_tokens) == (3, 0)
        for handle in (*handles, third):
            engine.leave(handle)
        assert engine.state().running == 0

    run(test)


def test_preemptions_are_counted_and_the_tokens_still_come() -> None:
    # Five blocks; both start when the model is loaded.
    setup = replace(FULL, gpu=replace(FULL.gpu, kv_share=0.008)).scaled(20)

    async def test(engine: Engine, _: Events) -> None:
        handles = [engine.submit("inference", "m", 16, 40) for _ in range(2)]
        for handle in handles:
            await handle.until(Progress.ENDED)
        assert [handle.refused for handle in handles] == ["", ""]
        assert engine.state().preemptions == 1

    run(test, setup)


def test_models_are_loaded_and_unloaded_by_order() -> None:
    async def test(engine: Engine, events: Events) -> None:
        engine.load("m")
        assert engine.model_states()["m"] == "loading"
        await engine.until(lambda: engine.model_states()["m"] == "ready")
        engine.pin("m", True)
        engine.evict()
        assert engine.state().models == ("m",)
        engine.unload("m")
        assert engine.model_states()["m"] == "unavailable"
        assert [type(event) for event in events] == [Loading, Loaded, Evicted]
        assert engine.submit("inference", "m", 1, 1).refused == "not_found"

    run(test)


def test_waiters_are_asked_again_after_everything_that_happens() -> None:
    async def test(engine: Engine, _: Events) -> None:
        engine.sleep(1)
        await asyncio.gather(*(engine.until(lambda: engine.state().asleep_level == 1) for _ in range(2)))
        handle = engine.submit("inference", "m", 1, 1)
        assert handle.progress is Progress.WAITING
        impatient = asyncio.ensure_future(engine.until(lambda: False))
        await asyncio.sleep(0)
        impatient.cancel()
        engine.wake()
        await engine.until(lambda: engine.state().asleep_level == 0)
        await handle.until(Progress.ENDED)
        assert handle.refused == ""

    run(test)


def test_adapters_are_managed() -> None:
    async def test(engine: Engine, _: Events) -> None:
        engine.load_adapter("x", "m")
        handle = engine.submit("inference", "m", 1, 1, adapter="x")
        await handle.until(Progress.ENDED)
        assert engine.state().adapters == (("x", "m"),)
        engine.unload_adapter("x")
        assert engine.submit("inference", "m", 1, 1, adapter="x").refused == "not_found"

    run(test)


def test_updates_take_the_time_of_their_kind() -> None:
    async def test(engine: Engine, _: Events) -> None:
        embedding = engine.submit("update", "m", 0, 0)
        weights = engine.submit("update", "m", 0, 0, update="weights")
        for handle in (embedding, weights):
            await handle.until(Progress.ENDED)
            assert handle.ended_s - handle.started_s == pytest.approx(handle.service_asked_s, abs=1e-9)
        assert (embedding.service_asked_s, weights.service_asked_s) == pytest.approx((0.0002, 0.002))

    run(test)
