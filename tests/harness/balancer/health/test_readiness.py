"""Active readiness: thresholds, one schedule per backend, departed backends are ignored."""

from __future__ import annotations

import pytest

from tests.harness.balancer.driver import ReadinessDriver


class Watch(ReadinessDriver):
    """Readiness with the timers of its backends."""

    def answer(self, name: str, *oks: bool) -> list[bool]:
        """Whether `name` is ready after each of these results."""
        observed = []
        for ok in oks:
            self.result(name, ok)
            observed.append(self.readiness.ready(name))
        return observed


def test_newcomers_are_ready_and_strangers_are_not() -> None:
    watch = Watch("a")
    assert watch.readiness.ready("a")
    assert not watch.readiness.ready("b")


def test_out_after_failures_in_a_row() -> None:
    watch = Watch("a", unhealthy=3)
    assert watch.answer("a", False, False, True, False, False) == [True] * 5
    assert watch.answer("a", False) == [False]


def test_back_after_successes_in_a_row() -> None:
    watch = Watch("a", unhealthy=1, healthy=2)
    assert watch.answer("a", False, True, False, True) == [False] * 4
    assert watch.answer("a", True) == [True]


def test_a_run_of_failures_starts_anew_after_recovery() -> None:
    watch = Watch("a", unhealthy=2, healthy=1)
    assert watch.answer("a", False, False, True, False, False) == [True, False, True, True, False]


def test_each_backend_has_a_timer_of_its_own() -> None:
    watch = Watch()
    assert watch.set_backends("a", "b") == ["a", "b"]
    assert len(set(watch.timers.values())) == 2


def test_those_who_stay_keep_timer_and_state() -> None:
    watch = Watch("a", "b")
    watch.answer("a", False, False)
    assert watch.set_backends("c", "a", now_s=3.0) == ["c"]
    assert not watch.readiness.ready("a")
    assert watch.readiness.ready("c")


def test_a_hung_check_delays_no_other() -> None:
    watch = Watch("a", "b")
    watch.check("a", 0.0)  # never answered
    for at_s in (0.0, 0.5, 1.0):
        watch.check("b", at_s)
        watch.check("a", at_s)
    assert watch.answer("b", False, False) == [True, False]
    assert watch.readiness.ready("a")


def test_backends_are_judged_apart() -> None:
    watch = Watch("a", "b")
    for _ in range(2):
        assert watch.answer("b", True) == [True]
        watch.answer("a", False)
    assert (watch.readiness.ready("a"), watch.readiness.ready("b")) == (False, True)


def test_timers_of_those_who_left_are_ignored() -> None:
    watch = Watch("a", "b")
    timer = watch.timers["a"]
    watch.set_backends("b")
    assert watch.readiness.timer_fired(timer, 1.0) == []
    assert watch.set_backends("a", "b") == ["a"]
    assert watch.timers["a"] != timer
    assert watch.readiness.timer_fired(timer, 1.0) == []


def test_results_of_those_who_left_are_ignored() -> None:
    watch = Watch("a", unhealthy=1)
    check = watch.check("a")
    watch.set_backends()
    watch.readiness.result(check.check_id, ok=False)
    assert not watch.readiness.ready("a")


def test_results_from_before_a_return_are_ignored() -> None:
    watch = Watch("a", unhealthy=1)
    check = watch.check("a")
    watch.set_backends()
    watch.set_backends("a")
    watch.readiness.result(check.check_id, ok=False)
    assert watch.readiness.ready("a")


def test_who_returns_is_a_newcomer() -> None:
    watch = Watch("a", unhealthy=2)
    watch.answer("a", False, False)
    watch.set_backends()
    watch.set_backends("a")
    assert watch.readiness.ready("a")
    assert watch.answer("a", False) == [True]


@pytest.mark.parametrize("again", [1, 3])
def test_a_result_counts_once_and_unknown_ones_never(again: int) -> None:
    watch = Watch("a", unhealthy=2)
    check = watch.check("a")
    for _ in range(again):
        watch.readiness.result(check.check_id, ok=False)
        watch.readiness.result(999, ok=False)
    assert watch.readiness.ready("a")
