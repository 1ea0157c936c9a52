"""What one whole decision of the reference balancer costs, and that it hardly grows with the number of backends.

A decision is what the gateway asks of its members for one attempt: ring, bounded load and breakers, with requests in
flight; and, with every mechanism as it is by default, from the pick to the end of the attempt. Each is held to the
least that any ring must do in the same run, one hash and one binary search. A figure is that of the quickest of several
rounds, since what else runs only ever adds to it; microseconds are printed (`-s`) and gate nothing.
"""

from __future__ import annotations

import math
import random
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import count
from typing import TypeVar

import pytest
import xxhash

from harness.balancer.health.breaker import Settled
from harness.balancer.members import Members
from harness.balancer.settings import Settings
from harness.gateway.protocol import Backend, Request
from harness.scenario.model import Kind
from tests.bench.quiet import Gate

NODES = 150
SIZES = (8, 64, 1000)
IN_FLIGHT_EACH = 3
REQUESTS = 2000
ROUNDS = 15
CALLS_EACH = 25
LATENCY_S = 0.01
NOBODY: frozenset[str] = frozenset()

Key = TypeVar("Key")

OVER_LOOK_UP = 20.0
"""A decision costs at most so many bare look-ups on a ring of the same size; measured less than half of it."""
OVER_LOG = 1.5
"""Growth allowed beyond that of log(points)."""

OVER_LOOK_UP_WHOLE = 100.0
"""The same from a pick to the end of its attempt, with all mechanisms; measured half of it."""
WHOLE_GROWTH = 4.0
"""Growth of that from 8 to 1,000 backends: all are looked at ten times a second. At every pick it would be 20."""
EVERY_S = 50e-6
"""Time between requests in it: a round of them is a tenth of a second, and all stay in the windows of the scores."""

ON_RING = Settings(health_checks=None, health_share=None, hedge=None, retry=None, sessions=None, spread="two_choices")


def requests(kind: Kind) -> list[Request]:
    """Each with a model of its own."""
    return [Request(number, 1, kind, "POST", f"model-{number}") for number in range(REQUESTS)]


def busy_members(backends: int) -> Members:
    """Members with some requests in flight."""
    members = Members(ON_RING, random.Random(1))
    members.set_backends(tuple(Backend(f"gpu-{number}", "") for number in range(backends)), 0.0)
    for number in range(IN_FLIGHT_EACH * backends):
        name = members.pick(Request(number, 1, Kind.INFERENCE, "POST", f"early-{number}"), NOBODY, 0.0)
        assert name is not None
        members.begin(name, 8, 0.0)
    return members


def quickest_us(calls: Mapping[Key, Callable[[], None]]) -> dict[Key, float]:
    """What one of the `REQUESTS` steps of each takes in its quickest round; in turn, as busy spells strike all."""
    rounds: dict[Key, list[float]] = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, call in calls.items():
            start_s = time.perf_counter()
            call()
            rounds[key].append((time.perf_counter() - start_s) / REQUESTS * 1e6)
    return {key: min(found) for key, found in rounds.items()}


def decisions(backends: int, kind: Kind = Kind.INFERENCE) -> Callable[[], None]:
    """A round of decisions among so many."""
    members, asked = busy_members(backends), requests(kind)

    def decide() -> None:
        for request in asked:
            members.pick(request, NOBODY, 1.0)

    return decide


def look_ups(backends: int) -> Callable[[], None]:
    """A round of hashes and binary searches, which is what a ring of so many backends must do at least."""
    generator = random.Random(2)
    points = array("Q", sorted(generator.getrandbits(64) for _ in range(backends * NODES)))
    keys = [request.model for request in requests(Kind.INFERENCE)]

    def look_up() -> None:
        for key in keys:
            bisect_left(points, xxhash.xxh64_intdigest(key.encode()))

    return look_up


def warm_members(backends: int) -> Members:
    """Members by default, each with answers enough to have a p99, a little different from everybody else's."""
    members = Members(Settings(), random.Random(1))
    members.set_backends(tuple(Backend(f"gpu-{number}", "") for number in range(backends)), 0.0)
    for number in range(backends):
        for _ in range(CALLS_EACH):
            members.end(members.begin(f"gpu-{number}", 8, 0.0), Settled.OK, LATENCY_S + 1e-6 * number)
    return members


def services(backends: int, kind: Kind) -> Callable[[], None]:
    """A round of picks among so many, each with its attempt's beginning and end, while time goes on."""
    members, asked, clock = warm_members(backends), requests(kind), count(1)

    def serve() -> None:
        for request in asked:
            now_s = LATENCY_S + next(clock) * EVERY_S
            name = members.pick(request, NOBODY, now_s)
            assert name is not None
            members.end(members.begin(name, 8, now_s), Settled.OK, now_s + LATENCY_S)

    return serve


Measured = dict[tuple[str, int], float]
"""Microseconds by what was done and the number of backends."""


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Of a decision on the ring, an update's, a whole service of each, and a bare look-up."""
    calls: dict[tuple[str, int], Callable[[], None]] = {}
    for backends in SIZES:
        calls["pick", backends] = decisions(backends)
        calls["update", backends] = decisions(backends, Kind.UPDATE)
        calls["look-up", backends] = look_ups(backends)
        calls["pick to end", backends] = services(backends, Kind.INFERENCE)
        calls["update to end", backends] = services(backends, Kind.UPDATE)
    found = quickest_us(calls)
    for (what, backends), cost_us in found.items():
        ratio = cost_us / found["look-up", backends]
        print(f"\n{what} among {backends}: {cost_us:.2f} us, {ratio:.1f} look-ups", end="")
    return found


@pytest.mark.parametrize("backends", SIZES)
def test_a_decision_costs_a_few_look_ups(measured: Measured, backends: int, gate: Gate) -> None:
    ratio = measured["pick", backends] / measured["look-up", backends]
    gate.require(ratio <= OVER_LOOK_UP, f"{ratio:.1f} look-ups, at most {OVER_LOOK_UP}")


def test_a_decision_grows_no_faster_than_the_logarithm(measured: Measured, gate: Gate) -> None:
    fewest, most = SIZES[0], SIZES[-1]
    growth = math.log(most * NODES) / math.log(fewest * NODES)
    ratio = measured["pick", most] / measured["pick", fewest]
    gate.require(ratio <= growth * OVER_LOG, f"{ratio:.2f} times, at most {growth * OVER_LOG:.2f}")


def test_updates_do_not_look_at_everybody(measured: Measured, gate: Gate) -> None:
    """Two choices draw two, however many there are."""
    ratio = measured["update", SIZES[-1]] / measured["update", SIZES[0]]
    gate.require(ratio <= OVER_LOG, f"{ratio:.2f} times, at most {OVER_LOG}")


@pytest.mark.parametrize("what", ["pick to end", "update to end"])
def test_with_default_settings_nobody_looks_at_everybody_for_each_pick(
    measured: Measured, what: str, gate: Gate
) -> None:
    for backends in SIZES:
        ratio = measured[what, backends] / measured["look-up", backends]
        gate.require(ratio <= OVER_LOOK_UP_WHOLE, f"{ratio:.1f} look-ups, at most {OVER_LOOK_UP_WHOLE}")
    growth = measured[what, SIZES[-1]] / measured[what, SIZES[0]]
    gate.require(growth <= WHOLE_GROWTH, f"{growth:.2f} times, at most {WHOLE_GROWTH}")
