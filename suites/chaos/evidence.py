"""Whole-system runs under a chaos fault plan: their scenario, and what all fault plans have in common to check.

No property is declared here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.chaos.fault_plans import FAULT_PLANS
from harness.claims.features import FEATURES, Affinity, Breaker, Claims, Ejection, Failover, HealthChecks
from harness.evidence.history import History, Mask
from harness.property.declare import Property, declare
from harness.property.findings import Findings, held, undecided, within
from harness.scenario.faults import Kill, Restart, Step, heals_at_s, is_fault
from harness.scenario.model import Keys, Kind, Load, Method, Scenario, Stream
from harness.stats import band, beta_binomial_pmf, binomial_pmf
from suites.integrity import answer_belongs_to_request
from suites.retry.evidence import turns, updates
from suites.scenarios import can_get, key_carrier

BEFORE_S = 1.0
AFTER_S = 0.75
START_S = 0.75
"""Of a run in which a process dies: a new one takes its time until it answers, and only then the rest counts."""

RATE_PER_S = 100.0
UPDATES_PER_S = 20.0
KEYS = 200
PATIENCE_S = 2.0

SPARE_DEVIATIONS = 2.0

IN_FLIGHT_S = 0.2
"""A request sent so shortly before a step may still be inside when it comes."""

USED_SHARE = 0.25
"""Those that a fault plan strikes must have had a quarter of their fair share before, else it proves nothing.

