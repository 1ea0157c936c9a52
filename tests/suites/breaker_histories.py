"""Hand-written histories of breakers: the backend, the end and the duration of each request.

Key k belongs to backend k modulo n. All calls have the same service time and network delay, so that every figure of a
check can be computed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.claims.features import Affinity, Backoff, Breaker, Claims
from harness.evidence.history import History, empty_requests
from harness.evidence.tables import ATTEMPT
from harness.scenario.arrivals import Arrival, draw
from harness.scenario.faults import FailingStatus
from harness.scenario.model import Ending, Failure, Scenario
from suites.breaker.scenarios import all_fail, one_fails
from tests.suites.histories import SEED, on_time

NETWORK_DELAY_S = 0.001
TOOK_S = 0.002

BREAKER = Breaker(
    failures=5,
    error_rate=0.5,
    minimum_calls=20,
    window_s=2.0,
    slow_p99_s=0.25,
    open_s=0.5,
    probes=1,
    successes=2,
    backoff=Backoff(multiplier=2.0, max_s=1.5, jitter=0.2),
)
CLAIMS = Claims((Affinity(), BREAKER))


def claiming(breaker: Breaker) -> Claims:
    """Claims of affinity and of this breaker."""
    return Claims((Affinity(), breaker))


@dataclass(frozen=True, slots=True)
class Fate:
    """The backend of a request (None: the balancer rejected it), its end there and its service time."""

    backend: int | None
    status: int = 200
    took_s: float = TOOK_S
    ending: Ending = Ending.ANSWERED


FateOf = Callable[[Arrival], Fate]


def played(scenario: Scenario, fate_of: FateOf) -> History:
    """A history: each request is sent when due; a client has its answer one network delay after the backend's end."""
    arrivals = draw(scenario.load, SEED)
    requests = empty_requests(len(arrivals))
    attempts = []
    for number, arrival in enumerate(arrivals):
        fate, row = fate_of(arrival), requests[number]
        for name in ("stream", "kind", "method", "key", "connection"):
            row[name] = getattr(arrival, name)
        row["intended_s"] = row["sent_s"] = arrival.at_s
        row["failure"] = Failure.TIMEOUT if fate.ending is Ending.CLIENT_GONE else Failure.NONE
        row["status"] = 503 if fate.backend is None else fate.status
        start_s = arrival.at_s + NETWORK_DELAY_S
        end_s = start_s + (0.0 if fate.backend is None else fate.took_s)
        row["first_byte_s"] = row["end_s"] = end_s + NETWORK_DELAY_S
        if fate.backend is None:
            continue
        attempt = np.zeros(1, dtype=ATTEMPT)[0]
        attempt["request"], attempt["backend"], attempt["status"] = number, fate.backend, fate.status
        attempt["ending"], attempt["start_s"], attempt["end_s"] = fate.ending, start_s, end_s
        attempts.append(attempt)
    table = np.array(attempts, dtype=ATTEMPT)
    table = table[np.argsort(table["start_s"], kind="stable")]
    return History(scenario, SEED, requests, table, steps=on_time(scenario))


class FaultyBackend:
    """A backend that fails in [fails_s, healed_s) behind a breaker with given open times.

    `failures` in a row trip it. `took_s`: how long a good probe takes.
    """

    def __init__(
        self,
        number: int,
        fails_s: float,
        healed_s: float,
        opens_s: Sequence[float],
        failures: int = 5,
        successes: int = 2,
    ) -> None:
        self.number = number
        self.trips: list[float] = []
        self._fails_s, self._healed_s = fails_s, healed_s
        self._opens_s = opens_s
        self._failures, self._successes = failures, successes
        self._run = self._good = 0
        self._open_until_s: float | None = None

    def fate(self, at_s: float) -> Fate | None:
        """The fate of a request sent at `at_s`; None if the breaker is open."""
        probe = self._open_until_s is not None
        if self._open_until_s is not None and at_s < self._open_until_s:
            return None
        if not self._fails_s <= at_s < self._healed_s:
            self._good += 1
            if probe and self._good >= self._successes:
                self._open_until_s = None
            return Fate(self.number)
        self._run += 1
        if probe or self._run == self._failures:
            trip_s = at_s + NETWORK_DELAY_S + TOOK_S
            self._open_until_s = trip_s + self._opens_s[min(len(self.trips), len(self._opens_s) - 1)]
            self.trips.append(trip_s)
            self._good = 0
        return Fate(self.number, 500)


def behind(backends: int, *faulty: FaultyBackend) -> FateOf:
    """Requests go to the owner of their key, else to the next backend whose breaker is not open, else nowhere."""
    by_number = {item.number: item for item in faulty}

    def fate_of(arrival: Arrival) -> Fate:
        for step in range(backends):
            number = (arrival.key + step) % backends
            fate = by_number[number].fate(arrival.at_s) if number in by_number else Fate(number)
            if fate is not None:
                return fate
        return Fate(None)

    return fate_of


def but(fate_of: FateOf, chosen: Callable[[Arrival], bool], fate: Fate) -> FateOf:
    """As `fate_of`, with `fate` for chosen arrivals."""
    return lambda arrival: fate if chosen(arrival) else fate_of(arrival)


def noisy(history: History, slack_s: float) -> History:
    """The same history with this slack in every second."""
    return replace(history, slack_s=np.full(int(history.scenario.end_s) + 1, slack_s))


# --- one_fails and all_fail --------------------------------------------------------------------------------

ONE = one_fails(CLAIMS)
ALL = all_fail(CLAIMS)
FAILS = next(step for step in ONE.timeline if isinstance(step, FailingStatus))
FAILS_S, HEALED_S = FAILS.at_s, FAILS.at_s + (FAILS.for_s or 0.0)


def one_faulty(*opens_s: float) -> tuple[History, FaultyBackend]:
    """gpu-0 fails and heals behind a breaker with these open times."""
    faulty = FaultyBackend(0, FAILS_S, HEALED_S, opens_s or (0.5, 1.0, 1.4))
    return played(ONE, behind(3, faulty)), faulty


def with_one_at(at_s: float, fate: Fate) -> History:
    """As `one_faulty`, but the first request of gpu-0's keys from `at_s` on has this fate."""
    faulty = FaultyBackend(0, FAILS_S, HEALED_S, (0.5, 1.0, 1.4))
    chosen: list[int] = []

    def is_chosen(arrival: Arrival) -> bool:
        if not chosen and arrival.at_s >= at_s and arrival.key % 3 == 0:
            chosen.append(arrival.number)
        return arrival.number in chosen

    return played(ONE, but(behind(3, faulty), is_chosen, fate))


def failing_fleet(*opens_s: tuple[float, ...]) -> History:
    """Four backends fail, each with its own open times."""
    fails_s = ALL.phase("failing").start_s
    faulty = [FaultyBackend(number, fails_s, math.inf, opens) for number, opens in enumerate(opens_s)]
    return played(ALL, behind(4, *faulty))


def fleet(first_s: float, second_s: float = 1.0) -> History:
    """Four failing backends with the same open times."""
    return failing_fleet(*[(first_s, second_s)] * 4)
