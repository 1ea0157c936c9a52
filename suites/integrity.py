"""Integrity: each answer belongs to its request, and the records of clients and backends agree."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.arrival_rates import Spike, expected
from harness.scenario.faults import Kill, Restart
from harness.scenario.model import Echo, Ending, Keys, Load, Scenario, Stream
from harness.scenario.request_mix import Content, LongTail
from suites.scenarios import DISTURBING, ENOUGH, disturbing_intervals_s, key_carrier, steady

ENDED_BY = (Kill.__name__, Restart.__name__)
"""Steps that end a process abruptly."""

USUAL_PER_S, RUSH_PER_S = 120.0, 600.0
RUSH = Spike(USUAL_PER_S, RUSH_PER_S, at_s=0.6, for_s=0.4, duration_s=1.5)
MOST_BYTES = 200_000
"""Largest request body in bytes: every balancer accepts it with default settings (nginx: a megabyte)."""


def rush(claims: Claims) -> Scenario:
    """A spike of five times the usual rate: mixed output lengths and body sizes, streaming, and client aborts.

    A twentieth of the clients abort after 20 ms, in the middle of their answers.
    """
    content = Content(
        output=LongTail(90, 0.5, 400),
        streaming_share=0.0 if claims.protocol == "kserve" else 0.5,
        payload_bytes=LongTail(2_000, 1.5, MOST_BYTES),
        abort_share=0.05,
        abort_after_s=0.02,
        fresh_share=0.1,
    )
    count = round(expected(RUSH))
    traffic = Stream("traffic", 0.1, count / RUSH.duration_s, count, Keys(250, "zipf"), shape=RUSH, content=content)
    return Scenario(
        name="rush",
        backends=claims.fleet(4),
        load=Load((traffic,), key_carrier(claims)),
        intervals_s=disturbing_intervals_s(claims),
    )


@declare("integrity.answer-belongs-to-request", off=DISTURBING, scenario=steady)
def answer_belongs_to_request(history: History, claims: Claims) -> Findings:
    """Every answer belongs to its request and comes from the backend that it names.

    Each request carries a number that the body of its answer repeats; several requests are in flight at a time. The
    records of both sides are compared: each answered request has an answered attempt at the backend named in the
    answer, and each attempt has its request. Known violations: answers swapped between clients when connections are
    reused after an abort.
    """
    requests = history.all_requests()
    answered = requests.answered()
    total = len(answered)
    if not total:
        return
    own = len(answered.where(answered["echo"] == Echo.OWN))
    foreign = len(requests.where(requests["echo"] == Echo.OTHER))
    if not own and not foreign:
        yield undecided("the balancer rewrites answers: none repeats its request's number")
        return
    note = f"{foreign} of {total} answers belong to another request, {total - own - foreign} to none"
    matched = own == total and not foreign
    yield held(matched, 0.0, max(total - own, foreign), 0, exact=True, sample=total, note=note)
    # An attempt without any tag is the balancer's own call, such as a health check by completion.
    unmatched = int(np.count_nonzero((history.attempts["request"] < 0) & (history.attempts["carriers"] > 0)))
    orphans = unmatched + _answers_without_attempt(history)
    note = f"{orphans} entries without a counterpart among {total} answers and {len(history.attempts)} attempts"
    yield held(orphans == 0, 0.0, orphans, 0, exact=True, sample=total, note=note)
    if total < ENOUGH * len(requests):
        yield undecided(f"only {total} of {len(requests)} requests were answered")


def _answers_without_attempt(history: History) -> int:
    """Number of answered requests without an answered attempt, at the named backend if the answer names one.

    A killed process may have sent an answer without recording it, so an open attempt suffices there.
    """
    killed = [step.backend for step in history.steps if step.kind in ENDED_BY]
    attempts = history.all_attempts()
    served = attempts.where(attempts["ending"] == Ending.ANSWERED) | attempts.on(*killed).unfinished()
    pairs = set(zip(served["request"].tolist(), served["backend"].tolist(), strict=True))
    anywhere = {number for number, _ in pairs}
    answered = history.all_requests().answered()
    return sum(
        number not in anywhere if backend < 0 else (number, backend) not in pairs
        for number, backend in zip(answered["number"].tolist(), answered["answered_by"].tolist(), strict=True)
    )


@declare("integrity.rush.answers-belong", off=DISTURBING, scenario=rush)
def rush_answers_belong(history: History, claims: Claims) -> Findings:
    """Every answer belongs to its request during a rush with streaming, large bodies and client aborts.

    Checked as in `integrity.answer-belongs-to-request`. The balancer must read the answer to an aborted request to its
    end or close its connection; otherwise the rest of that answer becomes the start of the next one.
    """
    yield from answer_belongs_to_request(history, claims)


@declare("integrity.rush.nothing-lost", off=DISTURBING, scenario=rush)
def rush_nothing_lost(history: History, claims: Claims) -> Findings:
    """A rush of five times the usual rate, within the fleet's capacity, loses no request whose client waits.

    At its peak, about eight requests are in flight at each of four backends, and each backend takes 64. A loss is
    therefore the balancer's: an undeclared limit on its queue, its connections or the size of a request.
    """
    sent = history.all_requests()
    patient = sent.patient()
    lost, waited = len(patient.lost()), len(patient)
    note = f"{lost} of {waited} lost; {len(sent) - waited} more clients aborted on purpose"
    yield held(lost == 0, 0.0, lost, 0, until_s=history.scenario.end_s, sample=waited, note=note)
