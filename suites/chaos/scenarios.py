"""Scenarios of whole-system runs under a fault plan. Declares no property."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.chaos.fault_plans import FAULT_PLANS
from harness.claims.features import Breaker, Claims, Ejection, Failover, HealthChecks
from harness.scenario.faults import Kill, Restart, Step, heals_at_s
from harness.scenario.model import Chats, Keys, Kind, Load, Scenario, Stream
from suites.scenarios import key_carrier, methods

BEFORE_S = 1.0
"""Start of the fault plan."""

AFTER_S = 0.75
"""Length of the run after everything must have recovered."""

START_S = 0.75
"""Time added to a run in which a process ends, for the start of the new process."""

FOR_S = 1.5
"""Length of most fault plans."""

RATE_PER_S = 100.0
UPDATES_PER_S = 20.0
KEYS = 200
PATIENCE_S = 2.0

CROWD = "crowd"
"""Stream of the virtual users of a node crash."""

VIRTUAL_USERS = 30
THINK_S = 0.1

SPARE_DEVIATIONS = 2.0
"""Number of requests above the expected number, in standard deviations, that makes a stream last long enough."""


def recovery_s(claims: Claims) -> float:
    """Longest claimed time in seconds until the balancer uses everything again after a fault has healed.

    The candidates are the failover time, a breaker's longest open time, the ejection time, and the time of the good
    health checks that a return takes.
    """
    times_s = [claims[Failover].within_s] if Failover in claims else []
    if Breaker in claims:
        times_s.append(claims[Breaker].longest_open_s)
    if Ejection in claims:
        times_s.append(claims[Ejection].open_s)
    if HealthChecks in claims:
        checks = claims[HealthChecks]
        times_s.append(checks.healthy * checks.interval_s + checks.timeout_s)
    return max(times_s, default=0.0)


def over_s(steps: Sequence[Step]) -> float:
    """Time at which the last step has been taken and the last fault has healed, in seconds of the run."""
    ends_s = [heals_at_s(step) or step.at_s + (getattr(step, "for_s", None) or 0.0) for step in steps]
    return max(ends_s, default=0.0)


def under(name: str, steps: tuple[Step, ...], backends: int, claims: Claims) -> Scenario:
    """A scenario of `steps` under inference by key (GET and POST in turn if the target passes both) and updates.

    It lasts until everything has had its claimed time to recover, and `AFTER_S` longer.
    """
    starts_s = START_S if any(isinstance(step, Kill | Restart) for step in steps) else 0.0
    end_s = over_s(steps) + starts_s + recovery_s(claims) + AFTER_S
    streams = [
        Stream(
            name="traffic",
            start_s=0.0,
            rate_per_s=RATE_PER_S,
            requests=_enough(RATE_PER_S, end_s),
            keys=Keys(KEYS, "uniform"),
            arrivals="poisson",
            methods=methods(claims),
            timeout_s=PATIENCE_S,
        )
    ]
    if claims.protocol == "http":
        requests = _enough(UPDATES_PER_S, end_s)
        streams.append(
            Stream("updates", 0.0, UPDATES_PER_S, requests, None, "poisson", Kind.UPDATE, timeout_s=PATIENCE_S)
        )
    intervals_s = [claims[Ejection].open_s] if Ejection in claims else []
    intervals_s += [claims[Breaker].open_s] if Breaker in claims else []
    intervals_s += [claims[Failover].within_s] if Failover in claims else []
    intervals_s += [claims[HealthChecks].interval_s] if HealthChecks in claims else []
    return Scenario(
        name=name,
        backends=backends,
        load=Load(tuple(streams), key_carrier(claims)),
        timeline=steps,
        intervals_s=tuple(intervals_s),
    )


def fault_plan(name: str, want: int, claims: Claims, for_s: float) -> Scenario:
    """A named fault plan of `for_s` seconds on `want` backends, or on as many as the target has."""
    backends = claims.fleet(want)
    names = tuple(f"gpu-{number}" for number in range(backends))
    return under(name, FAULT_PLANS[name](names, BEFORE_S, for_s), backends, claims)


def planned(name: str, want: int, for_s: float = FOR_S) -> Callable[[Claims], Scenario]:
    """The scenario of a fault plan whose length does not depend on the claims, as a property's `scenario`."""

    def scenario(claims: Claims) -> Scenario:
        return fault_plan(name, want, claims, for_s)

    return scenario


def blackhole(claims: Claims) -> Scenario:
    """One of three backends accepts connections and is silent for as long as a failover may take, at least 1.5 s."""
    return fault_plan("blackhole", 3, claims, max(FOR_S, claims[Failover].within_s))


def node_crash(claims: Claims) -> Scenario:
    """One of three backends is killed and returns 1.5 s later, under open-loop and closed-loop load.

    The closed loop has 30 virtual users that wait for their answers and think for 0.1 s on average.
    """
    scenario = fault_plan("node-crash", 3, claims, FOR_S)
    chats = Chats(VIRTUAL_USERS, THINK_S, scenario.end_s)
    rate_per_s = VIRTUAL_USERS / THINK_S
    crowd = Stream(CROWD, 0.0, rate_per_s, KEYS, Keys(KEYS, "uniform"), timeout_s=PATIENCE_S, chats=chats)
    return replace(scenario, load=replace(scenario.load, streams=(*scenario.load.streams, crowd)))


def _enough(rate_per_s: float, until_s: float) -> int:
    """Number of Poisson arrivals that lasts until `until_s` in all but one of some 100,000 runs (AFTER_S helps)."""
    expected = rate_per_s * until_s
    return int(expected + SPARE_DEVIATIONS * math.sqrt(expected))