One of four is due 22 of the 86 requests by then: fewer than 6 come from chance once in 20,000 runs.
"""

SETTLED_S = 0.2
"""Chats begin by thinking; as many as ever will are waiting from about here on."""

LEAST_S = 0.4
PACE = 0.9
"""Of the former pace; answers may take a little longer with a cold cache."""

COARSE = 40
"""Points a backend where no ring is claimed: how uneven shares by key may be is taken from a ring."""

FAULT_PLAN_ALPHA = 1e-4


def recovery_s(claims: Claims) -> float:
    """How long after a heal a balancer may take to use everything again: the longest time that it claims of itself.

    That of Failover, a breaker's longest open time, an ejection's, or as many good health checks as a return takes.
    """
    times_s = [claims[Failover].within_s] if Failover in claims else []
    if Breaker in claims:
        breaker = claims[Breaker]
        grown_s = breaker.backoff.max_s if breaker.backoff.multiplier > 1.0 else breaker.open_s
        times_s.append(max(breaker.open_s, grown_s) * (1.0 + breaker.backoff.jitter))
    if Ejection in claims:
        times_s.append(claims[Ejection].open_s)
    if HealthChecks in claims:
        checks = claims[HealthChecks]
        times_s.append(checks.healthy * checks.interval_s + checks.timeout_s)
    return max(times_s, default=0.0)


def over_s(steps: Sequence[Step]) -> float:
    """When the last step has been taken and the last fault has healed, in seconds of the run."""
    ends_s = [heals_at_s(step) or step.at_s + (getattr(step, "for_s", None) or 0.0) for step in steps]
    return max(ends_s, default=0.0)


def under(name: str, steps: tuple[Step, ...], backends: int, claims: Claims) -> Scenario:
    """A scenario that plays `steps` under inference by key (GET and POST in turn where both pass) and updates.

    It goes on until everything has had its time to recover, and for a while after that.
    """
    starts_s = START_S if any(isinstance(step, Kill | Restart) for step in steps) else 0.0
    end_s = over_s(steps) + starts_s + recovery_s(claims) + AFTER_S
    methods = (Method.POST, Method.GET) if can_get(claims) else (Method.POST,)
    streams = [
        Stream(
            name="traffic",
            start_s=0.0,
            rate_per_s=RATE_PER_S,
            requests=_enough(RATE_PER_S, end_s),
            keys=Keys(KEYS, "uniform"),
            arrivals="poisson",
            methods=methods,
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
    """A named fault plan of `for_s` seconds on `want` backends, or as many as the target has."""
    backends = claims.fleet(want)
    names = tuple(f"gpu-{number}" for number in range(backends))
    return under(name, FAULT_PLANS[name](names, BEFORE_S, for_s), backends, claims)


def _enough(rate_per_s: float, until_s: float) -> int:
    """Poisson arrivals that go on until then, but for one run in some hundred thousand (AFTER_S helps)."""
    expected = rate_per_s * until_s
    return int(expected + SPARE_DEVIATIONS * math.sqrt(expected))


# --- what is asked of a history -----------------------------------------------------------------------------


def began_s(history: History) -> float | None:
    """When the first step that took effect was asked for; None if there was none.

    It may do harm from then on: live, a probe sees it only some time later.
    """
    return min((step.asked_s for step in history.steps if step.took_effect), default=None)


def healed_s(history: History) -> float | None:
    """When the last step was over: healed, or (a change of membership) carried out. None if a fault never healed."""
    last_s = 0.0
    due = sorted(history.scenario.timeline, key=lambda step: step.at_s)  # as they were carried out
    for planned, seen in zip(due, history.steps, strict=False):
        heals = is_fault(planned) and hasattr(planned, "for_s")
        ended_s = seen.healed_s if heals else seen.effective_s
        if np.isnan(ended_s):
            return None
        last_s = max(last_s, ended_s)
    return last_s if len(history.steps) else None


def struck(history: History) -> tuple[int, ...]:
    """Numbers of the backends that the timeline strikes."""
    return tuple(sorted({step.backend for step in history.steps}))


def sent_while_struck(history: History) -> Mask:
    """Which requests were sent while some step was in force, or so shortly before that it could hit them."""
    mask: Mask = np.zeros(len(history.requests), dtype=bool)
    for step in history.steps:
        until_s = history.scenario.end_s if np.isnan(step.healed_s) else step.healed_s
        mask |= sent_between(history, step.asked_s - IN_FLIGHT_S, until_s)
    return mask


def was_used(history: History, backends: Sequence[int], until_s: float) -> bool:
    """Whether these backends together had a quarter of their fair share of the requests sent until then."""
    reached = history.first_backends()[history.requests["sent_s"] < until_s - IN_FLIGHT_S]
    fair = len(backends) / history.scenario.backends
    return bool(len(reached)) and float(np.isin(reached, backends).mean()) >= USED_SHARE * fair


def sent_between(history: History, start_s: float, end_s: float) -> Mask:
    """Which requests were sent in [start_s, end_s)."""
    sent_s = history.requests["sent_s"]
    mask: Mask = (sent_s >= start_s) & (sent_s < end_s)
    return mask


# --- the checks ---------------------------------------------------------------------------------------------


def recovers(history: History, claims: Claims) -> Findings:
    """Nothing is lost before the fault plan, nor later than the claimed time after its end. Observed: the last loss."""
    start_s, end_s = began_s(history), healed_s(history)
    if start_s is None or end_s is None or not was_used(history, struck(history), start_s):
        return
    lost = ~history.answered()
    sent_s = history.requests["sent_s"]
    calm = sent_between(history, 0.0, start_s - IN_FLIGHT_S)
    early = int(np.count_nonzero(calm & lost))
    within_s = recovery_s(claims)
    judged = int(np.count_nonzero(sent_s > end_s + within_s))
    if not judged:
        yield undecided("no request was sent later than the claimed time after the end", end_s)
        return
    yield held(early == 0, 0.0, early, 0, until_s=start_s, sample=int(calm.sum()), note=f"{early} lost before it began")
    losses_s = sent_s[lost & (sent_s >= end_s)]
    last_s = float(losses_s.max()) - end_s if len(losses_s) else 0.0
    late = int(np.count_nonzero(lost & (sent_s > end_s + within_s)))
    note = f"{len(losses_s)} lost since the end at {end_s:.2f} s, {late} of {judged} sent later than the bound"
    yield within(last_s, 0.0, within_s, end_s + within_s, until_s=history.scenario.end_s, sample=judged, note=note)


def answers_belong(history: History, claims: Claims) -> Findings:
    """Every answer is its own request's, entries on both sides have their counterpart, no update ran twice."""
    if began_s(history) is None:
        return
    yield from answer_belongs_to_request(history, claims)
    rows = history.attempts[updates(history) & (turns(history) >= 0)]
    if len(rows):
        asked = len(np.unique(rows["request"]))
        twice = len(rows) - asked
        note = f"{twice} of {asked} updates reached a backend again"
        yield held(twice == 0, 0.0, twice, 0, exact=True, sample=asked, note=note)


