"""What a history shows of a fault: the requests it struck, and questions that have the same answer in both worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.evidence.history import History, StepSeen
from harness.evidence.tables import Mask
from harness.scenario.model import Echo, Ending, Failure, Residency

AT_S, FOR_S, END_S = 0.5, 1.5, 3.2
UNTIL_S = AT_S + FOR_S
PATIENCE_S = 0.6
LATENCY_S, JITTER_S = 0.15, 0.05
SLOWER = 40.0
LATE_S = 0.2
"""Shortest delay of an answer of about 490 bytes (4 tokens) at 2 kB/s; and the timeout, and the slow close."""

SLICED_S = 0.12
DRIP_S = 0.14


class Seen:
    """One history and the backend `number` in it. `during`: requests under the fault; `before` and `after` it.

    Requests are those whose key the backend owned before the step, wherever they went.
    """

    def __init__(self, history: History, number: int, step: StepSeen) -> None:
        self.history = history
        self.number = number
        self.step = step
        self.sick = self._owned_by(number)
        sent_s, end_s = history.requests["sent_s"], history.requests["end_s"]
        self.before: Mask = self.sick & (end_s < step.asked_s)
        self.during: Mask = self.sick & (sent_s > step.effective_s) & (end_s < UNTIL_S)
        over_s = step.effective_s if np.isnan(step.healed_s) else step.healed_s
        self.after: Mask = self.sick & (sent_s > over_s + 0.2)

    def _owned_by(self, number: int) -> Mask:
        first = self.history.first_backends()
        early = self.history.requests["sent_s"] < AT_S
        mask: Mask = np.isin(self.history.requests["key"], self.history.requests["key"][early & (first == number)])
        return mask

    def of(self, column: str) -> set[Any]:
        """What a column of the requests says of those under the fault."""
        return set(self.history.requests[column][self.during].tolist())

    def endings(self) -> set[int]:
        """How the first attempts under the fault ended; -1 where no backend saw one."""
        rows = self.history.first_attempts()[self.during]
        seen = set(self.history.attempts["ending"][rows[rows >= 0]].tolist())
        return seen | ({-1} if (rows < 0).any() else set())

    def took_s(self, mask: Mask) -> Any:
        """From sending to the end, seconds."""
        return (self.history.requests["end_s"] - self.history.requests["sent_s"])[mask]

    def healthy(self, mask: Mask) -> bool:
        """Whether there are any of these and all were answered well."""
        return bool(mask.any() and self.history.answered()[mask].all())

    def first(self, start_s: float, end_s: float) -> Any:
        """Backends that the requests sent in between went to first."""
        sent_s = self.history.requests["sent_s"]
        return self.history.first_backends()[(sent_s > start_s) & (sent_s < end_s)]

    def told(self) -> set[int]:
        """Statuses of the backend's health checks under the fault, a moment after it began."""
        rows = self.history.health_checks[self.history.health_checks["backend"] == self.number]
        return set(rows["status"][(rows["at_s"] > self.step.effective_s + 0.05) & (rows["at_s"] < UNTIL_S)].tolist())

    def attempts(self, start_s: float, end_s: float) -> Any:
        """Attempts that reached the backend in between."""
        rows = self.history.attempts[self.history.attempts["backend"] == self.number]
        return rows[(rows["start_s"] > start_s) & (rows["start_s"] < end_s)]

    def happened(self, event: Residency, start_s: float) -> bool:
        """Whether this happened to a model there from then on."""
        rows = self.history.residency
        there = (rows["backend"] == self.number) & (rows["event"] == event) & (rows["at_s"] >= start_s)
        return bool(there.any())


Shows = Callable[[Seen], bool]


# --- what is seen -----------------------------------------------------------------------------------------


def refused(seen: Seen) -> bool:
    """No backend saw it and the balancer said so."""
    return seen.of("status") == {502} and seen.endings() == {-1}


def late(least_s: float) -> Shows:
    """Answered, and each so much later at least."""
    return lambda seen: seen.healthy(seen.during) and bool((seen.took_s(seen.during) >= least_s).all())


def jittery(seen: Seen) -> bool:
    """Late by as much as the jitter leaves, and not evenly."""
    return late((LATENCY_S - JITTER_S) * 0.99)(seen) and float(np.ptp(seen.took_s(seen.during))) > JITTER_S / 2


def silent(seen: Seen) -> bool:
    """No answer within the client's patience, and no backend saw a request."""
    return seen.of("failure") == {Failure.TIMEOUT} and seen.endings() == {-1}


