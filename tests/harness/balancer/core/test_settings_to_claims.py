"""Claims from settings: equal names, and what has none."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from harness.balancer.core.settings_to_claims import FAILURE_STATUSES, claim_of, claims_from_settings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import SWITCHES, Settings
from harness.claims.features import FEATURES, Claims, Ejection, Retry, Spread
from harness.targets.reference import SUITE_PROFILE

CLAIM_ONLY = {"ejection": {"statuses"}, "limits": {"rate_per_s", "burst", "by_urgency"}}
"""Fields of claims without a setting of their name; they are derived otherwise."""


def test_every_number_of_a_claim_has_a_setting_of_its_name() -> None:
    for name, feature in FEATURES.items():
        part = getattr(SUITE_PROFILE, name, None)
        if is_dataclass(part):
            missing = {field.name for field in fields(feature)} - {field.name for field in fields(part)}
            assert missing == CLAIM_ONLY.get(name, set()), name


def test_every_mechanism_that_is_on_is_claimed() -> None:
    assert {claim.table for claim in claims_from_settings(SUITE_PROFILE)} == set(FEATURES)
    bare = Settings().without(SWITCHES)
    assert [claim.table for claim in claims_from_settings(bare)] == ["affinity", "failover"]


def test_values_are_those_of_the_settings() -> None:
    claims = Claims(claims_from_settings(SUITE_PROFILE))
    assert claims[Ejection] == Ejection(failures=5, open_s=0.5, statuses=FAILURE_STATUSES, cap_share=0.5)
    assert claims[Spread] == Spread(policy="two_choices")
    assert claim_of(Retry, RetrySettings(statuses=frozenset({504, 502}))).statuses == (502, 504)
