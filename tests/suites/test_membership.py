"""Membership on hand-written histories: requests of a backend after its leave and after its join."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Claims
from harness.evidence.history import History
from harness.property.findings import Held, undecided
from harness.property.verdict import Outcome
from harness.stats import ALPHA, remap_band
from suites.membership import join_gets_share, leave_gets_nothing
from tests.suites.every_change_histories import (
    BACKGROUND,
    BEFORE,
    JOINED,
    NEWCOMER,
    WITHOUT,
    but,
    changing,
    claimed,
    conforming,
    late,
)
from tests.suites.histories import outcome

NO_CLAIMS = Claims()


def leaves(history: History) -> list[Held]:
    """The findings for each leave."""
    return [item for item in leave_gets_nothing(history, NO_CLAIMS) if isinstance(item, Held)]


def test_a_backend_that_left_gets_nothing() -> None:
    found = leaves(changing(claims=NO_CLAIMS))
    assert [item.ok for item in found] == [True] * 5
    assert all(item.observed == 0 for item in found)
    assert [item.at_s for item in found] == pytest.approx([2.2, 2.2, 3.7, 5.2, 6.7])
    # One sweep and the background requests until the next change; the newcomer never returns.
    assert 350 <= (found[1].sample or 0) <= 400 < (found[0].sample or 0)
    assert found[1].note.startswith("gpu-0 left at 2.20 s: 0 of ")


def test_one_request_too_many() -> None:
    found = leaves(changing(but({WITHOUT + 2}, lambda key: key == 2, lambda key: 2), NO_CLAIMS))
    assert [(item.ok, item.observed) for item in found] == [(True, 0)] * 3 + [(False, 1), (True, 0)]


@pytest.mark.parametrize(("effective_s", "ok"), [(6.103, False), (6.104, True)])
def test_requests_sent_before_the_leave_took_effect(effective_s: float, ok: bool) -> None:
    """The third request of the sweep goes to the departed backend; it is sent at 6.1033 s."""
    history = changing(but({WITHOUT + 2}, lambda key: key == 2, lambda key: 2), NO_CLAIMS)
    sent_s = history.requests["sent_s"][(history.requests["stream"] == WITHOUT + 2)]
    assert sent_s[2] == pytest.approx(6.1 + 2 / 600)
    (position,) = [number for number, step in enumerate(history.steps) if (step.kind, step.backend) == ("Leave", 2)]
    found = leaves(late(history, position, effective_s - history.steps[position].asked_s))[3]
    assert found.ok == ok and found.at_s == pytest.approx(effective_s)


def test_slack_allows_a_balancer_that_was_kept_from_leaving() -> None:
    """The third request of the sweep is sent 3 ms after the leave took effect."""
    history = changing(but({WITHOUT + 2}, lambda key: key == 2, lambda key: 2), NO_CLAIMS)
    (position,) = [number for number, step in enumerate(history.steps) if (step.kind, step.backend) == ("Leave", 2)]
    history = late(history, position, 6.1 - history.steps[position].asked_s)
    slack_s = np.full(int(history.scenario.end_s) + 1, 0.005)
    assert not leaves(history)[3].ok
    assert leaves(replace(history, slack_s=slack_s))[3].ok


def test_an_attempt_counts_for_its_request() -> None:
    """A retry or a late arrival of a request sent before the leave is no violation."""
    history = changing(claims=NO_CLAIMS)
    row = history.attempts[history.attempts["request"] == 0].copy()
    row["backend"], row["start_s"] = 0, 3.0
    history = replace(history, attempts=np.concatenate([history.attempts, row]))
    assert all(item.ok for item in leaves(history))
    stray = row.copy()
    stray["request"] = np.flatnonzero(history.requests["stream"] == WITHOUT)[0]
    history = replace(history, attempts=np.concatenate([history.attempts, stray]))
    assert [item.ok for item in leaves(history)] == [True, False, True, True, True]
    foreign = replace(history, attempts=history.attempts.copy())
    foreign.attempts["request"][-1] = -1
    assert all(item.ok for item in leaves(foreign))


@pytest.mark.parametrize(("requests", "findings"), [(9, 4), (10, 5)])
def test_a_hardly_used_backend_yields_no_finding(requests: int, findings: int) -> None:
    history = changing(lambda arrival: NEWCOMER if arrival.stream == JOINED and arrival.key < requests else None
                       if arrival.stream == JOINED else conforming(arrival), NO_CLAIMS)  # fmt: skip
    assert len(leaves(history)) == findings
    to_one = but(set(range(7)), lambda key: True, lambda key: 0)
    assert len(leaves(changing(to_one, NO_CLAIMS))) == 1


def test_only_requests_before_its_leave_count_as_use() -> None:
    """gpu-0 gets nothing in the first two sweeps, and its share after its return."""
    history = changing(but({BEFORE, JOINED, BACKGROUND}, lambda key: key % 4 == 0, lambda key: 1), NO_CLAIMS)
    assert [item.note[:5] for item in leaves(history)] == ["gpu-4", "gpu-1", "gpu-2", "gpu-3"]


def test_a_leave_without_later_requests() -> None:
    history = changing(but(set(range(WITHOUT, 7)), lambda key: True, lambda key: None), NO_CLAIMS)
    assert leaves(history) == []
    assert outcome(leave_gets_nothing, history, NO_CLAIMS) is Outcome.VACUOUS


# --- a backend that has joined ------------------------------------------------------------------------------


def joins(history: History, claims: Claims) -> list[Held]:
    """The findings for each join."""
    return [item for item in join_gets_share(history, claims) if isinstance(item, Held)]


def test_joined_backends_get_their_share() -> None:
    found = joins(changing(), claimed())
    assert [(item.ok, item.sample, item.alpha) for item in found] == [(True, 300, ALPHA / 4)] * 4
    assert [item.observed for item in found] == [0.2, 0.25, 0.25, 0.25]
    assert found[0].note == "gpu-4 joined 4 others: 60 of 300 requests in 'joined'"
    assert found[1].note.startswith("gpu-0 joined 2 others: ")
    for item, members in zip(found, (5, 3, 3, 3), strict=True):
        low, high = remap_band(300, members, "ring", 150, ALPHA / 4)
        assert item.bound == (low / 300, high / 300)


@pytest.mark.parametrize(("count", "ok"), [(29, False), (30, True), (120, True), (121, False)])
def test_without_a_claim_from_half_to_double(count: int, ok: bool) -> None:
    history = changing(but({JOINED}, lambda key: True, lambda key: NEWCOMER if key < count else key % 4), NO_CLAIMS)
    found = joins(history, NO_CLAIMS)
    assert (found[0].ok, found[0].bound, found[0].observed) == (ok, (0.1, 0.4), count / 300)


@pytest.mark.parametrize(("count", "ok"), [(49, False), (50, True), (200, True), (201, False)])
def test_a_returning_backend_shares_with_the_present_members(count: int, ok: bool) -> None:
    history = changing(but({WITHOUT + 1}, lambda key: True, lambda key: 0 if key < count else 2 + key % 2), NO_CLAIMS)
    assert (joins(history, NO_CLAIMS)[1].ok, joins(history, NO_CLAIMS)[1].bound) == (ok, (50 / 300, 200 / 300))


def test_joins_without_evidence() -> None:
    history = changing(but({JOINED}, lambda key: True, lambda key: None))
    assert [item.note[:5] for item in joins(history, claimed())] == ["gpu-0", "gpu-1", "gpu-2"]
    scarce = changing(but({JOINED}, lambda key: key >= 149, lambda key: None))
    assert join_gets_share(scarce, claimed())[0] == undecided("only 149 of 300 requests reached a backend", at_s=0.7)
    slow = join_gets_share(late(changing(), 0, 0.91), claimed())
    assert "after the first request of 'joined'" in str(slow[0])
    assert outcome(join_gets_share, late(changing(), 0, 0.89), claimed()) is Outcome.PASS
