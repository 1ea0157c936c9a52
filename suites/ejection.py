"""Passive ejection: who fails in a row gets nothing for a while, and never are too many out at once."""

from __future__ import annotations

import numpy as np

from harness.claims.features import BoundedLoad, Breaker, Claims, Ejection, HealthChecks, HealthShare, Hedge, Retry
from harness.evidence.history import History, Mask, Times
from harness.property.declare import declare
from harness.property.findings import Findings, held
from harness.scenario.faults import FailingStatus
from harness.scenario.model import Keys, Load, Phase, Scenario, Stream, UnsupportedError
from suites.scenarios import key_carrier

MASKS = (Retry, Hedge, Breaker)
"""A second attempt, which is no failure of its own to a backend's count, and what takes a backend away as well."""

OTHERS = (BoundedLoad, HealthChecks, HealthShare)

START_S = 0.1
RATE_PER_S = 200.0
KEYS = Keys(200, "sweep")
FAILURE = 500
FAILING = "failing"

STAYS = 2.5
"""So many times the claimed time of an ejection lasts a fault: two ejections come to their end."""

TRAVEL_S = 0.02
"""Over sockets, what is on its way between balancer and backend may differ by so much beside the measured slack."""

WINDOW_SHARE = 0.25
"""Of the time of an ejection: who gets nothing for so long is taken for one that is out."""

LEAST_IN_WINDOW = 25
"""Requests for each backend in such a window, so that nobody in rotation goes without by chance."""


def _failing(name: str, claims: Claims, backends: int, sick: int) -> Scenario:
    ejection = claims[Ejection]
    if FAILURE not in ejection.statuses:
        raise UnsupportedError(f"an answer of {FAILURE} is not claimed to count as a failure")
    rate_per_s = max(RATE_PER_S, LEAST_IN_WINDOW * backends / (WINDOW_SHARE * ejection.open_s))
    lasts_s = STAYS * ejection.open_s + 4 * ejection.failures * backends / rate_per_s
    if rate_per_s > 2000 or lasts_s > 20:
        raise UnsupportedError(f"ejections of {ejection.open_s:g} s are too short or too long to be seen")
    traffic = Stream("traffic", START_S, rate_per_s, int(lasts_s * rate_per_s), KEYS)
    return Scenario(
        name=name,
        backends=backends,
        load=Load((traffic,), key_carrier(claims)),
        timeline=tuple(FailingStatus(f"gpu-{number}", START_S / 2, FAILURE) for number in range(sick)),
        phases=(Phase(FAILING, START_S, START_S + lasts_s),),
        intervals_s=(ejection.open_s,),
    )


def one_fails(claims: Claims) -> Scenario:
    """One backend fails every request."""
    return _failing("one-fails-in-a-row", claims, claims.fleet(4), sick=1)


def many_fail(claims: Claims) -> Scenario:
    """All backends but one fail every request, which are more than may be out."""
    if claims[Ejection].cap_share is None:
        raise UnsupportedError("no cap is claimed")
    backends = claims.fleet(4, at_least=3)
    if claims[Ejection].most_ejected(backends) >= backends - 1:
        raise UnsupportedError(f"a cap of {claims[Ejection].cap_share:g} is none for {backends} backends")
    return _failing("many-fail-in-a-row", claims, backends, sick=backends - 1)


def _late_s(history: History) -> float:
    """By how much the times of what backends saw may differ from those in the balancer; 0 in virtual time."""
    slack_s = history.worst_slack_s(0.0, history.scenario.end_s)
    return slack_s + TRAVEL_S if slack_s else 0.0


@declare("ejection.out.gets-nothing", needs=(Ejection,), without=MASKS, off=OTHERS, scenario=one_fails)
def out_gets_nothing(history: History, claims: Claims) -> Findings:
    """After the claimed number of failures in a row a backend gets nothing for the claimed time.

    A finding for each ejection: the last of so many failures is followed by no attempt until the time is over. What had
    been sent before is no breach. Seen broken: a default share of 10 % of four backends, measured, ejected nobody.
    """
    fault = history.step("FailingStatus", "gpu-0")
    if fault is None:
        return
    ejection, late_s = claims[Ejection], _late_s(history)
    mine = history.attempts[(history.attempts["backend"] == fault.backend) & (history.attempts["request"] >= 0)]
    over_s, end_s = -np.inf, history.scenario.phase(FAILING).end_s
    while True:
        failed_s = np.sort(mine["end_s"][(mine["start_s"] >= over_s - late_s) & (mine["status"] == FAILURE)])
        if len(failed_s) < ejection.failures:
            return
        began_s = float(failed_s[ejection.failures - 1])
        over_s = began_s + ejection.open_s
        if over_s > end_s:
            return
        during = (mine["start_s"] > began_s + late_s) & (mine["start_s"] < over_s - late_s)
        strays = int(np.count_nonzero(during))
        note = (
            f"gpu-{fault.backend} had failed {ejection.failures} in a row at {began_s:.2f} s: {strays} in its time out"
        )
        yield held(strays == 0, began_s, strays, 0, until_s=over_s, note=note)


@declare("ejection.cap.never-more", needs=(Ejection,), without=MASKS, off=OTHERS, scenario=many_fail)
def cap_never_more(history: History, claims: Claims) -> Findings:
    """However many backends fail, no more than the claimed share of them is out at once, though one always may be.

    Failures that hit nearly everybody are rarely the backends' own. Who gets nothing for a quarter of the claimed time
    is taken for one that is out, as each in rotation is due 25 requests in that, on average. Judged is the worst
    moment, if anyone was out at all. Seen broken: istio/istio#20135 (all were ejected, and nothing was left).
    """
    ejection, scenario = claims[Ejection], history.scenario
    phase, window_s = scenario.phase(FAILING), WINDOW_SHARE * ejection.open_s
    attempts = history.attempts[history.attempts["request"] >= 0]
    moments_s = np.arange(phase.start_s + window_s, phase.end_s, window_s / 10)
    out = np.zeros(len(moments_s), dtype=np.int64)
    for number in range(scenario.backends):
        out += _silent(np.sort(attempts["start_s"][attempts["backend"] == number]), moments_s, window_s)
    # The last one never fails, so it is never out: where it got nothing either, something stood still on the way.
    healthy = np.sort(attempts["start_s"][attempts["backend"] == scenario.backends - 1])
    out[_silent(healthy, moments_s, window_s)] = 0
    if not len(out) or not out.any():
        return
    worst = int(out.argmax())
    seen, most, at_s = int(out[worst]), ejection.most_ejected(scenario.backends), float(moments_s[worst])
    note = (
        f"{seen} of {scenario.backends} backends got nothing for {window_s:g} s until {at_s:.2f} s, at most {most} may"
    )
    yield held(seen <= most, at_s - window_s, seen, most, until_s=at_s, note=note)


def _silent(times_s: Times, moments_s: Times, window_s: float) -> Mask:
    """At which moments none of `times_s` (sorted) lies in the window before."""
    until = np.searchsorted(times_s, moments_s, "right")
    silent: Mask = until == np.searchsorted(times_s, moments_s - window_s, "left")
    return silent
