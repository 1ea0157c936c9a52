"""How busy the machine is: cores by hand, and real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.live.machine import Machine, observed_machine


@pytest.mark.parametrize(
    ("cores", "used_cores", "time_scale"), [(2, 0.0, 1.0), (2, 1.0, 1.0), (2, 1.3, 2.0), (1, 0.1, 1.0), (1, 0.3, 2.0)]
)
def test_time_scale(cores: int, used_cores: float, time_scale: float) -> None:
    machine = Machine(cores, used_cores)
    assert machine.time_scale == time_scale
    assert bool(machine.warning()) is (time_scale > 1)


def test_the_warning_says_what_it_means() -> None:
    assert Machine(1, 0.96).warning() == (
        "This machine is busy: other processes use 1.0 of 1 core. Live runs play at 2x the time scale, and some may"
        " stay inconclusive; --time-scale 1 keeps their usual pace."
    )


def test_a_target_with_fixed_settings_is_not_said_to_be_slower() -> None:
    assert "2x" not in Machine(1, 0.96).warning(fixed=True)
    assert "This target's settings are fixed" in Machine(1, 0.96).warning(fixed=True)
    assert Machine(2, 0.1).warning(fixed=True) == ""


def test_busy_processes_are_seen_on_the_cores_that_are_ours() -> None:
    cores = os.sched_getaffinity(0)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cores]
    try:
        machine = observed_machine()
        os.sched_setaffinity(0, {min(cores)})
        assert observed_machine().cores == 1
    finally:
        os.sched_setaffinity(0, cores)
        for process in busy:
            process.kill()
            process.wait()
    assert machine.cores == len(cores)
    assert machine.used_cores > 0.7 * len(cores)
    assert machine.is_busy
