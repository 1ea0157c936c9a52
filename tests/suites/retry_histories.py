"""Hand-written histories of retries: each request with given attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.evidence.history import History, empty_requests
from harness.evidence.tables import ATTEMPT
from harness.scenario.model import Ending, Failure, Kind, Method, Scenario
from tests.suites.histories import on_time


@dataclass(frozen=True)
class Try:
    """One attempt: start, backend and outcome."""

    start_s: float
    backend: int = 0
    status: int = 200
    ending: Ending = Ending.ANSWERED
    end_s: float | None = None


@dataclass(frozen=True)
class TriedRequest:
    """One request with its attempts, and the answer that its client got."""

    tries: tuple[Try, ...]
    status: int = 200
    kind: Kind = Kind.INFERENCE
    method: Method = Method.POST
    failure: Failure = Failure.NONE
    sent_s: float | None = None
    end_s: float | None = None


SERVICE_S = 0.01
LOST_S = 1.0
"""Default send time of a request without attempts."""


def refusal(start_s: float, backend: int = 0, status: int = 503) -> Try:
    """An attempt that is answered with an error."""
    return Try(start_s, backend, status)


def drop(start_s: float, backend: int = 0) -> Try:
    """An attempt whose connection ends without an answer."""
    return Try(start_s, backend, 0, Ending.CUT)


def broken_off(start_s: float, backend: int = 0) -> Try:
    """An attempt whose answer ends before it is complete."""
    return Try(start_s, backend, 200, Ending.CUT)


def left(start_s: float, end_s: float, backend: int = 0) -> Try:
    """An attempt that the balancer abandoned."""
    return Try(start_s, backend, 0, Ending.CLIENT_GONE, end_s)


def written(scenario: Scenario, tried: Sequence[TriedRequest], slack_s: float = 0.0) -> History:
    """The history of these requests under `scenario`, whose steps took effect on time."""
    requests = empty_requests(len(tried))
    rows = []
    for number, item in enumerate(tried):
        row = requests[number]
        first_s = item.tries[0].start_s if item.tries else LOST_S
        last = item.tries[-1] if item.tries else None
        row["kind"], row["method"], row["status"], row["failure"] = item.kind, item.method, item.status, item.failure
        row["sent_s"] = row["intended_s"] = first_s if item.sent_s is None else item.sent_s
        ended_s = LOST_S if last is None else _end_s(last)
        row["end_s"] = ended_s if item.end_s is None else item.end_s
        for attempt in item.tries:
            first_byte_s = np.nan if not attempt.status else _end_s(attempt)
            rows.append((number, item.kind, attempt, first_byte_s))
    attempts = np.zeros(len(rows), dtype=ATTEMPT)
    for index, (number, kind, attempt, first_byte_s) in enumerate(sorted(rows, key=lambda row: row[2].start_s)):
        attempts[index]["request"], attempts[index]["kind"] = number, kind
        attempts[index]["first_byte_s"] = first_byte_s
        for name in ("backend", "status", "ending", "start_s"):
            attempts[index][name] = getattr(attempt, name)
        attempts[index]["end_s"] = _end_s(attempt)
    seconds = int(scenario.end_s) + 1
    return History(scenario, 1, requests, attempts, steps=on_time(scenario), slack_s=np.full(seconds, slack_s))


def _end_s(attempt: Try) -> float:
    return attempt.start_s + SERVICE_S if attempt.end_s is None else attempt.end_s