def closed_in_silence(seen: Seen) -> bool:
    """The balancer saw connections closed after that time; no backend saw a request.

    A connection may happen to be closed just as it is used again, so not each takes its time.
    """
    in_time = seen.took_s(seen.during) >= LATE_S * 0.95
    return refused(seen) and float(np.mean(in_time)) > 0.9


def broken(seen: Seen) -> bool:
    """Every answer began and broke off for its client."""
    return seen.of("failure") == {Failure.TRUNCATED}


def cut(seen: Seen) -> bool:
    """As the backend saw it, too."""
    return broken(seen) and seen.endings() == {Ending.CUT}


def cut_late(seen: Seen) -> bool:
    """It showed only after the delay."""
    return cut(seen) and bool((seen.took_s(seen.during) >= LATE_S * 0.99).all())


def status(code: int, ending: Ending) -> Shows:
    """The backend itself answered so."""
    return lambda seen: (
        seen.of("status") == {code} and seen.endings() == {ending} and seen.number in seen.of("answered_by")
    )


def overflowing(seen: Seen) -> bool:
    """Some are served, the others are told 503."""
    return seen.of("status") == {200, 503}


def slower(seen: Seen) -> bool:
    """Each service takes that many times as long as before."""
    asked_s = seen.history.attempts["service_asked_s"][seen.history.first_attempts()]
    return late(0.0)(seen) and bool((asked_s[seen.during] > asked_s[seen.before].max() * SLOWER * 0.9).all())


def hanging(seen: Seen) -> bool:
    """No answer within the client's patience, though the backend has the request."""
    return seen.of("failure") == {Failure.TIMEOUT} and seen.endings() == {Ending.CLIENT_GONE}


def shorter(seen: Seen) -> bool:
    """Well framed for the client; the backend knows better."""
    return seen.healthy(seen.during) and seen.endings() == {Ending.CUT}


def senseless(seen: Seen) -> bool:
    """A good status, and nothing of the request in it."""
    return seen.healthy(seen.during) and seen.of("echo") == {Echo.NONE}


def told(code: int) -> Shows:
    """Health checks are told so, and what is sent is served, there or elsewhere."""
    return lambda seen: seen.told() == {code} and seen.healthy(seen.during)


def dead(seen: Seen) -> bool:
    """It fails what it is sent and says that it is not ready."""
    return seen.told() == {503} and 500 in seen.of("status")


def paused(seen: Seen) -> bool:
    """Nothing is answered meanwhile; who waits long enough is answered after it, from a warm cache."""
    requests = seen.history.requests
    sent = seen.sick & (requests["sent_s"] > seen.step.effective_s) & (requests["sent_s"] < UNTIL_S)
    waited = sent & (requests["sent_s"] > UNTIL_S - PATIENCE_S / 2)
    cold = seen.attempts(UNTIL_S, END_S)["cold"].any()
    return (
        seen.of("failure") == {Failure.TIMEOUT}
        and seen.healthy(waited)
        and bool((requests["end_s"][waited] >= UNTIL_S).all())
        and not bool(cold)
    )


def back_cold(seen: Seen) -> bool:
    """Refused while it is away; models are loaded again after that."""
    return refused(seen) and bool(seen.attempts(UNTIL_S, END_S)["cold"].any())


def evicted(seen: Seen) -> bool:
    """Models leave and are loaded again."""
    again = seen.happened(Residency.LOADING, seen.step.asked_s)
    return seen.happened(Residency.EVICTED, seen.step.asked_s - 0.01) and again and seen.healthy(seen.sick)


def left(seen: Seen) -> bool:
    """It had some before and gets none after; nobody notices."""
    gone = seen.number not in seen.first(seen.step.effective_s, END_S)
    return seen.number in seen.first(0.0, AT_S) and gone and seen.healthy(seen.sick)


def joined(seen: Seen) -> bool:
    """It had none before and gets some after."""
    came = seen.number in seen.first(seen.step.effective_s, END_S)
    return seen.number not in seen.first(0.0, AT_S) and came


def heavier(seen: Seen) -> bool:
    """Its share of what is sent first to it grows by half at least."""
    shares = [np.mean(seen.first(*span) == seen.number) for span in ((0.0, AT_S), (seen.step.effective_s, END_S))]
    return bool(shares[1] > shares[0] * 1.5) and seen.healthy(seen.sick)
