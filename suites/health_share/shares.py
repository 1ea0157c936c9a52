"""Health-weighted shares: a backend gets traffic in proportion to its health, neither all nor nothing.

The connections component is judged in suites.health_share.connections.
"""

from __future__ import annotations

import numpy as np

from harness.claims.features import (
    BoundedLoad,
    Breaker,
    Claims,
    Ejection,
    HealthChecks,
    HealthShare,
    Hedge,
    Retry,
    Spread,
)
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, sampled, undecided, within
from harness.stats import ALPHA
from suites.health_share.evidence import holdings, judge_share, picks, reported_at_s, tail_share, warmed
from suites.health_share.scenarios import (
    FAILING,
    HEALED,
    HEALTHY,
    HOLD,
    NOT_READY,
    READY_AGAIN,
    SICK,
    TAIL,
    TOUCH,
    WARM,
    detection_s,
    even_zone,
    failing_score,
    full_share,
    full_zone,
    one_fails,
    one_has_a_tail,
    one_holds_a_model,
    one_not_ready,
    recovered_zone,
    reported_s,
    return_s,
    returned_zone,
    share_of,
    tail_zone,
    warm_zone,
    weighed_zone,
)
from suites.margins import KNOWN_WITHIN_S, margin_s

MASKS = (Spread, Retry, Hedge, Breaker, Ejection)
"""A different policy, second attempts, and features that take a sick backend out of rotation."""

FEW = 50
"""With fewer requests than this, a backend without any is inconclusive."""

# --- healthy ------------------------------------------------------------------------------------------------


@declare(
    "health-share.healthy.even",
    needs=(HealthShare,),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_not_ready,
)
def healthy_even(history: History, claims: Claims) -> Findings:
    """While all backends are healthy, each gets an even share.

    A sequential test for each backend: within 10 % of 1/n against half as much or 1.5 times as much, false alarms 1e-4
    in all, power .999. Known violations: rounding of weights that leaves a backend without any
    (envoyproxy/envoy#19526).
    """
    phase = history.scenario.phase(HEALTHY)
    backends = history.scenario.backends
    chosen = picks(history, phase.start_s, phase.end_s)
    if isinstance(chosen, str):
        yield undecided(chosen, phase.start_s)
        return
    for number in range(backends):
        yield from judge_share(
            chosen, number, even_zone(backends), phase.start_s, phase.end_s, "all healthy", ALPHA / backends
        )


# --- errors -------------------------------------------------------------------------------------------------


@declare(
    "health-share.errors.by-their-weight",
    needs=(HealthShare,),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_fails,
)
def errors_by_their_weight(history: History, claims: Claims) -> Findings:
    """A backend that fails every request and passes its health checks loses the weight of the errors and no more.

    With a weight of .4 its score is .6, and beside three healthy backends it gets .6/3.6 of the requests: a score is a
    weight, not a gate. Judged from one claimed window after the fault on, by a sequential test: .15 to .1781 against at
    most .0909 or at least .25. Known violations: a widely repeated sketch takes every backend above a score of .2 as
    healthy, so that .6 and 1 get the same.
    """
    fault = history.step("FailingStatus", SICK)
    if fault is None:
        return
    phase = history.scenario.phase(FAILING)
    known_s = margin_s(history, KNOWN_WITHIN_S, fault.effective_s, phase.start_s)
    from_s = max(phase.start_s, fault.effective_s + claims[HealthShare].window_s + known_s)
    chosen = picks(history, from_s, phase.end_s)
    score, backends = failing_score(claims), history.scenario.backends
    note = f"a score of {score:g} calls for {share_of(score, backends):.4f}"
    yield from judge_share(chosen, fault.backend, weighed_zone(score, backends), from_s, phase.end_s, note)


