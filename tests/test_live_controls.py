"""Planted faults are caught over real sockets too: two mutants, and a real nginx whose hash is not consistent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.judge import Judge
from harness.live.session import LiveSession
from harness.model import World
from harness.property import catalogue
from harness.target import Target
from harness.targets.nginx import NginxTarget
from harness.targets.python import PythonTarget
from harness.verdict import Outcome

PROPERTIES = {item.name: item for item in catalogue()}


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession() as shared:
        yield shared


CASES = [
    (
        PythonTarget("python:tests.mutants.policies:Modulo"),
        ("affinity.leave.only-departed-keys-move", "affinity.leave.share"),
        ("affinity.return.restores",),
    ),
    (PythonTarget("python:tests.mutants.policies:NeverEjects"), ("health.failover.within-bound",), ()),
    (
        NginxTarget(consistent=False),
        ("affinity.leave.only-departed-keys-move", "affinity.leave.share"),
        (),
    ),
]


@pytest.mark.parametrize(("target", "fail", "hold"), CASES, ids=["modulo", "never-ejects", "nginx-not-consistent"])
def test_fault_is_caught_live(
    target: Target, fail: tuple[str, ...], hold: tuple[str, ...], session: LiveSession
) -> None:
    judge = Judge(target, 1, {World.LIVE: session.play})
    for name in fail:
        record = judge.judge(PROPERTIES[name], World.LIVE)
        assert record.outcome is Outcome.FAIL, record.reason
        assert record.observed is not None
        assert record.bound is not None
    for name in hold:
        record = judge.judge(PROPERTIES[name], World.LIVE)
        assert record.outcome is Outcome.PASS, record.reason
