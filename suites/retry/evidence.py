"""Queries on retries: which attempts follow which, and which failed in a way that is retried."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims, Retry
from harness.evidence.history import History
from harness.evidence.tables import UNSEEN, Mask, Numbers
from harness.scenario.model import Ending, Kind


def turns(history: History) -> Numbers:
    """For each attempt the number of earlier attempts of its request; -1 for an attempt without a request."""
    request = history.attempts["request"].astype(np.int64)
    order = np.argsort(request, kind="stable")  # rows are ordered by time, and so are those of each request
    ordered = request[order]
    position = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    result = np.empty(len(ordered), dtype=np.int64)
    result[order] = np.where(ordered >= 0, position, -1)
    return result


def followers(history: History) -> Numbers:
    """For each attempt the row of its request's next attempt; UNSEEN where there is none."""
    request = history.attempts["request"]
    order = np.argsort(request, kind="stable")
    following = np.full(len(request), UNSEEN, dtype=np.int64)
    same = (request[order][1:] == request[order][:-1]) & (request[order][1:] >= 0)
    following[order[:-1][same]] = order[1:][same]
    return following


def counts(history: History) -> Numbers:
    """For each request the number of its attempts that backends saw."""
    own = history.attempts["request"][history.attempts["request"] >= 0]
    return np.bincount(own, minlength=len(history.requests)).astype(np.int64)


def dropped(history: History) -> Mask:
    """Attempts whose backend closed the connection before any answer: a connection failure for the balancer."""
    attempts = history.attempts
    mask: Mask = (attempts["ending"] == Ending.CUT) & (attempts["status"] == 0)
    return mask


def refused(history: History, claims: Claims) -> Mask:
    """Attempts answered with a status that is claimed to be retried."""
    mask: Mask = np.isin(history.attempts["status"], claims[Retry].statuses)
    return mask


def given_up(history: History) -> Mask:
    """Attempts that the balancer abandoned before any answer."""
    attempts = history.attempts
    mask: Mask = (attempts["ending"] == Ending.CLIENT_GONE) & (attempts["status"] == 0)
    return mask


def inference(history: History) -> Mask:
    """Attempts of this run's inference requests."""
    mask: Mask = (history.attempts["kind"] == Kind.INFERENCE) & (history.attempts["request"] >= 0)
    return mask


def updates(history: History) -> Mask:
    """Attempts of this run's updates."""
    mask: Mask = (history.attempts["kind"] == Kind.UPDATE) & (history.attempts["request"] >= 0)
    return mask


def started_in(history: History, start_s: float, end_s: float) -> Mask:
    """Attempts that reached their backend in [start_s, end_s)."""
    at_s = history.attempts["start_s"]
    mask: Mask = (at_s >= start_s) & (at_s < end_s)
    return mask
