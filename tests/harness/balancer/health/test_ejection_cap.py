"""The cap on ejections: at most its share of the members at once, but at least one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.health.ejection import PassiveEjection
from tests.harness.balancer.driver import ReadinessDriver

DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=150)


def names(count: int) -> list[str]:
    return [f"gpu-{number:03}" for number in range(count)]


def capped(members: list[str], cap_share: float, failures: int = 3, open_s: float = 10.0) -> PassiveEjection:
    ejection = PassiveEjection(failures, open_s, cap_share)
    ejection.keep_only(frozenset(members))
    return ejection


def fail(ejection: PassiveEjection, name: str, times: int, now_s: float) -> None:
    for _ in range(times):
        ejection.settle(name, ok=False, now_s=now_s)


def out(ejection: PassiveEjection, members: list[str], now_s: float) -> list[str]:
    return [name for name in members if ejection.ejected(name, now_s)]


@pytest.mark.parametrize(
    ("count", "cap_share", "places"),
    [(5, 0.5, 2), (4, 0.5, 2), (10, 0.1, 1), (4, 0.1, 1), (1, 0.5, 1), (100, 0.29, 29), (3, 1.0, 3), (20, 0.999, 19)],
)
def test_when_all_fail_the_cap_is_out_and_the_others_are_tried_on(count: int, cap_share: float, places: int) -> None:
    """E13: five of five fail under a cap of half: three are still used. 10 % of 4 is one here, unlike Envoy's none."""
    members = names(count)
    ejection = capped(members, cap_share)
    for name in members:
        fail(ejection, name, 5, 0.0)
    assert out(ejection, members, 0.0) == members[:places]


def test_without_a_cap_all_may_be_out() -> None:
    members = names(4)
    ejection = PassiveEjection(1, 10.0)
    ejection.keep_only(frozenset(members))
    for name in members:
        fail(ejection, name, 1, 0.0)
    assert out(ejection, members, 5.0) == members


def test_without_a_cap_nobody_needs_to_be_named() -> None:
    ejection = PassiveEjection(1, 10.0)
    for name in names(3):
        fail(ejection, name, 1, 0.0)
    assert out(ejection, names(3), 5.0) == names(3)


def test_the_next_failure_after_a_place_is_free_ejects() -> None:
    ejection = capped(["a", "b"], 0.5)
    fail(ejection, "a", 3, 0.0)
    fail(ejection, "b", 7, 5.0)
    assert out(ejection, ["a", "b"], 9.9) == ["a"]
    assert out(ejection, ["a", "b"], 10.0) == []  # queries eject no backend
    fail(ejection, "b", 1, 10.0)
    assert out(ejection, ["a", "b"], 10.0) == ["b"]
    assert ejection.until_s("b", 10.0) == 20.0


def test_a_success_while_waiting_ends_the_run() -> None:
    ejection = capped(["a", "b"], 0.5)
    fail(ejection, "a", 3, 0.0)
    fail(ejection, "b", 3, 0.0)
    ejection.settle("b", ok=True, now_s=1.0)
    fail(ejection, "b", 2, 10.0)
    assert out(ejection, ["a", "b"], 10.0) == []
    fail(ejection, "b", 1, 10.0)
    assert out(ejection, ["a", "b"], 10.0) == ["b"]


@pytest.mark.parametrize("cap_share", [0.5, 1.0])
def test_the_threshold_is_the_same_in_every_cycle(cap_share: float) -> None:
    """F3: 3 failures, each time."""
    ejection = capped(["a", "b"], cap_share)
    for cycle in range(4):
        now_s = 10.0 * cycle
        observed = []
        for _ in range(3):
            observed.append(ejection.ejected("a", now_s))
            fail(ejection, "a", 1, now_s)
        assert observed == [False, False, False]
        assert ejection.ejected("a", now_s)


def test_an_ejection_holds_for_its_whole_time_whatever_others_do() -> None:
    """F6, E14: results, ejections of others and queries do not end it early."""
    members = names(4)
    ejection = capped(members, 0.5)
    fail(ejection, members[0], 3, 0.0)
    for step in range(100):
        now_s = step / 10
        for name in members[1:]:
            ejection.settle(name, ok=step % 5 == 0, now_s=now_s)
        assert ejection.ejected(members[0], now_s)
        assert len(out(ejection, members, now_s)) <= 2
    assert not ejection.ejected(members[0], 10.0)


def test_fewer_members_lower_the_cap_and_the_first_to_end_are_back() -> None:
    members = names(8)
    ejection = capped(members, 0.5)
    for at_s, name in enumerate(members[:4]):
        fail(ejection, name, 3, float(at_s))
    ejection.keep_only(frozenset(members[:5]))
    assert out(ejection, members, 4.0) == members[2:4]
    fail(ejection, members[0], 2, 4.0)  # back with a count of 0
    assert not ejection.ejected(members[0], 4.0)


def test_who_left_frees_its_place_and_returns_clean() -> None:
    """S8."""
    ejection = capped(["a", "b"], 0.5)
    fail(ejection, "a", 3, 0.0)
    ejection.keep_only(frozenset("b"))
    ejection.keep_only(frozenset("ab"))
    assert not ejection.ejected("a", 0.0)
    fail(ejection, "b", 3, 0.0)
    assert ejection.ejected("b", 0.0)


def test_the_cap_keeps_nobody_in_who_fails_health_checks() -> None:
    """E10: three of ten fail their health checks under a cap of 10 %: all three are out."""
    members = names(10)
    ejection = capped(members, 0.1)
    checks = ReadinessDriver(*members, unhealthy=1)
    for name in members:
        checks.result(name, ok=name not in members[:3])
    fail(ejection, members[9], 3, 0.0)
    kept = [name for name in members if checks.readiness.ready(name) and not ejection.ejected(name, 0.0)]
    assert kept == members[3:9]


@DETERMINISTIC
@given(
    cap_share=st.floats(0.01, 1),
    steps=st.lists(
        st.one_of(
            st.tuples(st.integers(0, 7), st.booleans(), st.floats(0, 3)),
            st.frozensets(st.integers(0, 7), min_size=1),
        ),
        max_size=80,
    ),
)
def test_the_cap_holds_at_every_instant(
    cap_share: float, steps: list[tuple[int, bool, float] | frozenset[int]]
) -> None:
    everybody = names(8)
    members = everybody
    ejection = capped(members, cap_share, failures=2, open_s=5.0)
    now_s = 0.0
    for step in steps:
        if isinstance(step, frozenset):
            members = [everybody[number] for number in sorted(step)]
            ejection.keep_only(frozenset(members))
        else:
            number, ok, gap_s = step
            now_s += gap_s
            if everybody[number] in members:
                ejection.settle(everybody[number], ok, now_s)
        assert len(out(ejection, everybody, now_s)) <= max(1, int(cap_share * len(members)))


@pytest.mark.parametrize("cap_share", [0.0, -0.1, 1.1])
def test_a_cap_that_makes_no_sense(cap_share: float) -> None:
    with pytest.raises(ValueError, match="expected above 0 and at most 1"):
        PassiveEjection(3, 1.0, cap_share)
