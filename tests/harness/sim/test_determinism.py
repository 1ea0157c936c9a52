"""Same scenario and seed, same history, in every process; and a digest that changes with any record."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.claims.features import Affinity, Claims, Failover
from harness.evidence.history import History, StepSeen
from harness.evidence.tables import CONNECTION
from harness.sim.world import play
from harness.targets.reference import ReferenceTarget
from suites.cache import more_models_than_fit_one
from suites.health import one_dies

ROOT = Path(__file__).parents[3]

DIGESTS = """
import sys
from harness.sim.world import play
from harness.targets.python import PythonTarget
from harness.targets.reference import ReferenceTarget
from suites.cache import more_models_than_fit_one
from suites.health import one_dies
from suites.spread import one_connection

for target in (ReferenceTarget(), PythonTarget("python:tests.mutants.policies:PicksAtRandom")):
    for make in (one_dies, more_models_than_fit_one, one_connection):
        print(play(target, make(target.claims), int(sys.argv[1])).digest())
"""


def digests(seed: int, hash_seed: int) -> list[str]:
    """Digests of six runs in a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS, str(seed)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


def test_same_seed_same_history_in_every_process() -> None:
    first = digests(seed=1, hash_seed=1)
    assert len(set(first)) == 6
    assert digests(seed=1, hash_seed=2) == first
    assert not set(digests(seed=2, hash_seed=1)) & set(first)


@pytest.fixture(scope="module")
def eventful() -> History:
    """A run with every kind of record that the simulator makes, and a connection as the fault proxy would add it."""
    claims = Claims((Affinity(), Failover(within_s=0.5)))
    scenario = replace(one_dies(claims), server=more_models_than_fit_one(claims).server)
    history = replace(play(ReferenceTarget(), scenario, 1), connections=np.zeros(2, dtype=CONNECTION))
    for table in ("requests", "attempts", "health_checks", "residency", "connections"):
        assert len(getattr(history, table)), table
    return history


def changed(history: History) -> Iterator[tuple[str, History]]:
    """`history` with one value of one column of one record changed, for every column, and with one record removed."""
    for table in ("requests", "attempts", "health_checks", "residency", "connections"):
        rows = getattr(history, table)
        yield f"{table} but the last", replace(history, **{table: rows[:-1]})
        for column in rows.dtype.names:
            other = rows.copy()
            old = other[column][-1]
            other[column][-1] = b"else" if old.dtype.kind == "S" else (7.5 if np.isnan(old) else old + 1)
            yield f"{table}.{column}", replace(history, **{table: other})
    step = history.steps[0]
    for name, value in {"kind": "Down", "backend": 2, "asked_s": 9.0, "effective_s": 9.0, "healed_s": 9.0}.items():
        yield f"step.{name}", replace(history, steps=(replace(step, **{name: value}),))  # type: ignore[arg-type]
    yield "a step more", replace(history, steps=(step, StepSeen("Join", 0, 1.0, 1.0)))
    yield "slack", replace(history, slack_s=history.slack_s + 0.001)
    yield "death", replace(history, died="no more")
    yield "correlation", replace(history, correlated=False)
    yield "seed", replace(history, seed=2)
    yield "scenario", replace(history, scenario=replace(history.scenario, name="another"))


def test_the_digest_covers_every_record(eventful: History) -> None:
    assert replace(eventful, requests=eventful.requests.copy()).digest() == eventful.digest()
    overlooked = [what for what, other in changed(eventful) if other.digest() == eventful.digest()]
    assert overlooked == []
    found = [other.digest() for _, other in changed(eventful)]
    assert len(set(found)) == len(found)
