"""Both worlds say the same of the reference: virtual time does not flatter, and sockets do not blame."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.judge import Judge
from harness.live.session import LiveSession
from harness.property.declare import Property, catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import World
from harness.sim.world import play
from harness.targets import resolve

SEED = 1
AT_MOST_INCONCLUSIVE = 0.2


class Courts:
    """One judge for both worlds, and how many live properties could not be decided."""

    def __init__(self, session: LiveSession) -> None:
        self.judge = Judge(resolve("reference"), SEED, {World.SIM: play, World.LIVE: session.play})
        self.judged = 0
        self.inconclusive: list[str] = []


@pytest.fixture(scope="module")
def courts() -> Iterator[Courts]:
    with LiveSession() as session:
        yield Courts(session)


IN_BOTH = [item for item in catalogue() if item.worlds == frozenset(World)]


@pytest.mark.parametrize("item", IN_BOTH, ids=lambda item: item.name)
def test_worlds_agree(item: Property, courts: Courts) -> None:
    sim = courts.judge.judge(item, World.SIM)
    live = courts.judge.judge(item, World.LIVE)
    courts.judged += 1
    if live.outcome is Outcome.INCONCLUSIVE:
        courts.inconclusive.append(f"{item.name}: {live.reason}")
        pytest.skip(f"live is inconclusive: {live.reason}")
    assert (live.outcome, live.reason if live.outcome is Outcome.ERROR else "") == (sim.outcome, ""), (
        f"sim: {sim.outcome} {sim.reason}; live: {live.outcome} {live.reason}"
    )
    assert sim.outcome is Outcome.PASS, sim.reason


def test_few_live_properties_were_inconclusive(courts: Courts) -> None:
    assert len(courts.inconclusive) <= AT_MOST_INCONCLUSIVE * max(courts.judged, 1), courts.inconclusive
