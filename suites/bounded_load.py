"""Bounded load: one hot key fills its home backend up to the bound, spills to other backends, and returns home."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.claims.features import BoundedLoad, Breaker, Claims, Ejection, HealthChecks, HealthShare, Hedge, Retry
from harness.evidence.history import History
from harness.evidence.queries import RequestSelection
from harness.evidence.tables import Times
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.model import Failure, Keys, Load, ModelServer, Phase, Scenario, Stream, UnsupportedError
from suites.margins import BOOKKEEPING_S, margins_s
from suites.scenarios import ENOUGH, key_carrier, too_few_reached

MASKS = (Retry, Hedge)
OTHERS = (Breaker, Ejection, HealthChecks, HealthShare)

SERVICE_S = 0.05
HOT_PER_S, CROWD_PER_S = 320.0, 80.0
"""With SERVICE_S: 16 requests of the hot key in flight, and 4 of all others."""

HOT_SHARE = HOT_PER_S / (HOT_PER_S + CROWD_PER_S)
MARGIN = 0.75
"""Largest bound as a share of the hot key's requests in flight; a larger bound would hardly be reached."""

RUSH_S = 1.5
ALONE_REQUESTS, ALONE_PER_S = 10, 10.0
REST_S = 0.3
QUIET_S = 0.075
"""A request met an idle fleet if none had been in progress for this long before it, as clients saw it.

This is nearly the whole time between two of them, so a balancer's counts may lag by as much.
"""

CROWD_KEYS = 200


def hot_key(claims: Claims) -> Scenario:
    """A key alone in an idle fleet; then a rush of it (16 in flight) among others (4 in flight); then alone again.

    Answers take 50 ms in the rush, 2.5 ms outside it. With four backends and a factor of 1.25 a backend may have 7 in
    flight, while the hot key's home would have 17.
    """
    backends = claims.fleet(4, at_least=3)
    factor = claims[BoundedLoad].factor
    if factor / backends > MARGIN * HOT_SHARE:
        raise UnsupportedError(f"with a factor of {factor:g} one of {backends} backends may take nearly all load")
    server = ModelServer()
    tokens = round(SERVICE_S / server.decode_step_s)
    rush_start_s = 0.1 + ALONE_REQUESTS / ALONE_PER_S
    rush_end_s = rush_start_s + RUSH_S
    again_start_s = rush_end_s + SERVICE_S + REST_S

    def alone(name: str, start_s: float) -> Stream:
        return Stream(name, start_s, ALONE_PER_S, ALONE_REQUESTS, Keys(1, "sweep"))

    def rush(name: str, rate_per_s: float, keys: Keys) -> Stream:
        requests = int(rate_per_s * RUSH_S)
        return Stream(name, rush_start_s, rate_per_s, requests, keys, arrivals="poisson", output_tokens=tokens)

    streams = (
        alone("alone", 0.1),
        rush("hot", HOT_PER_S, Keys(1, "sweep")),
        rush("crowd", CROWD_PER_S, Keys(CROWD_KEYS, "uniform")),
        alone("again", again_start_s),
    )
    return Scenario(
        name="hot-key",
        backends=backends,
        load=Load(streams, key_carrier(claims)),
        server=server,
        phases=(Phase("rush", rush_start_s, rush_end_s), Phase("again", again_start_s, streams[-1].end_s)),
        intervals_s=(QUIET_S,),
    )


def quiet_s(scenario: Scenario) -> float:
    """`QUIET_S` of `hot_key` in seconds, which may be scaled."""
    (interval_s,) = scenario.intervals_s
    return interval_s


# --- evidence -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RushArrival:
    """Arrival of a request of the rush at a backend.

    `in_flight` counts the backend's requests including this one; `bound` is the largest number allowed.
    """

    at_s: float
    backend: int
    in_flight: int
    bound: int


def bound_of(factor: float, total: int, backends: int) -> int:
    """ceil(factor × total ÷ backends); a product that differs from an integer only by rounding is not rounded up."""
    return math.ceil(factor * total / backends - 1e-9)


def arrivals_under_pressure(history: History, claims: Claims) -> list[RushArrival]:
    """The arrivals at backends while the hot key alone had more requests in flight than its home may have.

    A backend counts the requests that have arrived and not ended there; the balancer counted no fewer when it placed
    the last of these, at some time between this request's departure from its client and its arrival. The total in
    flight counts requests whose clients waited at some time in between, and those answered just before: at least as
    many as the balancer can have counted. So neither network time nor a late count can make a backend look above its
    bound when it was not.
    """
    scenario, sent = history.scenario, history.all_requests().sent_after(-np.inf)
    sent_times_s = np.sort(sent["sent_s"])
    ends_s = np.nan_to_num(sent["end_s"], nan=np.inf)
    counted_until_s = np.sort(ends_s + margins_s(history, BOOKKEEPING_S, ends_s))
    hot_s = np.sort(history.requests_in("hot")["sent_s"])
    service_s, factor = _service_s(scenario), claims[BoundedLoad].factor
    found: list[RushArrival] = []
    for number in range(len(scenario.backend_ids)):
        here = history.attempts_on(number)
        mine = here & _rush(history).attempts()
        times_s = zip(mine["start_s"].tolist(), mine.of_request("sent_s").tolist(), strict=True)
        for (at_s, sent_s), in_flight in zip(times_s, here.in_flight_at(mine["start_s"]).tolist(), strict=True):
            total = _until(sent_times_s, at_s) - int(np.searchsorted(counted_until_s, sent_s, side="left"))
            bound = bound_of(factor, total, scenario.backends)
            if _until(hot_s, at_s) - _until(hot_s, at_s - service_s) > bound:
                found.append(RushArrival(at_s, number, in_flight, bound))
    return sorted(found, key=lambda arrival: arrival.at_s)


