"""The live world with a real Toxiproxy between balancer and backends agrees with the embedded one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from harness.evidence.history import History
from harness.judge import Judge
from harness.live.faults.injector import REAL
from harness.live.session import LiveSession
from harness.property.declare import Property, catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import World
from harness.targets.reference import ReferenceTarget
from tests.harness.fault_effects import TRIALS, Effect

pytestmark = pytest.mark.skipif(shutil.which(REAL) is None, reason=f"no {REAL} on PATH")

SEED = 11
TRIES = 3
NOISY_S = 0.02
WAYS = next(trial for trial in TRIALS if trial.name == "ways")
NAMES = ("health.failover.within-bound", "health.check-ups.independent")
"""Properties whose scenarios kill a backend, and silence one."""


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession("real") as opened:
        yield opened


@pytest.fixture(scope="module")
def ways(session: LiveSession) -> History:
    """All transport faults in one run, repeated while effects are missing and the run was noisy."""
    for _ in range(TRIES):
        history = session.play(WAYS.target, WAYS.scenario(), SEED)
        if history.slack_s.max() <= NOISY_S or not any(WAYS.lacking(history, effect) for effect in WAYS.effects):
            break
    return history


@pytest.mark.slow
@pytest.mark.parametrize("effect", WAYS.effects, ids=lambda effect: str(effect.kind.__name__))
def test_every_fault_of_the_way_shows_and_heals(ways: History, effect: Effect) -> None:
    assert WAYS.lacking(ways, effect) == []


def outcome(session: LiveSession, item: Property) -> Outcome:
    """Outcomes of the reference; inconclusive ones are repeated."""
    for _ in range(TRIES):
        record = Judge(ReferenceTarget(), SEED, {World.LIVE: session.play}).judge(item, World.LIVE)
        if record.outcome is not Outcome.INCONCLUSIVE:
            break
    return record.outcome


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_properties_come_to_the_same_verdict(session: LiveSession, name: str) -> None:
    (item,) = [item for item in catalogue() if item.name == name]
    assert isinstance(item, Property)
    with LiveSession() as embedded:
        expected = outcome(embedded, item)
    assert outcome(session, item) in (expected, Outcome.INCONCLUSIVE)
    assert expected in (Outcome.PASS, Outcome.INCONCLUSIVE)
