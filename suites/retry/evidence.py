"""What a history says of retries: which attempts follow which, and which failed in a way that is tried again."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims, Retry
from harness.evidence.history import UNSEEN, History, Mask, Numbers
from harness.scenario.model import Ending, Kind


def turns(history: History) -> Numbers:
    """For each attempt how many the same request had before it; -1 where it belongs to none."""
    request = history.attempts["request"].astype(np.int64)
    order = np.argsort(request, kind="stable")  # rows are ordered by time, so each request's own are too
    ordered = request[order]
    place = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    result = np.empty(len(ordered), dtype=np.int64)
    result[order] = np.where(ordered >= 0, place, -1)
    return result


def followers(history: History) -> Numbers:
    """For each attempt the row of its request's next one; UNSEEN where there is none."""
    request = history.attempts["request"]
    order = np.argsort(request, kind="stable")
    following = np.full(len(request), UNSEEN, dtype=np.int64)
    same = (request[order][1:] == request[order][:-1]) & (request[order][1:] >= 0)
    following[order[:-1][same]] = order[1:][same]
    return following


def counts(history: History) -> Numbers:
    """For each request how many attempts backends saw of it."""
    own = history.attempts["request"][history.attempts["request"] >= 0]
    return np.bincount(own, minlength=len(history.requests)).astype(np.int64)


def dropped(history: History) -> Mask:
    """Attempts whose connection ended at the backend's side before any answer: a failed connection to the balancer."""
    attempts = history.attempts
    mask: Mask = (attempts["ending"] == Ending.CUT) & (attempts["status"] == 0)
    return mask


def refused(history: History, claims: Claims) -> Mask:
    """Attempts that were answered with a status which is claimed to be tried again."""
    mask: Mask = np.isin(history.attempts["status"], claims[Retry].statuses)
    return mask


def given_up(history: History) -> Mask:
    """Attempts that the balancer left before any answer."""
    attempts = history.attempts
    mask: Mask = (attempts["ending"] == Ending.CLIENT_GONE) & (attempts["status"] == 0)
    return mask


def inference(history: History) -> Mask:
    """Attempts of inference requests of this run."""
    mask: Mask = (history.attempts["kind"] == Kind.INFERENCE) & (history.attempts["request"] >= 0)
    return mask


def updates(history: History) -> Mask:
    """Attempts of updates of this run."""
    mask: Mask = (history.attempts["kind"] == Kind.UPDATE) & (history.attempts["request"] >= 0)
    return mask


def started_in(history: History, start_s: float, end_s: float) -> Mask:
    """Attempts that reached their backend from `start_s` until before `end_s`."""
    at_s = history.attempts["start_s"]
    mask: Mask = (at_s >= start_s) & (at_s < end_s)
    return mask
