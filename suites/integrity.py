"""Integrity: an answer belongs to its request, and what clients saw agrees with what backends saw."""

from __future__ import annotations

import numpy as np

from harness.claims import Claims
from harness.history import History
from harness.model import Echo, Ending
from harness.property import Findings, declare, held, undecided
from harness.timeline import Kill, Restart
from suites.scenarios import CALM, ENOUGH, steady

ENDED_BY = (Kill.__name__, Restart.__name__)
"""Steps that end a process in the middle of whatever it does."""


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
