"""Properties of recovery on hand-written histories."""

from __future__ import annotations

from harness.claims.features import Claims
from harness.property.findings import Held
from harness.property.verdict import Outcome
from suites.breaker.recovery import recovers_to_full_share
from tests.suites.breaker_histories import BREAKER, CLAIMS, ONE, Fate, noisy, one_faulty, with_one_at
from tests.suites.histories import outcome

AFTER_S = ONE.phase("after").start_s


def test_full_share_after_recovery() -> None:
    (found,) = recovers_to_full_share(one_faulty()[0], CLAIMS)
    assert isinstance(found, Held) and (found.ok, found.observed, found.bound) == (True, 0, 0)
    assert found.at_s == AFTER_S and found.sample in (40, 41)
    late = with_one_at(AFTER_S + 0.1, Fate(1))
    assert outcome(recovers_to_full_share, late, CLAIMS) is Outcome.FAIL
    before = with_one_at(AFTER_S - 0.02, Fate(1))
    assert outcome(recovers_to_full_share, before, CLAIMS) is Outcome.PASS
    assert outcome(recovers_to_full_share, noisy(late, 0.081), CLAIMS) is Outcome.INCONCLUSIVE


def test_a_share_without_affinity() -> None:
    """Too few requests for the sequential test to pass; a backend that gets none fails."""
    keyless = Claims((BREAKER,))
    never, _ = one_faulty(0.5, 1.0, 99.0)
    assert outcome(recovers_to_full_share, never, keyless) is Outcome.FAIL
    assert outcome(recovers_to_full_share, one_faulty()[0], keyless) is not Outcome.FAIL