def _rush(history: History) -> RequestSelection:
    """The requests of the rush."""
    return history.requests_in("hot", "crowd")


def _service_s(scenario: Scenario) -> float:
    """Service time of a hot key's request in the rush, in seconds."""
    hot, server = scenario.load.stream("hot"), scenario.server
    return hot.prompt_tokens / server.prefill_tokens_per_s + hot.output_tokens * server.decode_step_s


def _until(times_s: Times, at_s: float) -> int:
    """Number of sorted times that are no later than `at_s`."""
    return int(np.searchsorted(times_s, at_s, side="right"))


def _in_quiet(history: History, stream: str) -> RequestSelection:
    """Requests of a stream that were sent while no other request was in progress, or just had been."""
    requests, chosen = history.all_requests(), history.requests_in(stream)
    margin_s = quiet_s(history.scenario)
    sent_s, end_s = requests["sent_s"], requests["end_s"]
    others = [int(np.sum(~(end_s < at_s - margin_s) & (sent_s <= at_s))) - 1 for at_s in chosen["sent_s"]]
    return chosen.where(np.array(others) <= 0)


def _rejected(history: History) -> RequestSelection:
    """Requests in the rush that no backend saw and whose clients got no answer."""
    unanswered = _rush(history).unreached().lost()
    return unanswered.where(~np.isin(unanswered["failure"], (Failure.NOT_SENT, Failure.STALE_CONNECTION)))


# --- properties ---------------------------------------------------------------------------------------------


@declare(
    "bounded-load.hot-key.capped",
    needs=(BoundedLoad,),
    without=MASKS,
    off=OTHERS,
    scenario=hot_key,
)
def hot_key_capped(history: History, claims: Claims) -> Findings:
    """However hot a key is, no backend gets a request that puts it above ceil(factor × all in flight ÷ backends).

    The new request counts among all in flight. The check covers every arrival at which the hot key alone would have
    filled its home beyond the bound, with a finding for each second. Known violations: apache/dubbo#4103 and
    zalando/skipper#1769 (plain consistent hashing, for want of a bound); Envoy with hash_balance_factor 125 was
    measured at 1.8 times the mean.
    """
    arrivals = arrivals_under_pressure(history, claims)
    for second in sorted({int(arrival.at_s) for arrival in arrivals}):
        mine = [arrival for arrival in arrivals if int(arrival.at_s) == second]
        worst = max(mine, key=lambda arrival: arrival.in_flight - arrival.bound)
        above = sum(arrival.in_flight > arrival.bound for arrival in mine)
        yield held(
            not above,
            at_s=mine[0].at_s,
            until_s=mine[-1].at_s,
            observed=worst.in_flight,
            bound=worst.bound,
            sample=len(mine),
            note=f"{above} of {len(mine)} arrivals above the bound; gpu-{worst.backend} had {worst.in_flight} in"
            f" flight at {worst.at_s:.3f} s, bound {worst.bound}",
        )


@declare(
    "bounded-load.spill.not-rejected",
    needs=(BoundedLoad,),
    without=MASKS,
    off=OTHERS,
    scenario=hot_key,
)
def spill_not_rejected(history: History, claims: Claims) -> Findings:
    """A request whose home is full goes to another backend; it is not rejected while others have capacity.

    With a factor of 1 or more some backend always has capacity. A rejected request is one that no backend saw and that
    got no answer. Known violations: haproxy/haproxy#2893 (the cap was looked at after the server had been chosen),
    envoyproxy/envoy#11888 (a number of tries that need not meet a host with room).
    """
    arrivals = arrivals_under_pressure(history, claims)
    if not arrivals:
        return
    sent, rejected = len(_rush(history)), len(_rejected(history))
    yield held(
        not rejected,
        at_s=arrivals[0].at_s,
        until_s=arrivals[-1].at_s,
        observed=rejected,
        bound=0,
        sample=sent,
        note=f"{rejected} of {sent} requests were rejected in the rush",
    )


@declare(
    "bounded-load.spill.comes-home",
    needs=(BoundedLoad,),
    without=MASKS,
    off=OTHERS,
    scenario=hot_key,
)
def spill_comes_home(history: History, claims: Claims) -> Findings:
    """When the load is gone, requests of the hot key go to its home again, and not to the backends they spilled to.

    Its home is the backend it used before the rush. Only requests that were alone in the fleet count, one at a time, as
    a bounded hash moves keys whenever something is in flight. No public report is known. A balancer that remembers each
    spill as a session's new home would break it, and with every rush the keys' caches would move.
    """
    before = _in_quiet(history, "alone").reached().first_backends()
    after = _in_quiet(history, "again").reached().first_backends()
    pressure = arrivals_under_pressure(history, claims)
    if not (pressure and len(before) and len(after)):
        return
    if too_few := too_few_reached(history, "alone") or too_few_reached(history, "again"):
        yield undecided(too_few)
        return
    for when, count in (("before", len(before)), ("after", len(after))):
        if count < ENOUGH * ALONE_REQUESTS:
            yield undecided(f"only {count} of {ALONE_REQUESTS} requests {when} the rush met an idle fleet")
            return
    home = int(before[0])
    if (before != home).any():
        yield undecided(f"the hot key went to {len(np.unique(before))} backends before the rush: it has no home")
        return
    misplaced = int(np.count_nonzero(after != home))
    phase = history.scenario.phase("again")
    yield held(
        not misplaced,
        at_s=phase.start_s,
        until_s=phase.end_s,
        observed=misplaced,
        bound=0,
        sample=len(after),
        note=f"{misplaced} of {len(after)} requests after the rush did not go home to gpu-{home}",
    )
