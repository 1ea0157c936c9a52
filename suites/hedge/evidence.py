"""Queries on hedges: which attempts are hedges, which attempt won, and the delay after which a request is hedged.

Retries are off where hedges are judged, so every attempt of a request after its first is a hedge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.claims.features import Affinity, Breaker, Claims, Hedge
from harness.evidence.history import History
from harness.evidence.tables import UNSEEN, Mask, Numbers, Times
from harness.scenario.model import Ending, Failure, Kind


@dataclass(frozen=True, slots=True)
class Answers:
    """The good answers of one model, in the order in which backends gave them.

    `latencies_s` is the time from a request's arrival at its first backend to its answer, from whichever backend:
    slightly less than a balancer between client and backend can measure. `received_s` are the times at which clients
    received the answers, sorted; `client_latencies_s` are the clients' latencies in that order: slightly more than a
    balancer can measure.
    """

    latencies_s: Times
    given_s: Times
    received_s: Times
    client_latencies_s: Times


def hedges(history: History) -> Numbers:
    """Rows of the attempts that were sent beside another attempt of the same request."""
    request = history.attempts["request"]
    own = np.flatnonzero(request >= 0)
    joined: Numbers = own[history.first_attempts()[request[own]] != own]
    return joined


def inference_hedges(history: History) -> Numbers:
    """Rows of the hedges of inference requests."""
    rows = hedges(history)
    chosen: Numbers = rows[history.attempts["kind"][rows] == Kind.INFERENCE]
    return chosen


def races(history: History) -> dict[int, list[int]]:
    """Rows of the attempts of each hedged inference request, in order of time."""
    hedged: dict[int, list[int]] = {}
    for request in history.attempts["request"][inference_hedges(history)].tolist():
        hedged[request] = []
    for row, request in enumerate(history.attempts["request"].tolist()):
        if request in hedged:
            hedged[request].append(row)
    return hedged


def good(history: History) -> Mask:
    """Attempts with a complete answer and a 2xx status."""
    attempts = history.attempts
    mask: Mask = (attempts["ending"] == Ending.ANSWERED) & (attempts["status"] >= 200) & (attempts["status"] < 300)
    return mask


def failed(history: History) -> Mask:
    """Attempts that ended in a backend error: a status of 500 or more, or a connection that the backend cut."""
    attempts = history.attempts
    mask: Mask = (attempts["status"] >= 500) | (attempts["ending"] == Ending.CUT)
    return mask


def given_up(history: History) -> Mask:
    """Requests whose clients timed out before an answer."""
    mask: Mask = history.requests["failure"] == Failure.TIMEOUT
    return mask


def winners(history: History) -> Numbers:
    """For each request the row of the attempt whose good answer reached the client; UNSEEN where there is none."""
    rows = np.full(len(history.requests), UNSEEN, dtype=np.int64)
    attempts, answered = history.attempts, history.answered()
    own = np.flatnonzero(good(history) & (attempts["request"] >= 0))[::-1]  # last write wins: the earliest
    request = attempts["request"][own]
    passed_on = answered[request] & (history.requests["answered_by"][request] == attempts["backend"][own])
    rows[request[passed_on]] = own[passed_on]
    return rows


def models(history: History, claims: Claims) -> Numbers:
    """A model number for each request; 0 for all where the affinity key is not the model."""
    named = Affinity not in claims or claims[Affinity].key_is_model
    keys = history.requests["key"].astype(np.int64)
    model_numbers: Numbers = keys if named else np.zeros_like(keys)
    return model_numbers


def answers(history: History, mask: Mask) -> Answers:
    """Good answers to the requests in `mask`."""
    won = winners(history)
    request = np.flatnonzero(mask & (won != UNSEEN))
    attempts = history.attempts
    given_s = attempts["first_byte_s"][won[request]]
    latencies_s = given_s - attempts["start_s"][history.first_attempts()[request]]
    received_s = history.requests["first_byte_s"][request]
    client_latencies_s = received_s - history.requests["sent_s"][request]
    order, client_order = np.argsort(given_s, kind="stable"), np.argsort(received_s, kind="stable")
    return Answers(latencies_s[order], given_s[order], received_s[client_order], client_latencies_s[client_order])


def rank(quantile: float, known: int) -> int:
    """Rank of the quantile among `known` latencies, smallest first: ceil(quantile (known + 1)), at most `known`.

    The next request exceeds that latency with a probability of at most 1 - quantile. Shares are rounded to nine digits,
    so that .95 of 20 is 19.
    """
    return min(known, math.ceil(round(quantile * (known + 1), 9)))


def delay_s(latencies_s: Times, hedge: Hedge) -> float | None:
    """Delay that follows from a window of latencies; None if there are fewer than the minimum."""
    known = len(latencies_s)
    if known < hedge.minimum:
        return None
    index = rank(hedge.quantile, known) - 1
    return float(np.partition(latencies_s, index)[index])


def shortest_delay_s(found: Answers, from_s: float, to_s: float, hedge: Hedge) -> float | None:
    """Shortest correct delay for a decision at any time in [from_s, to_s]; None if none is known by `to_s`.

    The history shows neither when a balancer decides nor which of two simultaneous answers it counts first, so the
    result is the shortest delay over all windows it may have used.
    """
    first = int(np.searchsorted(found.received_s, from_s, side="right"))
    last = int(np.searchsorted(found.given_s, to_s, side="right"))
    delays_s = [
        delay
        for known in range(min(first, last), last + 1)
        for window_s in _windows(found.latencies_s, known, hedge.window)
        if (delay := delay_s(window_s, hedge)) is not None
    ]
    return min(delays_s, default=None)


def _windows(latencies_s: Times, known: int, size: int) -> Iterator[Times]:
    """The last `size` of the first `known` latencies, and the same window with its newest or oldest value replaced by
    the neighbour outside it."""
    start = max(0, known - size)
    window_s = latencies_s[start:known]
    yield window_s
    if 0 < known < len(latencies_s):
        yield np.append(window_s[:-1], latencies_s[known])
    if start > 0:
        yield np.append(window_s[1:], latencies_s[start - 1])


def outlasted(history: History, claims: Claims, kind: Kind) -> Mask:
    """Requests of a kind that took longer, for their clients, than the delay of their model: those due for a hedge.

    Updates have no model and are counted together. Times within a microsecond are equal.
    """
    requests, hedge = history.requests, claims[Hedge]
    mask = np.zeros(len(requests), dtype=np.bool_)
    mine = requests["kind"] == kind
    model_numbers = models(history, claims) if kind is Kind.INFERENCE else np.zeros(len(requests), dtype=np.int64)
    end_s = np.where(np.isnan(requests["end_s"]), np.inf, requests["end_s"])
    for number in np.unique(model_numbers[mine]):
        members = np.flatnonzero(mine & (model_numbers == number))
        found = answers(history, mine & (model_numbers == number))
        by_known: dict[int, float | None] = {}
        counts = np.searchsorted(found.received_s, requests["sent_s"][members], side="right")
        for row, known in zip(members.tolist(), counts.tolist(), strict=True):
            if known not in by_known:
                by_known[known] = delay_s(found.client_latencies_s[max(0, known - hedge.window) : known], hedge)
            delay = by_known[known]
            mask[row] = delay is not None and end_s[row] - requests["sent_s"][row] > delay + 1e-6
    return mask


def in_flight(history: History, at_s: Times) -> Numbers:
    """Number of requests sent and not ended at each of these times."""
    sent_s = np.sort(history.requests["sent_s"])  # nan, never sent, sorts last
    end_s = np.sort(history.requests["end_s"])
    counts: Numbers = np.searchsorted(sent_s, at_s, side="right") - np.searchsorted(end_s, at_s, side="right")
    return counts


SILENT = 0.9
"""A backend without attempts for this share of the shortest open time had an open breaker. Attempts already under way
when the breaker opened may arrive slightly later."""


def probes(history: History, breaker: Breaker) -> list[int]:
    """Rows of the first attempt at a backend after each time its breaker was open.

    An open breaker shows as a gap between attempts that follows the number of consecutive failures that trips it; a
    backend that owns no model has gaps without those failures. Empty where consecutive failures do not open the
    breaker.
    """
    attempts, failures = history.attempts, breaker.failures
    rows: list[int] = []
    if failures is None:
        return rows
    for backend in range(history.scenario.backends):
        own = np.flatnonzero((attempts["backend"] == backend) & (attempts["request"] >= 0))
        bad = attempts["status"][own] >= 500
        later = np.flatnonzero(np.diff(attempts["start_s"][own]) >= SILENT * breaker.shortest_open_s) + 1
        rows += [int(own[index]) for index in later if index >= failures and bad[index - failures : index].all()]
    return sorted(rows)
