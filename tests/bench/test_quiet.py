"""Gates: when a missed one fails, and when it is left open."""

from __future__ import annotations

import pytest

from tests.bench import quiet
from tests.bench.quiet import Gate, Usage, others

START = Usage(at_s=100.0, machine_s=50.0, own_s=5.0)


@pytest.mark.parametrize(
    ("machine_s", "own_s", "share"),
    [
        (60.0, 15.0, 0.0),  # all of it was ours
        (64.0, 15.0, 0.4),
        (59.0, 15.0, 0.0),  # the kernel counts the machine in ticks
        (70.0, 5.0, 2.0),
    ],
)
def test_others_are_what_is_not_ours(machine_s: float, own_s: float, share: float) -> None:
    assert others(START, Usage(110.0, machine_s, own_s)) == pytest.approx(share)


def test_no_time_is_no_share() -> None:
    assert others(START, START) == 0.0


def test_a_missed_gate_fails_where_the_machine_was_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "others", lambda before, after: 0.05)
    with pytest.raises(pytest.fail.Exception, match=r"^1\.6 times, at most 1\.5$"):
        Gate().require(False, "1.6 times, at most 1.5")


def test_a_missed_gate_is_left_open_where_others_were_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "others", lambda before, after: 0.5)
    with pytest.raises(pytest.skip.Exception, match=r"others used 50% of a core meanwhile: 1\.6 times"):
        Gate().require(False, "1.6 times, at most 1.5")
    Gate().require(True, "met")


def test_the_kernels_figures_grow() -> None:
    first = Usage.now()
    sum(range(3_000_000))
    second = Usage.now()
    assert second.own_s > first.own_s and second.machine_s >= first.machine_s and second.at_s > first.at_s