@declare(
    "health-share.recovery.even",
    needs=(HealthShare,),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_fails,
)
def recovery_even(history: History, claims: Claims) -> Findings:
    """One claimed window after a backend was healed its share is even again.

    Earlier failures have left the window by then. The test is one-sided: within 5 % of even against the share while the
    backend failed. Known violations: rates over a lifetime instead of a window (travis-ci/jupiter-brain#12).
    """
    fault = history.step("FailingStatus", SICK)
    if fault is None:
        return
    if np.isnan(fault.healed_s):
        yield undecided("the end of the fault was not observed", fault.effective_s)
        return
    score, backends, phase = failing_score(claims), history.scenario.backends, history.scenario.phase(HEALED)
    known_s = margin_s(history, KNOWN_WITHIN_S, fault.healed_s, phase.start_s)
    from_s = max(phase.start_s, fault.healed_s + claims[HealthShare].window_s + known_s)
    note = f"healed {from_s - fault.healed_s:.1f} s before"
    chosen = picks(history, from_s, phase.end_s)
    yield from judge_share(chosen, fault.backend, recovered_zone(score, backends), from_s, phase.end_s, note)


# --- latency ------------------------------------------------------------------------------------------------


@declare(
    "health-share.latency.by-its-weight",
    needs=(HealthShare,),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_has_a_tail,
)
def latency_by_its_weight(history: History, claims: Claims) -> Findings:
    """A backend with a slow tail gets less, in proportion to its p99 over the claimed window against the baseline.

    One answer in ten is about twenty times slower, in short periods; the p99 is always that of the slow answers, and
    the score about .71. The expected share is computed from the measured latencies. A sequential test distinguishes it
    from an even share. Known violations: a widely repeated sketch whose "p99" is the latency of the last answer, which
    is a fast one nine times in ten.
    """
    fault = history.step("Slow", SICK)
    if fault is None:
        return
    phase = history.scenario.phase(TAIL)
    from_s = max(phase.start_s, phase.start_s + fault.effective_s - fault.asked_s)
    backends = history.scenario.backends
    expected = tail_share(history, claims, fault.backend, from_s, phase.end_s)
    if isinstance(expected, str):
        yield undecided(expected, from_s)
        return
    low, high = np.floor(expected[0] * 1000) / 1000, np.ceil(expected[1] * 1000) / 1000
    planned, violate = tail_zone(claims, backends)
    if expected[1] > planned[1]:
        yield undecided(f"the latencies call for a share of {low:.3f} to {high:.3f}, too close to even", from_s)
        return
    note = f"the latencies call for {expected[0]:.4f} to {expected[1]:.4f}"
    chosen = picks(history, from_s, phase.end_s)
    yield from judge_share(chosen, fault.backend, ((float(low), float(high)), violate), from_s, phase.end_s, note)


# --- not ready ----------------------------------------------------------------------------------------------


@declare(
    "health-share.not-ready.nothing",
    needs=(HealthShare, HealthChecks),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_not_ready,
)
def not_ready_nothing(history: History, claims: Claims) -> Findings:
    """A backend that is not ready gets nothing, whatever its score, once enough health checks must have failed.

    It still serves requests, so its score alone would give it an even share. The bound from the fault to the last
    request for this backend is the number of health checks that have to fail, in intervals, plus one timeout. Seen
    broken: a sketch by whose formula a backend that fails everything still scores .6.
    """
    fault = history.step("NotReady", SICK)
    if fault is None:
        return
    phase = history.scenario.phase(HEALTHY)
    before = picks(history, phase.start_s, phase.end_s)
    if isinstance(before, str):
        yield undecided(before, phase.start_s)
        return
    if not len(before) or float(np.mean(before == fault.backend)) < 0.5 / history.scenario.backends:
        return  # the backend had no share to lose
    high_s = detection_s(claims)
    healed_s = history.scenario.phase(NOT_READY).end_s
    during = history.all_attempts().started_between(fault.effective_s, healed_s)
    here = during.on(fault.backend)
    others = during - here
    elsewhere = len(others.where(others["start_s"] > fault.effective_s + high_s))
    if elsewhere < FEW:
        yield undecided(f"only {elsewhere} requests reached other backends after the bound", fault.effective_s)
        return
    last_s = float((here["start_s"] - fault.effective_s).max(initial=0.0))
    note = f"the last request for {SICK} came {last_s:.2f} s after the fault; {elsewhere} went elsewhere"
    yield within(last_s, 0.0, high_s, fault.effective_s, until_s=healed_s, sample=elsewhere, note=note)


