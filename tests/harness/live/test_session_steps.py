"""Timeline of a live run, except single faults: restarts, the sentinel, unsupported changes."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from harness.live.session import LiveSession
from harness.scenario.faults import Drain, Kill, Pause, Restart, Weigh
from harness.scenario.model import UnsupportedError
from harness.targets.base import ChangeStep, Deployment
from harness.targets.reference import ReferenceTarget
from tests.harness.live.helpers import traffic

SEED = 11
AWAY_S = 0.5
DEAD_S = 2.0
"""The sentinel's value for a ping without an answer."""


class NeverDrains(ReferenceTarget):
    """The reference, without support for draining."""

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        """UnsupportedError for a drain, else as the reference."""
        if any(item.draining for item in deployment.backends):
            raise UnsupportedError("cannot drain")
        return super().change(deployment)


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession() as opened:
        yield opened


@pytest.mark.slow
def test_a_restart_heals_by_itself_and_the_sentinel_pings_somebody_else(session: LiveSession) -> None:
    timeline = (Restart("gpu-0", 0.3, for_s=AWAY_S), Restart("gpu-1", 0.3), Pause("gpu-2", 0.3))
    history = session.play(ReferenceTarget(), traffic(1.5, *timeline, backends=3), SEED)
    slow, quick, paused = history.steps
    assert all(step.took_effect for step in history.steps)
    assert slow.healed_s >= slow.asked_s + AWAY_S
    assert quick.effective_s < quick.healed_s < slow.healed_s
    assert paused.took_effect and not paused.healed_s > 0.0
    assert history.slack_s.max() < DEAD_S


@pytest.mark.slow
def test_the_sentinel_pings_a_backend_that_is_left_alone(session: LiveSession) -> None:
    history = session.play(ReferenceTarget(), traffic(1.5, Kill("gpu-0", 0.3)), SEED)
    assert history.slack_s.max() < DEAD_S
    assert history.answered()[history.first_backends() == 1].all()


def test_a_change_that_cannot_be_made_is_told_before_anything_runs(
    session: LiveSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer = Mock()
    monkeypatch.setattr("harness.live.session.Balancer", balancer)
    with pytest.raises(UnsupportedError, match=r"^cannot drain$"):
        session.play(NeverDrains(), traffic(1.0, Weigh("gpu-1", 0.1, 3), Drain("gpu-0", 0.2)), SEED)
    assert not balancer.called
