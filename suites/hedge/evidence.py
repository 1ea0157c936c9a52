"""What a history says of hedges: which attempts are hedges, who won, and how long a slow request has to wait for one.

Retries are off where hedges are judged, so every attempt of a request beyond its first is a hedge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.claims.features import Affinity, Breaker, Claims, Hedge
from harness.evidence.history import UNSEEN, History, Mask, Numbers, Times
from harness.scenario.model import Ending, Failure, Kind


@dataclass(frozen=True, slots=True)
class Answers:
    """The good answers of one model in the order in which backends gave them.

    `latencies_s` run from a request's arrival at its first backend to its answer, whichever backend gave that: a little
    less than what any balancer in between can have measured. `had_s` are the times at which clients had them, sorted,
    and `felt_s` how long they took for their clients, in that order: a little more.
    """

    latencies_s: Times
    given_s: Times
    had_s: Times
    felt_s: Times


def hedges(history: History) -> Numbers:
    """Rows of the attempts that joined another one of the same request."""
    request = history.attempts["request"]
    own = np.flatnonzero(request >= 0)
    joined: Numbers = own[history.first_attempts()[request[own]] != own]
    return joined


def inference_hedges(history: History) -> Numbers:
    """The same, of inference only."""
    rows = hedges(history)
    chosen: Numbers = rows[history.attempts["kind"][rows] == Kind.INFERENCE]
    return chosen


def races(history: History) -> dict[int, list[int]]:
    """For each hedged inference its legs: the rows of its attempts, in order of time."""
    hedged: dict[int, list[int]] = {}
    for request in history.attempts["request"][inference_hedges(history)].tolist():
        hedged[request] = []
    for row, request in enumerate(history.attempts["request"].tolist()):
        if request in hedged:
            hedged[request].append(row)
    return hedged


def good(history: History) -> Mask:
    """Attempts that brought a whole answer with a 2xx status."""
    attempts = history.attempts
    mask: Mask = (attempts["ending"] == Ending.ANSWERED) & (attempts["status"] >= 200) & (attempts["status"] < 300)
    return mask


def failed(history: History) -> Mask:
    """Attempts that ended in an error of their backend: a status of 500 or more, or a connection that it broke off."""
    attempts = history.attempts
    mask: Mask = (attempts["status"] >= 500) | (attempts["ending"] == Ending.CUT)
    return mask


def given_up(history: History) -> Mask:
    """Requests whose clients left before an answer."""
    mask: Mask = history.requests["failure"] == Failure.TIMEOUT
    return mask


def winners(history: History) -> Numbers:
    """For each request the row of the attempt whose good answer its client got; UNSEEN where there is none."""
    rows = np.full(len(history.requests), UNSEEN, dtype=np.int64)
    attempts, answered = history.attempts, history.answered()
    own = np.flatnonzero(good(history) & (attempts["request"] >= 0))[::-1]  # last write wins: the earliest
    request = attempts["request"][own]
    passed_on = answered[request] & (history.requests["answered_by"][request] == attempts["backend"][own])
    rows[request[passed_on]] = own[passed_on]
    return rows


def models(history: History, claims: Claims) -> Numbers:
    """For each request a number for its model; all alike where the key that travels is something else."""
    named = Affinity not in claims or claims[Affinity].key_is_model
    keys = history.requests["key"].astype(np.int64)
    numbers: Numbers = keys if named else np.zeros_like(keys)
    return numbers


def answers(history: History, mask: Mask) -> Answers:
    """The answers to the requests in `mask`."""
    won = winners(history)
    request = np.flatnonzero(mask & (won != UNSEEN))
    attempts = history.attempts
    given_s = attempts["first_byte_s"][won[request]]
    latencies_s = given_s - attempts["start_s"][history.first_attempts()[request]]
    had_s = history.requests["first_byte_s"][request]
    felt_s = had_s - history.requests["sent_s"][request]
    order, client_order = np.argsort(given_s, kind="stable"), np.argsort(had_s, kind="stable")
    return Answers(latencies_s[order], given_s[order], had_s[client_order], felt_s[client_order])


def rank(quantile: float, known: int) -> int:
    """Which of `known` latencies, smallest first, is their quantile: ceil(quantile (known + 1)), at most the last.

    The one that the next request exceeds with probability 1 - quantile at most (shares are rounded to nine digits, so
    that .95 of 20 is 19).
    """
    return min(known, math.ceil(round(quantile * (known + 1), 9)))


def delay_s(latencies_s: Times, hedge: Hedge) -> float | None:
    """The delay that follows from these latencies, which are all that is kept; None if they are too few."""
    known = len(latencies_s)
    if known < hedge.minimum:
        return None
    place = rank(hedge.quantile, known) - 1
    return float(np.partition(latencies_s, place)[place])


def shortest_delay_s(found: Answers, from_s: float, to_s: float, hedge: Hedge) -> float | None:
    """The shortest delay that is right for a decision at some time in [from_s, to_s]; None if none is known by then.

    From outside it is not seen when a balancer decides, nor which of two answers that come at once it counts first. So
    the shortest over all windows that may be meant is taken.
    """
    first = int(np.searchsorted(found.had_s, from_s, side="right"))
    last = int(np.searchsorted(found.given_s, to_s, side="right"))
    delays_s = [
        delay
        for known in range(min(first, last), last + 1)
        for window_s in _windows(found.latencies_s, known, hedge.window)
        if (delay := delay_s(window_s, hedge)) is not None
    ]
    return min(delays_s, default=None)


def _windows(latencies_s: Times, known: int, size: int) -> Iterator[Times]:
    """The last `size` of the first `known`; and with the neighbour at either end in place of the one there."""
    start = max(0, known - size)
    window_s = latencies_s[start:known]
    yield window_s
    if 0 < known < len(latencies_s):
        yield np.append(window_s[:-1], latencies_s[known])
    if start > 0:
        yield np.append(window_s[1:], latencies_s[start - 1])


def outlasted(history: History, claims: Claims, kind: Kind) -> Mask:
    """Requests of a kind that took their clients longer than the delay of their model: those that call for a hedge.

    Updates have no model and count together. Times are taken as equal within a microsecond.
    """
    requests, hedge = history.requests, claims[Hedge]
    mask = np.zeros(len(requests), dtype=np.bool_)
    mine = requests["kind"] == kind
    numbers = models(history, claims) if kind is Kind.INFERENCE else np.zeros(len(requests), dtype=np.int64)
    end_s = np.where(np.isnan(requests["end_s"]), np.inf, requests["end_s"])
    for number in np.unique(numbers[mine]):
        members = np.flatnonzero(mine & (numbers == number))
        found = answers(history, mine & (numbers == number))
        by_known: dict[int, float | None] = {}
        counts = np.searchsorted(found.had_s, requests["sent_s"][members], side="right")
        for row, known in zip(members.tolist(), counts.tolist(), strict=True):
            if known not in by_known:
                by_known[known] = delay_s(found.felt_s[max(0, known - hedge.window) : known], hedge)
            delay = by_known[known]
            mask[row] = delay is not None and end_s[row] - requests["sent_s"][row] > delay + 1e-6
    return mask


def in_flight(history: History, at_s: Times) -> Numbers:
    """How many requests had been sent and had not ended at these times."""
    sent_s = np.sort(history.requests["sent_s"])  # nan, never sent, sorts last
    end_s = np.sort(history.requests["end_s"])
    counts: Numbers = np.searchsorted(sent_s, at_s, side="right") - np.searchsorted(end_s, at_s, side="right")
    return counts


SILENT = 0.9
"""Share of the shortest open time without an attempt that says that a breaker was open: what was under way when it
opened may arrive a little later."""


def probes(history: History, breaker: Breaker) -> list[int]:
    """Rows of the attempts that a backend saw first after its breaker had been open.

    That is after a silence, with as many failures in a row before it as open a breaker: a backend that owns no model is
    silent for no reason of a breaker's. None where failures in a row do not open it.
    """
    attempts, failures = history.attempts, breaker.failures
    rows: list[int] = []
    if failures is None:
        return rows
    for backend in range(history.scenario.backends):
        own = np.flatnonzero((attempts["backend"] == backend) & (attempts["request"] >= 0))
        bad = attempts["status"][own] >= 500
        later = np.flatnonzero(np.diff(attempts["start_s"][own]) >= SILENT * breaker.shortest_open_s) + 1
        rows += [int(own[place]) for place in later if place >= failures and bad[place - failures : place].all()]
    return sorted(rows)