@declare(
    "health-share.not-ready.returns",
    needs=(HealthShare, HealthChecks),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_not_ready,
)
def not_ready_returns(history: History, claims: Claims) -> Findings:
    """A backend that is ready again has an even share once enough health checks must have passed.

    It gets neither nothing, as where health checks end with the first failure, nor a rush because it has been idle. A
    sequential test: within 10 % of even against 40 % of that, or double.
    """
    fault = history.step("NotReady", SICK)
    if fault is None:
        return
    if np.isnan(fault.healed_s):
        yield undecided("the end of the fault was not observed", fault.effective_s)
        return
    phase = history.scenario.phase(READY_AGAIN)
    from_s = max(phase.start_s, fault.healed_s + return_s(claims))
    chosen = picks(history, from_s, phase.end_s)
    note = f"ready again {return_s(claims):.1f} s before"
    yield from judge_share(chosen, fault.backend, returned_zone(history.scenario.backends), from_s, phase.end_s, note)


# --- memory -------------------------------------------------------------------------------------------------


@declare(
    "health-share.memory.by-its-weight",
    needs=(HealthShare, HealthChecks),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_holds_a_model,
)
def memory_by_its_weight(history: History, claims: Claims) -> Findings:
    """A backend whose memory is in use gets less, by the weight of the memory and the part of it that is in use.

    Long requests, one at a time, hold a model that fills 94 % of the memory; each hold is judged from the next health
    check on. All answers are cut off, which leaves scores of .6 and .4125 with weights of .4 and .2, and a share of
    .407 where a balancer that ignores memory gives one half. A sequential test over all holds distinguishes the two.
    """
    backends = history.scenario.backends
    hits: list[bool] = []
    held_s: list[float] = []
    free_s = 0.0
    for holding in holdings(history, HOLD):
        from_s, until_s = reported_at_s(history, holding, claims), min(holding.end_s, history.scenario.end_s)
        alone, free_s = holding.start_s >= free_s, max(free_s, until_s)
        if not alone or from_s >= until_s:
            continue  # two holds at once, or one that ended before the balancer could have a report
        chosen = picks(history, from_s, until_s)
        if isinstance(chosen, str):
            yield undecided(chosen, from_s)
            return
        hits += (chosen == holding.backend).tolist()
        held_s += [from_s, until_s]
    if not hits:
        return
    (conform, violate), share = full_zone(claims, backends), full_share(claims, backends)
    note = f"the backend with memory in use got {sum(hits)} of {len(hits)}; its score calls for {share:.4f}"
    yield sampled(hits, conform=conform, violate=violate, at_s=held_s[0], until_s=held_s[-1], note=note)


@declare(
    "health-share.warm.even",
    needs=(HealthShare, HealthChecks),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_holds_a_model,
)
def warm_even(history: History, claims: Claims) -> Findings:
    """A backend whose memory is full of an idle model gets the same share as a cold one.

    Idle weights are evicted when memory is needed, so they count as free; otherwise a warm backend looks unhealthy and
    a cold one attractive. The test is one-sided: 1/n against the share that the backend would have if its model were in
    use. Known violations: the health score of a widely repeated sketch, which takes memory that is not free as load.
    """
    phase = history.scenario.phase(WARM)
    touched = holdings(history, TOUCH)
    warm = warmed(history, phase.end_s)
    if len(touched) != 1 or warm != {touched[0].backend}:
        yield undecided(f"{len(warm)} backends were warm, not one", phase.start_s)
        return
    from_s = max(phase.start_s, touched[0].end_s + reported_s(claims))
    chosen = picks(history, from_s, phase.end_s)
    zones = warm_zone(claims, history.scenario.backends)
    note = "its memory is full of an idle model"
    yield from judge_share(chosen, touched[0].backend, zones, from_s, phase.end_s, note)
