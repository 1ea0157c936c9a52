"""The model on a real clock: what stays and waiters are told. Timing itself is judged in test_server.py."""

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
Told = list[Loading | Loaded | Evicted]


def run(test: Callable[[Engine, Told], Awaitable[None]], setup: Setup = FULL) -> None:
    async def main() -> None:
        clock = Clock(asyncio.get_running_loop())
        told: Told = []
        engine = Engine(setup, clock, told.append)
        try:
            await asyncio.wait_for(test(engine, told), 20)
        finally:
            clock.close()

    asyncio.run(main())


def test_a_stay_knows_when_each_token_is_due() -> None:
    async def test(engine: Engine, _: Told) -> None:
        cold = engine.submit("inference", "m", 100, 5)
        assert cold.token_due_s(0) is None  # its model is not there
        await cold.until(Progress.ENDED)
        stay = engine.submit("inference", "m", 100, 5)
        due_s = [stay.token_due_s(number) for number in range(5)]
        await stay.until(Progress.ENDED)
        assert [due_s[0], due_s[4]] == pytest.approx([stay.first_token_s, stay.ended_s], abs=1e-9)
        assert stay.token_due_s(4) == stay.ended_s <= time.monotonic()
        assert [(one.cold, one.batch) for one in (cold, stay)] == [(True, 1), (False, 1)]

    run(test)


def test_a_first_token_that_was_due_counts_though_its_client_leaves() -> None:
    async def test(engine: Engine, _: Told) -> None:
        firsts: list[float] = []
        engine._on_first_token = lambda model, after_s: firsts.append(after_s)
        await engine.submit("inference", "m", 100, 1).until(Progress.ENDED)
        stay = engine.submit("inference", "m", 100, 5)
        due_s = stay.token_due_s(0)
        assert due_s is not None
        while time.monotonic() < due_s:  # so that no callback runs meanwhile
            pass
        engine.leave(stay)
        assert len(firsts) == 2

    run(test)


def test_a_stay_knows_its_batch_and_what_was_cached() -> None:
    async def test(engine: Engine, _: Told) -> None:
        blocks = (1, 2, 3, 4)
        first = engine.submit("inference", "m", 65, 1, prompt_blocks=blocks)
        await first.until(Progress.ENDED)
        stays = [engine.submit("inference", "m", 65, 3_000, prompt_blocks=blocks) for _ in range(2)]
        assert [(stay.batch, stay.cached_tokens) for stay in stays] == [(1, 64), (2, 64)]
        engine.invalidate("m")
        third = engine.submit("inference", "m", 65, 1, prompt_blocks=blocks)
        assert (third.batch, third.cached_tokens) == (3, 0)
        for stay in (*stays, third):
            engine.leave(stay)
        assert engine.state().running == 0

    run(test)


def test_preemptions_are_counted_and_the_tokens_still_come() -> None:
    # Five blocks; both start when the model is there.
    setup = replace(FULL, gpu=replace(FULL.gpu, kv_share=0.008)).scaled(20)

    async def test(engine: Engine, _: Told) -> None:
        stays = [engine.submit("inference", "m", 16, 40) for _ in range(2)]
        for stay in stays:
            await stay.until(Progress.ENDED)
        assert [stay.refused for stay in stays] == ["", ""]
        assert engine.state().preemptions == 1

    run(test, setup)


def test_models_are_loaded_and_unloaded_by_order() -> None:
    async def test(engine: Engine, told: Told) -> None:
        engine.load("m")
        assert engine.model_states()["m"] == "loading"
        await engine.until(lambda: engine.model_states()["m"] == "ready")
        engine.pin("m", True)
        engine.evict()
        assert engine.state().models == ("m",)
        engine.unload("m")
        assert engine.model_states()["m"] == "unavailable"
        assert [type(event) for event in told] == [Loading, Loaded, Evicted]
        assert engine.submit("inference", "m", 1, 1).refused == "not_found"

    run(test)


def test_waiters_are_asked_again_after_everything_that_happens() -> None:
    async def test(engine: Engine, _: Told) -> None:
        engine.sleep(1)
        await asyncio.gather(*(engine.until(lambda: engine.state().asleep_level == 1) for _ in range(2)))
        stay = engine.submit("inference", "m", 1, 1)
        assert stay.progress is Progress.WAITING
        impatient = asyncio.ensure_future(engine.until(lambda: False))
        await asyncio.sleep(0)
        impatient.cancel()
        engine.wake()
        await engine.until(lambda: engine.state().asleep_level == 0)
        await stay.until(Progress.ENDED)
        assert stay.refused == ""

    run(test)


def test_adapters_are_managed() -> None:
    async def test(engine: Engine, _: Told) -> None:
        engine.load_adapter("x", "m")
        stay = engine.submit("inference", "m", 1, 1, adapter="x")
        await stay.until(Progress.ENDED)
        assert engine.state().adapters == (("x", "m"),)
        engine.unload_adapter("x")
        assert engine.submit("inference", "m", 1, 1, adapter="x").refused == "not_found"

    run(test)


def test_updates_take_the_time_of_their_kind() -> None:
    async def test(engine: Engine, _: Told) -> None:
        embedding = engine.submit("update", "m", 0, 0)
        weights = engine.submit("update", "m", 0, 0, update="weights")
        for stay in (embedding, weights):
            await stay.until(Progress.ENDED)
            assert stay.ended_s - stay.started_s == pytest.approx(stay.service_asked_s, abs=1e-9)
        assert (embedding.service_asked_s, weights.service_asked_s) == pytest.approx((0.0002, 0.002))

    run(test)
