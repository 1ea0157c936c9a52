"""Active checks beyond thresholds: overload, liveness, the guard, gating, jitter, late results."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from harness.balancer.health.readiness import Readiness, RotationSettings
from harness.gateway.protocol import Backend, SetTimer
from tests.harness.balancer.driver import ReadinessDriver, of_type

UNGUARDED = RotationSettings(minimum_ready_share=0.0)
HALF = RotationSettings(minimum_ready_share=0.5)


IDLE = Backend("a", "", memory_total_mb=100.0)
BUSY = replace(IDLE, queue_depth=101)
FULL = replace(IDLE, memory_used_mb=96.0)
WARM = replace(IDLE, memory_used_mb=99.0, memory_evictable_mb=80.0)


class Watch(ReadinessDriver):
    """Readiness without a guard by default."""

    def __init__(
        self, *backends: str, rotation: RotationSettings = UNGUARDED, unhealthy: int = 2, healthy: int = 1
    ) -> None:
        super().__init__(*backends, unhealthy=unhealthy, healthy=healthy, rotation=rotation)

    def results(self, names: str, ok: bool, report: Backend | None = None, times: int = 1) -> list[bool]:
        """Deliver a result `times` times for each backend; whether the last one brought it into rotation."""
        return [[self.result(name, ok, report) for _ in range(times)][-1] for name in names]


# --- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [BUSY, FULL])
def test_overload_takes_out_of_rotation_by_the_thresholds_and_its_end_brings_back(report: Backend) -> None:
    watch = Watch("a", healthy=2)
    observed = []
    for reported in (report, IDLE, report, report, IDLE, IDLE):
        watch.results("a", True, reported)
        observed.append(watch.rotation)
    assert observed == ["a", "a", "a", "", "", "a"]


def test_a_warm_backend_stays() -> None:
    """S12: memory full of evictable weights."""
    watch = Watch("a")
    watch.results("a", True, WARM, times=5)
    assert watch.rotation == "a"


def test_no_report_is_no_overload() -> None:
    watch = Watch("a")
    watch.results("a", True, None, times=5)
    assert watch.rotation == "a"


def test_without_settings_reports_change_nothing() -> None:
    watch = ReadinessDriver("a", unhealthy=1)
    watch.result("a", True, BUSY)
    assert watch.readiness.ready("a")


# --- liveness ----------------------------------------------------------------------------------------------


def test_alive_is_who_answers_even_if_only_to_say_no() -> None:
    watch = Watch("a", "b", "c")
    watch.results("a", False, IDLE, times=3)  # 503 with a body
    watch.results("b", True, BUSY, times=3)
    watch.results("c", False, None, times=3)  # no answer in time
    assert watch.rotation == ""
    assert [watch.readiness.alive(name) for name in "abc?"] == [True, True, False, False]


def test_an_answer_without_a_report_can_be_told_apart_from_silence() -> None:
    watch = Watch("a")
    for _ in range(3):
        watch.result("a", False, answered=True)
    assert (watch.readiness.alive("a"), watch.readiness.ready("a")) == (True, False)


def test_dead_after_silence_in_a_row_and_alive_again_at_the_first_answer() -> None:
    watch = Watch("a", unhealthy=2)
    observed = []
    for report in (None, IDLE, None, None, None, IDLE, None):
        watch.results("a", False, report)
        observed.append(watch.readiness.alive("a"))
    assert observed == [True, True, True, False, False, True, True]


# --- the guard ---------------------------------------------------------------------------------------------


def test_the_fleet_does_not_take_turns_at_being_away() -> None:
    """All become overloaded one by one: once less than half would be ready, all share the load."""
    watch = Watch(*"abcd", rotation=HALF)
    watch.results("abcd", True, IDLE)
    observed = []
    for name in "abcd":
        watch.results(name, True, BUSY, times=2)
        observed.append(watch.rotation)
    assert observed == ["bcd", "cd", "abcd", "abcd"]
    assert watch.readiness.guarded
    assert not any(watch.readiness.passing(name) for name in "abcd")


def test_without_the_guard_all_are_away() -> None:
    watch = Watch(*"abcd", rotation=UNGUARDED)
    watch.results("abcd", True, IDLE)
    watch.results("abcd", True, BUSY, times=2)
    assert watch.rotation == ""
    assert not watch.readiness.guarded


def test_the_guard_ends_when_enough_are_ready_again() -> None:
    watch = Watch(*"abcd", rotation=HALF)
    watch.results("abcd", True, IDLE)
    watch.results("abcd", True, BUSY, times=2)
    watch.results("a", True, IDLE)
    assert watch.rotation == "abcd"
    watch.results("b", True, IDLE)
    assert watch.rotation == "ab"


def test_the_guard_leaves_the_dead_out() -> None:
    watch = Watch(*"abcd", rotation=HALF)
    watch.results("abcd", True, IDLE)
    watch.results("ab", False, None, times=2)
    watch.results("c", True, BUSY, times=2)
    assert watch.rotation == "cd"


def test_if_nobody_answers_health_checks_all_are_tried() -> None:
    """All rather than none: overload may delay health checks too, and the health route itself may be broken."""
    watch = Watch(*"abcd", rotation=HALF)
    watch.results("abcd", True, IDLE)
    watch.results("abcd", False, None, times=2)
    assert watch.rotation == "abcd"
    watch.results("d", False, IDLE)  # one answers again, with 503
    assert watch.rotation == "d"


def test_the_guard_lets_no_newcomer_in_that_never_passed() -> None:
    """E12: backends that still load are not part of the fleet yet: neither admitted nor counted."""
    watch = Watch("a", "b", rotation=HALF)
    watch.results("ab", True, IDLE)
    watch.set_backends(*"abwxyz")
    watch.results("wxyz", False, IDLE, times=2)
    assert watch.rotation == "ab"
    watch.results("a", True, BUSY, times=2)
    assert watch.rotation == "b"
    watch.results("b", True, BUSY, times=2)
    assert watch.rotation == "ab"


def test_the_guard_lets_in_who_only_ever_was_overloaded() -> None:
    """It reports that it is ready; only the configured limit keeps it out, which is what the guard overrides."""
    watch = Watch("a", "b", rotation=HALF)
    watch.results("ab", True, BUSY, times=2)
    assert watch.rotation == "ab"


@pytest.mark.parametrize(
    ("count", "share", "sick", "guarded"),
    [(10, 0.5, 5, False), (10, 0.5, 6, True), (4, 0.75, 1, False), (4, 0.75, 2, True), (10, 0.7, 3, False)],
)
def test_the_guard_acts_below_exactly_its_share(count: int, share: float, sick: int, guarded: bool) -> None:
    names = "abcdefghij"[:count]
    watch = Watch(*names, rotation=RotationSettings(minimum_ready_share=share))
    watch.results(names, True, IDLE)
    watch.results(names[:sick], False, IDLE, times=2)
    assert watch.readiness.guarded is guarded
    assert watch.rotation == (names if guarded else names[sick:])


def test_a_leave_can_start_and_a_join_end_the_guard() -> None:
    watch = Watch(*"abc", rotation=HALF)
    watch.results("abc", True, IDLE)
    watch.results("a", True, BUSY, times=2)
    assert watch.rotation == "bc"
    watch.set_backends("a")
    assert watch.rotation == "a"
    watch.set_backends("a", "d")
    assert watch.rotation == "d"


# --- newcomers -----------------------------------------------------------------------------------------------


def test_gated_newcomers_get_nothing_before_they_passed() -> None:
    """E7: with gating, no requests before the first good health check, even with the guard."""
    watch = Watch("a", "b", rotation=RotationSettings(gated=True))
    assert watch.rotation == ""
    watch.results("a", False, IDLE, times=4)
    assert watch.rotation == ""
    assert watch.results("a", True, IDLE) == [True]
    assert watch.rotation == "a"


def test_ungated_newcomers_serve_at_once_and_are_checked_at_once() -> None:
    """E8: a start with good backends rejects no request."""
    readiness = Readiness(0.5, 1.0, 2, 1, RotationSettings())
    assert [action.at_s for action in readiness.set_backends(("a",), 3.0) if isinstance(action, SetTimer)] == [3.0]
    assert readiness.ready("a")


def test_coming_back_is_told_once() -> None:
    watch = Watch("a", healthy=2)
    assert watch.results("a", True) == [False]
    assert watch.results("a", False, times=2) == [False]
    assert watch.results("a", True) == [False]
    assert watch.results("a", True) == [True]
    assert watch.results("a", True) == [False]


def test_who_was_let_in_by_the_guard_has_not_been_away() -> None:
    watch = Watch(*"ab", rotation=RotationSettings(minimum_ready_share=1.0))
    watch.results("ab", True, IDLE)
    watch.results("a", True, BUSY, times=2)
    assert watch.rotation == "ab"
    assert watch.results("a", True, IDLE) == [False]


def test_the_unready_are_checked_on_at_the_same_interval() -> None:
    """E3, E11: recovery and failure are detected within threshold times interval."""
    watch = Watch("a")
    for step in range(20):
        check = watch.check("a", step / 2)
        watch.readiness.result(check.check_id, ok=step >= 10)
        assert watch.readiness.ready("a") == (step < 1 or step >= 10)


def test_edits_of_the_list_change_nobody_elses_mark() -> None:
    """E4, E15."""
    watch = Watch("a", "b", "c")
    watch.results("a", False, times=2)
    watch.results("b", False)
    watch.set_backends("c", "d", "b", "a")
    assert watch.rotation == "bcd"
    watch.results("b", False)
    assert watch.rotation == "cd"


# --- health checks apart from each other -----------------------------------------------------------------------


def test_a_hung_check_holds_up_no_other() -> None:
    """S10: each backend's checks have their own timer and timeout, however many hang."""
    watch = Watch(*"abcd")
    started = []
    for step in range(4):
        for name in "abcd":
            check = watch.check(name, step / 2)
            started.append((check.backend_id, check.timeout_s))
            if name != "a":  # a's are never answered
                watch.readiness.result(check.check_id, ok=name != "b")
    assert started == [(name, 1.0) for name in "abcd"] * 4
    assert watch.rotation == "acd"


