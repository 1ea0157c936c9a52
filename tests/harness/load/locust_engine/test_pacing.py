"""Waiting in gevent: never early, one time after another. In processes of their own: gevent stays out of this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.load.conftest import ROOT

WAITS = """
import gevent, sys
from time import monotonic
from harness.load.locust_engine.pacing import Pacer
use_timerfd = sys.argv[1] == "True"
ticks = []
gevent.spawn(lambda: [(ticks.append(1), gevent.sleep(0.001)) for _ in range(20)])
with Pacer(use_timerfd) as pacer:
    due_s = monotonic() + 0.01
    for number in range(200):
        # Counted from now if that time has passed on a busy machine: catching up lets no other greenlet run.
        due_s = max(due_s, monotonic()) + 0.0003 + 0.0004 * (number % 2)
        pacer.sleep_until(due_s)
        assert monotonic() >= due_s, "early"
    assert len(ticks) == 20, "others did not run meanwhile"
    before_s = monotonic()
    pacer.sleep_until(before_s - 5.0)  # past: at once, and no harm to the next wait
    pacer.sleep_until(before_s + 0.01)
    assert monotonic() >= before_s + 0.01
    try:  # cut off in the middle of a wait, and used again
        with gevent.Timeout(0.02):
            pacer.sleep_until(monotonic() + 60.0)
    except gevent.Timeout:
        due_s = monotonic() + 0.005
        pacer.sleep_until(due_s)
        assert monotonic() >= due_s
    else:
        raise AssertionError("returned early")
print("fine")
"""


@pytest.mark.parametrize("use_timerfd", [True, False])
def test_never_early_and_others_run_meanwhile(use_timerfd: bool) -> None:
    if use_timerfd and sys.platform != "linux":
        pytest.skip("timerfd is Linux's")
    command = [sys.executable, "-c", WAITS, str(use_timerfd)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("fine\n", "")
