"""Integrity: an answer belongs to its request, and what clients saw agrees with what backends saw."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.arrival_rates import Spike, expected
from harness.scenario.arrivals import draw
from harness.scenario.faults import Kill, Restart
from harness.scenario.model import Echo, Ending, Keys, Load, Scenario, Stream
from harness.scenario.request_mix import Content, LongTail
from suites.scenarios import CALM, ENOUGH, disturbing_intervals_s, key_carrier, steady

ENDED_BY = (Kill.__name__, Restart.__name__)
"""Steps that end a process in the middle of whatever it does."""


CALM_PER_S, RUSH_PER_S = 120.0, 600.0
RUSH = Spike(CALM_PER_S, RUSH_PER_S, at_s=0.6, for_s=0.4, duration_s=1.5)
MOST_BYTES = 200_000
"""Of a body: what every balancer takes as it is shipped (nginx: a megabyte)."""


def rush(claims: Claims) -> Scenario:
    """Five times as many as usual at once: lengths and bodies of all sizes, streams, and clients that give up.

    A twentieth of the clients leave after 20 ms, in the middle of their answers.
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


@declare("integrity.answer-belongs-to-request", off=CALM, scenario=steady)
def answer_belongs_to_request(history: History, claims: Claims) -> Findings:
    """Every answer is the answer to its own request, and the backend that it names really gave it.

    Each request carries a number that its answer's body repeats; several are in flight at a time. Double entry: each
    answered request has an answered attempt at the backend named in the answer, each attempt has its request. Seen
    broken: answers that swap clients when connections are reused after an abort.
    """
    requests = history.requests
    answered = history.answered()
    total = int(answered.sum())
    if not total:
        return
    own = int(np.count_nonzero(answered & (requests["echo"] == Echo.OWN)))
    alien = int(np.count_nonzero(requests["echo"] == Echo.OTHER))
    if not own and not alien:
        yield undecided("the balancer rewrites answers: none repeats a number of ours")
        return
    note = f"{alien} of {total} answers belong to another request, {total - own - alien} to none"
    whole = own == total and not alien
    yield held(whole, 0.0, max(total - own, alien), 0, exact=True, sample=total, note=note)
    # Without any tag it is a call of the balancer's own, such as a probe by a completion.
    strangers = int(np.count_nonzero((history.attempts["request"] < 0) & (history.attempts["carriers"] > 0)))
    orphans = strangers + _unbacked(history)
    note = f"{orphans} entries without their counterpart between {total} answers and {len(history.attempts)} attempts"
    yield held(orphans == 0, 0.0, orphans, 0, exact=True, sample=total, note=note)
    if total < ENOUGH * len(requests):
        yield undecided(f"only {total} of {len(requests)} requests were answered")


def _unbacked(history: History) -> int:
    """Answered requests without an answered attempt, at the backend that the answer names if it names one.

    A process that is killed may have sent an answer and not come to note it: there an open attempt is enough.
    """
    killed = [step.backend for step in history.steps if step.kind in ENDED_BY]
    ending = history.attempts["ending"]
    answered_there = ending == Ending.ANSWERED
    answered_there |= (ending == Ending.OPEN) & np.isin(history.attempts["backend"], killed)
    attempts = history.attempts[answered_there & (history.attempts["request"] >= 0)]
    pairs = set(zip(attempts["request"].tolist(), attempts["backend"].tolist(), strict=True))
    anywhere = {number for number, _ in pairs}
    answered = history.requests[history.answered()]
    return sum(
        number not in anywhere if backend < 0 else (number, backend) not in pairs
        for number, backend in zip(answered["number"].tolist(), answered["answered_by"].tolist(), strict=True)
    )


@declare("integrity.rush.answers-belong", off=CALM, scenario=rush)
def rush_answers_belong(history: History, claims: Claims) -> Findings:
    """In a rush of streams, large bodies and clients that give up every answer is still its own request's.

    Double entry as in `integrity.answer-belongs-to-request`. An answer that its client no longer wants must be read to
    its end or thrown away with its connection: what is left of it would be the beginning of the next one's.
    """
    yield from answer_belongs_to_request(history, claims)


@declare("integrity.rush.nothing-lost", off=CALM, scenario=rush)
def rush_nothing_lost(history: History, claims: Claims) -> Findings:
    """A rush of five times the usual rate, which the fleet can take, costs no request of those who wait for it.

    Some eight are inside each of four backends at its height, of the 64 that it takes. What is lost is lost in between:
    to a queue, a number of connections or a limit of size that nobody was told of.
    """
    patient = np.array([one.patience_s >= one.timeout_s for one in draw(history.scenario.load, history.seed)])
    lost = int(np.count_nonzero(patient & ~history.answered()))
    waited = int(patient.sum())
    note = f"{lost} of {waited} lost; {len(patient) - waited} clients more gave up on purpose"
    yield held(lost == 0, 0.0, lost, 0, until_s=history.scenario.end_s, sample=waited, note=note)
