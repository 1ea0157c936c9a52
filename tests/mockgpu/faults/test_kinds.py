"""Fault kinds as values: the kinds by name, and the seed of a run. Invalid ones are in `test_json_form`."""

from mockgpu.faults.kinds import CORRUPTIONS, IMMEDIATE, KINDS, NotReady, OutOfMemory, Slow, seeded


def test_every_kind_has_its_name() -> None:
    assert all(KINDS[kind.kind] is kind for kind in (*IMMEDIATE, *CORRUPTIONS))


def test_a_seed_reaches_the_faults_that_select() -> None:
    assert seeded(Slow("gpu-0", 1.0, 2.0, share=0.5), 7) == Slow("gpu-0", 1.0, 2.0, share=0.5, seed=7)
    assert seeded(NotReady("gpu-0", 1.0), 7) == NotReady("gpu-0", 1.0)


def test_an_engine_dies_at_once_unless_the_fault_is_selective() -> None:
    assert OutOfMemory("gpu-0", 1.0, dead=True).kills_at_once
    assert not OutOfMemory("gpu-0", 1.0).kills_at_once
    assert not OutOfMemory("gpu-0", 1.0, after=1, dead=True).kills_at_once
