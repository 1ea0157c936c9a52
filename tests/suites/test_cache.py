"""Cache on hand-written histories: cold loads against those of round robin."""

from __future__ import annotations

import pytest

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.findings import undecided
from harness.property.verdict import Outcome
from harness.scenario.model import UnsupportedError
from suites.cache import affinity_hit_rate, more_models_than_fit_one
from tests.suites.histories import history_of, lost, only, outcome, with_loads

CLAIMS = Claims((Affinity(),))


def loads(count: int, round_robin: int) -> History:
    """A run with `count` cold loads, and its baseline."""
    history = history_of(more_models_than_fit_one(CLAIMS), lambda arrival: arrival.key % 4)
    return with_loads(history, count).with_baselines({"round_robin": with_loads(history, round_robin)})


@pytest.mark.parametrize(
    ("count", "round_robin", "ok"), [(24, 400, True), (200, 400, True), (201, 400, False), (200, 399, False)]
)
def test_at_most_half_of_the_loads_of_round_robin(count: int, round_robin: int, ok: bool) -> None:
    found = only(affinity_hit_rate, loads(count, round_robin), CLAIMS)
    assert (found.ok, found.observed, found.bound, found.sample) == (ok, count, round_robin / 2, 1000)
    assert found.alpha == 1e-4
    assert found.note == f"{count} cold loads, round robin {round_robin}, models 24"


def test_a_baseline_without_loads_is_vacuous() -> None:
    assert affinity_hit_rate(loads(0, 0), CLAIMS) == []
    assert outcome(affinity_hit_rate, loads(0, 0), CLAIMS) is Outcome.VACUOUS


def test_few_answers_are_undecided() -> None:
    """A balancer that rejects requests needs few loads."""
    few = lost(loads(24, 400), range(501))
    assert affinity_hit_rate(few, CLAIMS) == [undecided("only 499 of 1000 requests were answered")]
    assert only(affinity_hit_rate, lost(loads(24, 400), range(500)), CLAIMS).sample == 500


def test_models_fit_the_fleet_but_not_one_backend() -> None:
    scenario = more_models_than_fit_one(CLAIMS)
    (stream,) = scenario.load.streams
    assert stream.keys is not None
    fit_one = scenario.server.memory_mb // scenario.server.weights_mb
    assert fit_one < stream.keys.count <= scenario.backends * fit_one / 2


def test_the_key_must_be_the_model() -> None:
    with pytest.raises(UnsupportedError, match="affinity key session is not the model"):
        more_models_than_fit_one(Claims((Affinity(key="session"),)))