def test_the_timeout_of_a_hang_that_is_over_says_nothing() -> None:
    watch = Watch("a", unhealthy=1)
    hung, good = watch.check("a", 0.0), watch.check("a", 0.5)
    watch.readiness.result(good.check_id, ok=True)
    watch.readiness.result(hung.check_id, ok=False)
    assert watch.rotation == "a"


def test_hangs_in_a_row_still_count() -> None:
    watch = Watch("a", unhealthy=2)
    for check in [watch.check("a", step / 2) for step in range(3)]:
        watch.readiness.result(check.check_id, ok=False)
    assert watch.rotation == ""


def test_nothing_is_left_of_who_left() -> None:
    """S8, E5: no checks after removal; readiness, liveness and late results do not carry over to a return."""
    watch = Watch("a", unhealthy=1)
    timer, late = watch.timers["a"], watch.check("a")
    watch.results("a", False)
    assert not watch.readiness.alive("a")
    watch.set_backends()
    assert watch.readiness.timer_fired(timer, 1.0) == []
    watch.set_backends("a")
    assert watch.readiness.result(late.check_id, ok=False) is False
    assert (watch.readiness.ready("a"), watch.readiness.alive("a")) == (True, True)


def test_jitter_spreads_the_intervals_within_its_share_and_keeps_their_mean() -> None:
    """F7: backends that joined at the same instant are checked at different times."""
    readiness = Readiness(0.5, 1.0, 2, 1, RotationSettings(jitter=0.2), Random(11))
    waits = []
    for action in readiness.set_backends(tuple(f"gpu-{number}" for number in range(400)), 0.0):
        assert isinstance(action, SetTimer)
        (timer,) = of_type(SetTimer, readiness.timer_fired(action.timer_id, 0.0))
        waits.append(timer.at_s)
    assert 0.4 <= min(waits) < 0.41
    assert 0.59 < max(waits) <= 0.6
    assert sum(waits) / len(waits) == pytest.approx(0.5, abs=0.01)


def test_jitter_is_replayed_by_its_seed() -> None:
    def at_s(seed: int) -> list[float]:
        readiness = Readiness(0.5, 1.0, 2, 1, RotationSettings(jitter=0.2), Random(seed))
        readiness.set_backends(("a",), 0.0)
        fired = [readiness.timer_fired(1, 0.0)[1] for _ in range(5)]
        return [timer.at_s for timer in fired if isinstance(timer, SetTimer)]

    assert at_s(1) == at_s(1) != at_s(2)


@pytest.mark.parametrize("numbers", [(0.0, 1.0, 1, 1), (1.0, 0.0, 1, 1), (1.0, 1.0, 0, 1), (1.0, 1.0, 1, 0)])
def test_schedules_that_make_no_sense(numbers: tuple[float, float, int, int]) -> None:
    with pytest.raises(ValueError, match="expected above 0, and 1 or more"):
        Readiness(*numbers)


def test_jitter_needs_a_generator() -> None:
    with pytest.raises(ValueError, match="without a generator"):
        Readiness(1.0, 1.0, 1, 1, RotationSettings(jitter=0.1))
