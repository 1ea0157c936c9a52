"""Passive ejection: a backend that fails repeatedly gets nothing for a while, and ejections never exceed their cap."""

from __future__ import annotations

import numpy as np

from harness.claims.features import BoundedLoad, Breaker, Claims, Ejection, HealthChecks, HealthShare, Hedge, Retry
from harness.evidence.history import History
from harness.evidence.tables import Mask, Times
from harness.property.declare import declare
from harness.property.findings import Findings, held
from harness.scenario.faults import FailingStatus
from harness.scenario.model import Keys, Load, Phase, Scenario, Stream, UnsupportedError
from suites.margins import clock_difference_s
from suites.scenarios import key_carrier

MASKS = (Retry, Hedge, Breaker)
"""Second attempts, which are no separate failures in a backend's count, and another feature that removes a backend."""

OTHERS = (BoundedLoad, HealthChecks, HealthShare)

START_S = 0.1
RATE_PER_S = 200.0
KEYS = Keys(200, "sweep")
FAILURE = 500
FAILING = "failing"

FAULT_TIMES = 2.5
"""Duration of a fault in multiples of the claimed ejection time: two ejections end within it."""

WINDOW_SHARE = 0.25
"""Share of the ejection time after which a backend without requests counts as ejected."""

LEAST_IN_WINDOW = 25
"""Mean requests per backend in such a window, so that no backend in rotation goes without by chance."""


def _failing(name: str, claims: Claims, backends: int, sick: int) -> Scenario:
    """Scenario in which the first `sick` backends fail every request; UnsupportedError if claims rule it out."""
    ejection = claims[Ejection]
    if FAILURE not in ejection.statuses:
        raise UnsupportedError(f"an answer of {FAILURE} is not claimed to count as a failure")
    rate_per_s = max(RATE_PER_S, LEAST_IN_WINDOW * backends / (WINDOW_SHARE * ejection.open_s))
    lasts_s = FAULT_TIMES * ejection.open_s + 4 * ejection.failures * backends / rate_per_s
    if rate_per_s > 2000 or lasts_s > 20:
        raise UnsupportedError(f"ejections of {ejection.open_s:g} s are too short or too long to observe")
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
    """All backends but one fail every request: more than may be ejected."""
    if claims[Ejection].cap_share is None:
        raise UnsupportedError("no cap is claimed")
    backends = claims.fleet(4, at_least=3)
    if claims[Ejection].most_ejected(backends) >= backends - 1:
        raise UnsupportedError(f"a cap of {claims[Ejection].cap_share:g} limits nothing for {backends} backends")
    return _failing("many-fail-in-a-row", claims, backends, sick=backends - 1)


@declare("ejection.out.gets-nothing", needs=(Ejection,), without=MASKS, off=OTHERS, scenario=one_fails)
def out_gets_nothing(history: History, claims: Claims) -> Findings:
    """After the claimed number of consecutive failures a backend gets nothing for the claimed time.

    There is a finding for each ejection: no attempt follows the last of these failures until the time is over. Requests
    sent before the ejection are no violation. Known violations: a default share of 10 % of four backends, measured,
    ejected nobody.
    """
    fault = history.step("FailingStatus", "gpu-0")
    if fault is None:
        return
    ejection, margin_s = claims[Ejection], clock_difference_s(history)
    mine = history.attempts_on(fault.backend)
    over_s, end_s = -np.inf, history.scenario.phase(FAILING).end_s
    while True:
        failed_s = np.sort(mine.started_between(over_s - margin_s, np.inf).with_status(FAILURE)["end_s"])
        if len(failed_s) < ejection.failures:
            return
        began_s = float(failed_s[ejection.failures - 1])
        over_s = began_s + ejection.open_s
        if over_s > end_s:
            return
        during = mine.started_between(began_s + margin_s, over_s - margin_s)
        strays = len(during.where(during["start_s"] > began_s + margin_s))
        note = (
            f"gpu-{fault.backend} had failed {ejection.failures} in a row at {began_s:.2f} s:"
            f" {strays} attempts while ejected"
        )
        yield held(strays == 0, began_s, strays, 0, until_s=over_s, note=note)


@declare("ejection.cap.never-more", needs=(Ejection,), without=MASKS, off=OTHERS, scenario=many_fail)
def cap_never_more(history: History, claims: Claims) -> Findings:
    """However many backends fail, at most the claimed share of them is ejected at once, though one always may be.

    Failures at nearly all backends are rarely the backends' own fault. A backend that gets nothing for a quarter of the
    claimed time counts as ejected, as each backend in rotation is due 25 requests in that time on average. The worst
    moment is judged, if any backend was ejected. Known violations: istio/istio#20135 (all were ejected, and nothing was
    left).
    """
    ejection, scenario = claims[Ejection], history.scenario
    phase, window_s = scenario.phase(FAILING), WINDOW_SHARE * ejection.open_s
    moments_s = np.arange(phase.start_s + window_s, phase.end_s, window_s / 10)
    out = np.zeros(len(moments_s), dtype=np.int64)
    for number in range(scenario.backends):
        out += _silent(np.sort(history.attempts_on(number)["start_s"]), moments_s, window_s)
    # The last backend never fails and is never ejected: if it got nothing either, the network or the balancer stalled.
    healthy = np.sort(history.attempts_on(scenario.backends - 1)["start_s"])
    out[_silent(healthy, moments_s, window_s)] = 0
    if not len(out) or not out.any():
        return
    worst = int(out.argmax())
    observed, most, at_s = int(out[worst]), ejection.most_ejected(scenario.backends), float(moments_s[worst])
    note = (
        f"{observed} of {scenario.backends} backends got nothing for {window_s:g} s until {at_s:.2f} s;"
        f" at most {most} may be ejected"
    )
    yield held(observed <= most, at_s - window_s, observed, most, until_s=at_s, note=note)


def _silent(times_s: Times, moments_s: Times, window_s: float) -> Mask:
    """Moments with none of `times_s` (sorted) in the window before."""
    until = np.searchsorted(times_s, moments_s, "right")
    silent: Mask = until == np.searchsorted(times_s, moments_s - window_s, "left")
    return silent