def contained(history: History, claims: Claims) -> Findings:
    """No more is lost than the share of the struck backends while they were struck could come to."""
    start_s, end_s, victims = began_s(history), healed_s(history), struck(history)
    if start_s is None or end_s is None or not was_used(history, victims, start_s):
        return
    from_s, until_s = start_s - IN_FLIGHT_S, end_s + recovery_s(claims)
    sent = int(sent_while_struck(history).sum())
    judged = sent_between(history, from_s, until_s)
    lost = int(np.count_nonzero(judged & ~history.answered()))
    others = history.scenario.backends - len(victims)
    points = claims[Affinity].virtual_nodes if Affinity in claims else COARSE
    _, most = band(beta_binomial_pmf(sent, points * len(victims), points * others), 2 * FAULT_PLAN_ALPHA)
    note = f"{lost} lost; {sent} were sent while {len(victims)} of {history.scenario.backends} backends were struck"
    yield held(lost <= most, from_s, lost, most, until_s=until_s, sample=sent, alpha=FAULT_PLAN_ALPHA, note=note)


def nothing_lost(history: History, claims: Claims) -> Findings:
    """Not one request is lost, from the beginning of the run to its end."""
    start_s, end_s = began_s(history), healed_s(history)
    if start_s is None or end_s is None or not was_used(history, struck(history), start_s):
        return
    lost = int(np.count_nonzero(~history.answered()))
    sent = len(history.requests)
    note = f"{lost} of {sent} lost"
    yield held(lost == 0, 0.0, lost, 0, until_s=history.scenario.end_s, sample=sent, note=note)


def keeps_pace(history: History, claims: Claims, crowd: str) -> Findings:
    """The chats of a closed loop ask as often after the claimed time as before the fault plan, but for chance.

    With n1 asked in a stretch before and n2 in one after, n2 of n1 + n2 is binomial if both come at their rates
    independently; chats that wait for answers vary less. `PACE` of the former pace conforms.
    """
    start_s, end_s = began_s(history), healed_s(history)
    if start_s is None or end_s is None or not was_used(history, struck(history), start_s):
        return
    before_s = (SETTLED_S, start_s - IN_FLIGHT_S)
    after_s = (end_s + recovery_s(claims), history.scenario.end_s)
    lasts_s, later_s = before_s[1] - before_s[0], after_s[1] - after_s[0]
    if later_s < LEAST_S:
        yield undecided("too little of the run is left after the claimed time", end_s)
        return
    mine = history.in_stream(crowd)
    before, after = (int(np.count_nonzero(mine & sent_between(history, *stretch))) for stretch in (before_s, after_s))
    share = PACE * later_s / (PACE * later_s + lasts_s)
    least, _ = band(binomial_pmf(before + after, share), 2 * FAULT_PLAN_ALPHA)
    note = f"{before / lasts_s:.0f} a second before, {after / later_s:.0f} after: {after}, {least} at least due"
    yield held(
        after >= least,
        after_s[0],
        after,
        least,
        until_s=history.scenario.end_s,
        sample=before + after,
        alpha=FAULT_PLAN_ALPHA,
        note=note,
    )


# --- any fault plan ------------------------------------------------------------------------------------------


def under_any(scenario: Scenario) -> tuple[Property, ...]:
    """What must hold under any fault plan, as properties of this one scenario: a share of one run for both.

    What it names as `off` is left out where the target can.
    """
    off = tuple(FEATURES[name] for name in sorted(scenario.off))

    def played(claims: Claims) -> Scenario:
        return scenario

    name = scenario.name
    return (
        declare(f"chaos.{name}.recovers", scenario=played, off=off)(recovers),
        declare(f"chaos.{name}.answers-belong", scenario=played, off=off)(answers_belong),
    )
