"""How many requests a second the simulator plays on one core, held to SimPy on the same queues without any balancer.

The model is M/M/c, once for each backend: Poisson arrivals, a service time as near to exponential as a mix of streams
of fixed sizes comes, c slots. SimPy plays just that. Ours also reads every request as the live world would, runs the
whole reference balancer and both ways of the network, and makes the history; `play` is timed as a whole. CPU time of
one process, in turns, medians; the figures themselves are printed (`-s`) and gate nothing.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import simpy

from harness.balancer.picking.ring import HashRing
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.settings import SWITCHES, EjectionSettings, Settings, SlowStartSettings
from harness.evidence.history import History
from harness.scenario.arrivals import key_name
from harness.scenario.model import Keys, Load, ModelServer, Scenario, Stream
from harness.sim.world import play
from harness.targets.reference import SUITE_PROFILE, ReferenceTarget
from tests.bench.quiet import Gate

BACKENDS = 8
SLOTS = 4
MEAN_S = 0.02
UTILISATION = 0.5
RATE_PER_S = BACKENDS * SLOTS * UTILISATION / MEAN_S
PREFILL_TOKENS_PER_S = 2000.0
REQUESTS = 20_000
SIZES = 10
KEYS = 100
SEED = 1
ROUNDS = 5

OF_SIMPY_RING_AND_BREAKER = 0.15
OF_SIMPY_ALL_ON = 0.08

RING_AND_BREAKER = SUITE_PROFILE.without(SWITCHES - {"breaker"})
ALL_ON = replace(
    SUITE_PROFILE,
    ejection=EjectionSettings(cap_share=0.5),
    limits=AdmissionSettings(BucketSettings(1e5, 1e4), BucketSettings(1e7, 1e6), concurrency=1000, queue=1000),
    slow_start=SlowStartSettings(1.0),
)

"""With limits that are asked for every request and never reached."""


class Adjusted(ReferenceTarget):
    """The reference with any settings, whatever of them can be claimed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings


def tokens() -> list[int]:
    """Prompt tokens of the streams: the middles of equal parts of the exponential distribution."""
    return [round(-math.log(1 - (part + 0.5) / SIZES) * MEAN_S * PREFILL_TOKENS_PER_S) for part in range(SIZES)]


def scenario() -> Scenario:
    """One Poisson stream for each size, all at the same rate."""
    streams = tuple(
        Stream(
            f"size-{number}",
            0.0,
            RATE_PER_S / SIZES,
            REQUESTS // SIZES,
            keys=Keys(KEYS),
            arrivals="poisson",
            prompt_tokens=size,
            output_tokens=0,  # a prefill alone: one stage of service, as in the model
        )
        for number, size in enumerate(tokens())
    )
    server = ModelServer(max_running=SLOTS, prefill_tokens_per_s=PREFILL_TOKENS_PER_S)
    return Scenario("m-m-c", BACKENDS, Load(streams), server=server)


def by_ours(settings: Settings) -> History:
    """Played by the simulator, through the reference."""
    return play(Adjusted(settings), scenario(), SEED)


def by_simpy() -> list[float]:
    """Times in the system, each request at the server that a ring gives its key."""
    ring = HashRing()
    ring.set_members([f"gpu-{number}" for number in range(BACKENDS)])
    homes = ring.owners([key_name(SEED, key) for key in range(KEYS)])[0].tolist()
    generator = Random(1)
    world = simpy.Environment()
    servers = [simpy.Resource(world, SLOTS) for _ in range(BACKENDS)]
    stays_s: list[float] = []

    def request() -> simpy.events.ProcessGenerator:
        arrived_s = world.now
        with servers[homes[generator.randrange(KEYS)]].request() as slot:
            yield slot
            yield world.timeout(generator.expovariate(1 / MEAN_S))
        stays_s.append(world.now - arrived_s)

    def arrivals() -> simpy.events.ProcessGenerator:
        for _ in range(REQUESTS):
            yield world.timeout(generator.expovariate(RATE_PER_S))
            world.process(request())

    world.process(arrivals())
    world.run()
    return stays_s


def rate_per_s(run: Callable[[], object]) -> float:
    """Requests per second of CPU time."""
    gc.collect()
    start_s = time.process_time()
    run()
    return REQUESTS / (time.process_time() - start_s)


Rates = dict[str, list[float]]
"""Requests per second, one entry for each round."""


def of_simpy(rates: Rates, name: str) -> float:
    """Median over rounds of a rate as a share of SimPy's in the same round."""
    return statistics.median(ours / theirs for ours, theirs in zip(rates[name], rates["SimPy"], strict=True))


@pytest.fixture(scope="module")
def rates() -> Rates:
    """All three in turns."""
    found: Rates = {"SimPy": [], "ring and breaker": [], "all on": []}
    for _ in range(ROUNDS):
        found["SimPy"].append(rate_per_s(by_simpy))
        found["ring and breaker"].append(rate_per_s(lambda: by_ours(RING_AND_BREAKER)))
        found["all on"].append(rate_per_s(lambda: by_ours(ALL_ON)))
    for name, measured in found.items():
        print(f"\n{name}: {statistics.median(measured):.0f} requests/s, {of_simpy(found, name):.3f} of SimPy's", end="")
    return found


def test_ring_and_breaker(rates: Rates, gate: Gate) -> None:
    ratio = of_simpy(rates, "ring and breaker")
    gate.require(ratio >= OF_SIMPY_RING_AND_BREAKER, f"{ratio:.3f} of SimPy, at least {OF_SIMPY_RING_AND_BREAKER}")


def test_all_mechanisms(rates: Rates, gate: Gate) -> None:
    ratio = of_simpy(rates, "all on")
    gate.require(ratio >= OF_SIMPY_ALL_ON, f"{ratio:.3f} of SimPy, at least {OF_SIMPY_ALL_ON}")


def test_both_play_the_same_queues() -> None:
    """So that the rates compare like with like: nearly the same mean time in the system, and every request served."""
    history = by_ours(RING_AND_BREAKER)
    assert set(history.requests["status"]) == {200}
    ours_s = float(np.mean(history.attempts["end_s"] - history.attempts["start_s"]))
    assert ours_s == pytest.approx(statistics.mean(by_simpy()), rel=0.25)
    assert float(np.mean(history.attempts["service_actual_s"])) == pytest.approx(MEAN_S, rel=0.1)


def test_all_mechanisms_leave_such_a_load_alone() -> None:
    assert set(by_ours(ALL_ON).requests["status"]) == {200}
