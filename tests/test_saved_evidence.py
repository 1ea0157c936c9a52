"""A saved history of every scenario of the catalogue comes back equal and is judged to the same record."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evidence.history import History
from harness.judge import Judge, Play
from harness.property.declare import catalogue
from harness.scenario.model import Scenario, World
from harness.sim.world import play
from harness.targets import resolve
from harness.targets.base import Target
from reports.rows import row_of
from tests.harness.evidence.test_store import assert_equal

SEED = 1


def through_files(inner: Play, folder: Path) -> Play:
    """Like `inner`, but each history is saved and loaded before it is judged."""
    folder.mkdir()

    def play_and_save(target: Target, scenario: Scenario, seed: int) -> History:
        history = inner(target, scenario, seed)
        path = folder / scenario.digest()
        history.save(path)
        loaded = History.load(path)
        assert_equal(loaded, history)
        return loaded

    return play_and_save


@pytest.mark.slow
def test_every_simulated_history_is_judged_alike_after_loading(tmp_path: Path) -> None:
    target = resolve("reference")
    direct = Judge(target, SEED, {World.SIM: play})
    reloaded = Judge(target, SEED, {World.SIM: through_files(play, tmp_path / "histories")})
    judged = [item for item in catalogue() if World.SIM in item.worlds]
    for item in judged:
        assert row_of(reloaded.judge(item, World.SIM)) == row_of(direct.judge(item, World.SIM)), item.name
    assert len(judged) > 100
    sizes = [path.stat().st_size for path in (tmp_path / "histories").iterdir()]
    assert len(sizes) >= 30 and max(sizes) < 1_000_000
