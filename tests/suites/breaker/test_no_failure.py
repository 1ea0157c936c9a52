"""Properties of breakers on histories without failures."""

from __future__ import annotations

from suites.breaker.backoff import backoff_grows, backoff_jittered
from suites.breaker.half_open import abort_frees_slot, failed_probe_reopens, one_hung_probe, one_slow_probe
from suites.breaker.isolation import others_are_answered
from suites.breaker.open import ignores_late_failures, open_fails_fast, open_for_its_time, open_gets_nothing
from suites.breaker.recovery import recovers_to_full_share
from suites.breaker.scenarios import probes_linger
from tests.suites.breaker_histories import ALL, CLAIMS, ONE, behind, played

LINGER = probes_linger(CLAIMS)


def test_no_failure_no_finding() -> None:
    healthy = played(ONE, behind(3))
    for check in (open_gets_nothing, ignores_late_failures, failed_probe_reopens, backoff_grows):
        assert check(healthy, CLAIMS) == []
    for check in (recovers_to_full_share, others_are_answered):
        assert check(healthy, CLAIMS) == []
    calm = played(ALL, behind(4))
    for check in (open_for_its_time, open_fails_fast, backoff_jittered):
        assert check(calm, CLAIMS) == []
    for check in (one_slow_probe, one_hung_probe, abort_frees_slot):
        assert check(played(LINGER, behind(4)), CLAIMS) == []
