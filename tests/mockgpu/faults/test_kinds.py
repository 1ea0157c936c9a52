"""Fault kinds as values: the kinds by name, and the seed of a run. Invalid ones are in `test_json_form`."""

from typing import get_args

from mockgpu.faults import kinds
from mockgpu.faults.kinds import CORRUPTIONS, IMMEDIATE, KINDS, NotReady, OutOfMemory, RequestFault, Slow, seeded


def test_every_kind_has_its_name_and_is_passed_on_to_scenarios() -> None:
    assert all(KINDS[kind.kind] is kind for kind in (*IMMEDIATE, *CORRUPTIONS))
    assert set(get_args(RequestFault)) == set(KINDS.values())
    assert {kind.__name__ for kind in KINDS.values()} < set(kinds.__all__)


def test_a_seed_reaches_the_faults_that_select() -> None:
    assert seeded(Slow("gpu-0", 1.0, 2.0, share=0.5), 7) == Slow("gpu-0", 1.0, 2.0, share=0.5, seed=7)
    assert seeded(NotReady("gpu-0", 1.0), 7) == NotReady("gpu-0", 1.0)


def test_an_engine_dies_at_once_unless_the_fault_is_selective() -> None:
    assert OutOfMemory("gpu-0", 1.0, dead=True).kills_at_once
    assert not OutOfMemory("gpu-0", 1.0).kills_at_once
    assert not OutOfMemory("gpu-0", 1.0, after=1, dead=True).kills_at_once
