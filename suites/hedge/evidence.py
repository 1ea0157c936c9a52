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
from harness.evidence.queries import AttemptSelection, RequestSelection
from harness.evidence.tables import UNSEEN, Numbers, Times
from harness.scenario.model import Kind


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


def hedges(history: History) -> AttemptSelection:
    """The attempts of inference requests that were sent beside another attempt of the same request."""
    return history.all_attempts().inference().later()


def races(history: History) -> dict[int, AttemptSelection]:
    """The attempts of each hedged inference request, in order of their first hedges."""
    raced = hedges(history).requests().attempts()
    return {request: raced.where(raced["request"] == request) for request in hedges(history)["request"].tolist()}


def winners(history: History) -> Numbers:
    """For each request the row of the attempt whose good answer reached the client; UNSEEN where there is none."""
    rows = np.full(len(history.requests), UNSEEN, dtype=np.int64)
    good = history.all_requests().answered().attempts().good()
    passed_on = good.where(good.of_request("answered_by") == good["backend"])
    rows[passed_on["request"][::-1]] = passed_on.rows[::-1]  # last write wins: the earliest
    return rows


def models(keys: Numbers, claims: Claims) -> Numbers:
    """The model number of each of these affinity keys; 0 for all where the key is not the model."""
    named = Affinity not in claims or claims[Affinity].key_is_model
    return keys.astype(np.int64) if named else np.zeros(len(keys), dtype=np.int64)


def answers(history: History, requests: RequestSelection) -> Answers:
    """Good answers to these requests."""
    won = winners(history)[requests.rows]
    requests, won = requests.where(won != UNSEEN), won[won != UNSEEN]
    given_s = history.attempts["first_byte_s"][won]
    latencies_s = given_s - requests.reached_s()
    received_s = requests["first_byte_s"]
    client_latencies_s = received_s - requests["sent_s"]
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


def outlasted(history: History, claims: Claims, kind: Kind) -> RequestSelection:
    """Requests of a kind that took longer, for their clients, than the delay of their model: those due for a hedge.

    Updates have no model and are counted together. Times within a microsecond are equal.
    """
    hedge, requests = claims[Hedge], history.all_requests()
    mine = requests.inference() if kind is Kind.INFERENCE else requests.updates()
    numbers = models(mine["key"], claims) if kind is Kind.INFERENCE else np.zeros(len(mine), dtype=np.int64)
    slow = mine.where(np.zeros(len(mine), dtype=np.bool_))
    for number in np.unique(numbers):
        members = mine.where(numbers == number)
        found = answers(history, members)
        counts = np.searchsorted(found.received_s, members["sent_s"], side="right").tolist()
        delays_s = {
            known: delay_s(found.client_latencies_s[max(0, known - hedge.window) : known], hedge)
            for known in set(counts)
        }
        took_s = np.where(np.isnan(members["end_s"]), np.inf, members["end_s"]) - members["sent_s"]
        due_s = [np.inf if (delay := delays_s[known]) is None else delay for known in counts]
        slow |= members.where(took_s > np.array(due_s) + 1e-6)
    return slow


SILENT = 0.9
"""A backend without attempts for this share of the shortest open time had an open breaker. Attempts already under way
when the breaker opened may arrive slightly later."""


def probes(history: History, breaker: Breaker) -> list[int]:
    """Rows of the first attempt at a backend after each time its breaker was open.

    An open breaker shows as a gap between attempts that follows the number of consecutive failures that trips it; a
    backend that owns no model has gaps without those failures. Empty where consecutive failures do not open the
    breaker.
    """
    failures = breaker.failures
    rows: list[int] = []
    if failures is None:
        return rows
    for backend in range(history.scenario.backends):
        own = history.attempts_on(backend)
        bad = own["status"] >= 500
        later = np.flatnonzero(np.diff(own["start_s"]) >= SILENT * breaker.shortest_open_s) + 1
        rows += [int(own.rows[index]) for index in later if index >= failures and bad[index - failures : index].all()]
    return sorted(rows)
