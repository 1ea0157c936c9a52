"""Hand-written histories of breakers: for each request where it went, how that ended and when.

Key k belongs to backend k modulo n. What a call took, and the way to the backend and back, are the same for all; so
that every figure that a check reads off can be told beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.claims.features import Affinity, Backoff, Breaker, Claims
from harness.evidence.history import ATTEMPT, History, empty_requests
from harness.scenario.arrivals import Arrival, draw
from harness.scenario.model import Ending, Failure, Scenario
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
    """Affinity and this breaker."""
    return Claims((Affinity(), breaker))


@dataclass(frozen=True, slots=True)
class Fate:
    """Where a request went (None: the balancer rejected it), and how it ended there after how long."""

    backend: int | None
    status: int = 200
    took_s: float = TOOK_S
    ending: Ending = Ending.ANSWERED


FateOf = Callable[[Arrival], Fate]


def played(scenario: Scenario, fate_of: FateOf) -> History:
    """Each request is sent when due; a client has its answer one hop after its backend gave it."""
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


class Sick:
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
        """What becomes of a request sent now; None: the breaker is open."""
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


def behind(backends: int, *sick: Sick) -> FateOf:
    """Requests go to the home of their key, else to the next backend whose breaker is not open, else nowhere."""
    ill = {item.number: item for item in sick}

    def fate_of(arrival: Arrival) -> Fate:
        for step in range(backends):
            number = (arrival.key + step) % backends
            fate = ill[number].fate(arrival.at_s) if number in ill else Fate(number)
            if fate is not None:
                return fate
        return Fate(None)

    return fate_of


def but(fate_of: FateOf, chosen: Callable[[Arrival], bool], fate: Fate) -> FateOf:
    """As `fate_of`, and `fate` for those that are chosen."""
    return lambda arrival: fate if chosen(arrival) else fate_of(arrival)


def noisy(history: History, slack_s: float) -> History:
    """The same with this slack in every second."""
    return replace(history, slack_s=np.full(int(history.scenario.end_s) + 1, slack_s))
