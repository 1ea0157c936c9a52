"""What one whole decision of the reference balancer costs, and that it hardly grows with the number of backends.

A decision is what the gateway asks of its members for one attempt: ring, bounded load and breakers, with requests in
flight. It is held to the least that any ring must do in the same run, one hash and one binary search; the figures in
microseconds are printed (`-s`) and gate nothing.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable

import pytest
import xxhash

from harness.balancer.members import Members
from harness.balancer.protocol import Backend, Request
from harness.balancer.settings import Settings
from harness.model import Kind

NODES = 150
SIZES = (8, 64, 1000)
IN_FLIGHT_EACH = 3
REQUESTS = 2000
ROUNDS = 15
NOBODY: frozenset[str] = frozenset()

OVER_LOOK_UP = 20.0
"""A decision costs at most so many bare look-ups on a ring of the same size; measured less than half of it."""
OVER_LOG = 1.5
"""Growth allowed beyond that of log(points)."""

ON_RING = Settings(checks=None, health=None, hedge=None, retry=None, sessions=None, update_policy="two_choices")


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


def microseconds(call: Callable[[], None], times: int) -> float:
    """The median over rounds of what one of `times` steps of `call` takes."""
    rounds = []
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        call()
        rounds.append((time.perf_counter() - start_s) / times * 1e6)
    return statistics.median(rounds)


def pick_us(backends: int, kind: Kind = Kind.INFERENCE) -> float:
    """Of a decision among so many."""
    members, asked = busy_members(backends), requests(kind)

    def decide() -> None:
        for request in asked:
            members.pick(request, NOBODY, 1.0)

    return microseconds(decide, REQUESTS)


def look_up_us(backends: int) -> float:
    """Of a hash and a binary search, which is what a ring of so many backends must do at least."""
    generator = random.Random(2)
    points = array("Q", sorted(generator.getrandbits(64) for _ in range(backends * NODES)))
    keys = [request.model for request in requests(Kind.INFERENCE)]

    def look_up() -> None:
        for key in keys:
            bisect_left(points, xxhash.xxh64_intdigest(key.encode()))

    return microseconds(look_up, REQUESTS)


@pytest.fixture(scope="module")
def measured() -> dict[int, tuple[float, float]]:
    """Microseconds of a decision and of a bare look-up, by number of backends."""
    found = {backends: (pick_us(backends), look_up_us(backends)) for backends in SIZES}
    for backends, (pick, look_up) in found.items():
        print(
            f"\n{backends} backends: pick {pick:.2f} us, look-up {look_up:.2f} us, ratio {pick / look_up:.1f}", end=""
        )
    return found


@pytest.mark.parametrize("backends", SIZES)
def test_a_decision_costs_a_few_look_ups(measured: dict[int, tuple[float, float]], backends: int) -> None:
    pick, look_up = measured[backends]
    assert pick / look_up <= OVER_LOOK_UP


def test_a_decision_grows_no_faster_than_the_logarithm(measured: dict[int, tuple[float, float]]) -> None:
    fewest, most = SIZES[0], SIZES[-1]
    growth = math.log(most * NODES) / math.log(fewest * NODES)
    assert measured[most][0] / measured[fewest][0] <= growth * OVER_LOG


def test_updates_do_not_look_at_everybody() -> None:
    """Two choices draw two, however many there are."""
    few, many = pick_us(SIZES[0], Kind.UPDATE), pick_us(SIZES[-1], Kind.UPDATE)
    print(f"\nupdate: {few:.2f} us among {SIZES[0]}, {many:.2f} us among {SIZES[-1]}", end="")
    assert many / few <= OVER_LOG
