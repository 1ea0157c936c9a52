"""Retries: which failures are retried, where, how often, and which are never retried."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.claims.features import BoundedLoad, Breaker, Claims, Ejection, HealthChecks, HealthShare, Hedge, Retry
from harness.evidence.history import History
from harness.evidence.queries import AttemptSelection
from harness.property.declare import declare
from harness.property.findings import Findings, held, within
from harness.scenario.faults import CutOff, FailingStatus, Hang, RequestFault, heals_at_s
from harness.scenario.model import Failure, Keys, Kind, Load, Method, Phase, Scenario, Stream, UnsupportedError
from suites.scenarios import key_carrier, methods

OTHERS = (Breaker, Ejection, HealthChecks, HealthShare, BoundedLoad)
"""Features that would take a failing backend out of rotation, or send an attempt elsewhere, before a retry is needed.
"""

RATE_PER_S = 150.0
FEW_PER_S = 40.0
UPDATES_PER_S = 50.0
UNCLAIMED = (400, 404, 429, 500, 409, 501)
"""Statuses that are not retried unless they are claimed. The scenario sends the first four that are not claimed."""

RETRY_AFTER_S = 1.0
"""Shortest Retry-After that a backend can send in whole seconds."""

PREFERRED = 503


def retried_status(claims: Claims) -> int | None:
    """A status that is claimed to be retried: 503 if it is claimed; None if no status is."""
    statuses = claims[Retry].statuses
    return PREFERRED if PREFERRED in statuses else next(iter(statuses), None)


def failures(claims: Claims) -> Scenario:
    """One of three backends fails in every way that a request can fail; then all of them do, in turn.

    While all backends fail, the request rate is so low that a budget lasts for all attempts of some requests.
    """
    backends = claims.fleet(3, at_least=2)
    everyone = [f"gpu-{number}" for number in range(backends)]
    sick = everyone[0]
    status = retried_status(claims)
    timeline: list[RequestFault] = []
    phases: list[Phase] = []

    def add_phase(name: str, faults: Sequence[RequestFault]) -> None:
        spans_s = [(fault.at_s, heals_at_s(fault) or fault.at_s) for fault in faults]
        phases.append(Phase(name, min(spans_s)[0], max(spans_s)[1]))
        timeline.extend(faults)

    if status is not None:
        add_phase("one refuses", [FailingStatus(sick, 0.5, status, for_s=0.4)])
    add_phase("one drops", [Hang(sick, 1.0, for_s=0.2)])
    add_phase("one breaks off", [CutOff(sick, 1.3, for_s=0.3)])
    unclaimed = [code for code in UNCLAIMED if code not in claims[Retry].statuses][:4]
    for turn, code in enumerate(unclaimed):
        at_s = 1.7 + 0.3 * turn
        add_phase(f"all say {code}", [FailingStatus(name, at_s, code, for_s=0.25) for name in everyone])
    busy_s, end_s = 2.95, 4.0
    add_phase("all drop", _drops(everyone, 3.1))
    if status is not None:
        add_phase("all refuse", [FailingStatus(name, 4.6, status, for_s=0.3) for name in everyone])
        wait = [FailingStatus(name, 5.6, status, retry_after_s=RETRY_AFTER_S, for_s=0.3) for name in everyone]
        add_phase("all ask to wait", wait)
        end_s = 5.95
    return Scenario(
        name="failures",
        backends=backends,
        load=Load(_traffic(claims, busy_s, end_s), key_carrier(claims)),
        timeline=tuple(timeline),
        phases=tuple(phases),
        intervals_s=(RETRY_AFTER_S,),
    )


def _drops(names: Sequence[str], start_s: float) -> list[RequestFault]:
    """Four rounds in which each backend hangs and then drops its requests, shifted against each other.

    A request that was dropped then finds the next backend hanging, whether its retry is immediate or delayed.
    """
    return [
        Hang(name, start_s + 0.16 * turn + 0.05 * number, for_s=0.15)
        for turn in range(4)
        for number, name in enumerate(names)
    ]


def _traffic(claims: Claims, busy_s: float, end_s: float) -> tuple[Stream, ...]:
    """Inference, at a lower rate from `busy_s` on, and updates where the target passes them."""
    keys = Keys(60, "uniform")
    streams = [
        Stream("traffic", 0.05, RATE_PER_S, int(RATE_PER_S * (busy_s - 0.05)), keys, methods=methods(claims)),
        Stream("few", busy_s, FEW_PER_S, int(FEW_PER_S * (end_s - busy_s)), keys, methods=methods(claims)),
    ]
    if claims.protocol == "http":
        streams.append(Stream("updates", 0.05, UPDATES_PER_S, int(UPDATES_PER_S * end_s), kind=Kind.UPDATE))
    return tuple(streams)


def refused(attempts: AttemptSelection, claims: Claims) -> AttemptSelection:
    """Those that were answered with a status that is claimed to be retried."""
    return attempts.with_status(*claims[Retry].statuses)


def _in_phase(history: History, name: str) -> tuple[float, float] | None:
    """Start and end of a phase of `failures` as scheduled; None if this target has no such phase."""
    for phase in history.scenario.phases:
        if phase.name == name:
            return phase.start_s, phase.end_s
    return None


@declare("retry.attempts.at-most", needs=(Retry,), without=(Hedge,), off=OTHERS, scenario=failures)
def attempts_at_most(history: History, claims: Claims) -> Findings:
    """A request gets at most the claimed number of attempts, whatever fails, by GET or POST, on old or new connections.

    Only requests count that used all their attempts, each of which failed. Two layers that retry multiply the number: a
    client library that repeats requests lost on a pooled connection, or another proxy in the chain. Known violations:
    BerriAI/litellm#34129, HKUDS/nanobot#2760.
    """
    limit = claims[Retry].attempts
    attempts = history.all_attempts().inference()
    last = attempts.where(attempts.turns() == limit - 1)
    for method in (Method.POST, Method.GET):
        for cause, failed in {"status": refused(last, claims), "dropped": last.dropped()}.items():
            requests = failed.where(failed.of_request("method") == method).requests()
            if not requests:
                continue
            most, count = int(requests.attempt_counts().max()), len(requests)
            note = f"{method.name}: {count} failed {limit} times (last: {cause}), with at most {most} attempts"
            yield held(most <= limit, at_s=0.0, observed=most, bound=limit, exact=True, sample=count, note=note)


@declare("retry.status.only-claimed", needs=(Retry,), without=(Hedge,), off=OTHERS, scenario=failures)
def status_only_claimed(history: History, claims: Claims) -> Findings:
    """An answer whose status is not claimed to be retried reaches its client unchanged, after one attempt.

    A client error (400, 404) fails on every backend, and a backend may have done the work before a 500; a retry
    multiplies errors by the number of attempts. 429 asks for less traffic. Known violations: microsoft/AICentral#134
    (400 was tried on every other server), livekit/agents#5831.
    """
    for status in UNCLAIMED:
        answers = history.all_attempts().inference().with_status(status)
        if status in claims[Retry].statuses or not answers:
            continue
        again = len(answers.followed())
        other = len(answers.where(answers.of_request("status") != status))
        wrong = max(again, other)
        note = f"{status}: {again} of {len(answers)} were retried, {other} reached their client with another status"
        at_s = float(answers["start_s"][0])
        yield held(wrong == 0, at_s=at_s, observed=wrong, bound=0, sample=len(answers), note=note)


@declare("retry.backend.another", needs=(Retry,), without=(Hedge,), off=OTHERS, scenario=failures)
def backend_another(history: History, claims: Claims) -> Findings:
    """A retry goes to another backend than the one that just failed, while there is another.

    A backend's fault usually lasts longer than a backoff. A balancer with affinity repeats its choice unless backends
    already tried are excluded. Known violations: traefik/traefik#5177, kubernetes/ingress-nginx#4035 (a sticky cookie
    is applied again to the retry).
    """
    retried = history.all_attempts().inference().first().followed()
    for name, failed in (("one refuses", refused(retried, claims)), ("one drops", retried.dropped())):
        span = _in_phase(history, name)
        if span is None:
            continue
        failed = failed.started_between(*span)
        if not failed:
            continue
        back = len(failed.where(failed.next_attempts()["backend"] == failed["backend"]))
        note = f"{name}: {back} of {len(failed)} retries went back to the backend that had failed"
        yield held(back == 0, span[0], back, 0, until_s=span[1], sample=len(failed), note=note)


@declare("retry.update.at-most-once", needs=(Retry,), without=(Hedge,), off=OTHERS, scenario=failures)
def update_at_most_once(history: History, claims: Claims) -> Findings:
    """An update reaches a backend at most once, however its attempt ended.

    The backend may have carried it out before the answer was lost, and a second execution is wrong. The property covers
    an answer with an error, a connection that drops, and an answer that breaks off. Known violations:
    rancher/rancher#35424 (a slow POST replayed three times).
    """
    first = history.all_attempts().updates().first()
    endings = {
        "answered with an error": first.where(first["status"] >= 400),
        "dropped without an answer": first.dropped(),
        "answer broken off": first.broken_off(),
    }
    for ending, ended in endings.items():
        if not ended:
            continue
        again = len(ended.followed())
        note = f"{ending}: {again} of {len(ended)} updates reached a backend again"
        yield held(again == 0, 0.0, again, 0, exact=True, sample=len(ended), note=note)


@declare("retry.first-byte.never", needs=(Retry,), without=(Hedge,), off=OTHERS, scenario=failures)
def first_byte_never(history: History, claims: Claims) -> Findings:
    """A request whose answer has begun is never retried; if the answer breaks off, its client sees the break.

    Tokens already passed on cannot be taken back, and a second answer begins with the first token again. A balancer
    that buffers complete answers could retry, but could not stream. Known violations: aden-hive/hive#6541,
    zirkelc/ai-retry#51 (the client gets tokens 1 to 5, then 1 to N).
    """
    cut = history.all_attempts().inference().broken_off().with_status(200)
    begun = cut.where(~np.isnan(cut["first_byte_s"]))
    if not begun:
        return
    at_s = float(begun["start_s"][0])
    again = len(begun.followed())
    note = f"{again} of {len(begun)} answers that broke off were started again"
    yield held(again == 0, at_s, again, 0, exact=True, sample=len(begun), note=note)
    whole = (begun.of_request("failure") == Failure.NONE) & (begun.of_request("status") < 400)
    complete = len(begun.where(whole))
    note = f"{complete} of {len(begun)} answers that broke off looked complete to their clients"
    yield held(complete == 0, at_s, complete, 0, exact=True, sample=len(begun), note=note)


@declare("retry.retry-after.honoured", needs=(Retry,), without=(Hedge,), off=OTHERS, scenario=failures)
def retry_after_honoured(history: History, claims: Claims) -> Findings:
    """A retry waits as long as the backend asked for in Retry-After, or is not made at all.

    Judged while all backends send Retry-After, so no better backend exists (RFC 9110, section 10.2.3). Known
    violations: BerriAI/litellm#7669 (all attempts burnt within milliseconds).
    """
    span = _in_phase(history, "all ask to wait")
    if span is None:
        raise UnsupportedError("claims to retry no status")
    limited = refused(history.all_attempts().inference().first().started_between(*span), claims)
    if not limited:
        return
    again = limited.followed()
    if not again:
        note = f"none of {len(limited)} was retried"
        yield held(True, span[0], 0, 0, until_s=span[1], sample=len(limited), note=note)
        return
    retries = again.next_attempts()
    shortest_s = float((retries["start_s"] - again["end_s"]).min())
    note = f"{len(again)} of {len(limited)} were retried, after {shortest_s:.3f} s at the earliest"
    until_s, low_s = float(retries["start_s"].max()), _retry_after_s(history)
    yield within(shortest_s, low_s, float("inf"), span[0], until_s=until_s, sample=len(again), note=note)


def _retry_after_s(history: History) -> float:
    """Retry-After of this scenario in seconds, which may be scaled."""
    return max(step.retry_after_s or 0.0 for step in history.scenario.timeline if isinstance(step, FailingStatus))
