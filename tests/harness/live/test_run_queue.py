"""Run-queue delay: the backlog of a thread by hand, and real processes that have to share the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from harness.live.run_queue import ORDINARY_S, SEARCH_S, CoreTime, RunQueue, counted, delays_s, listening_group

needs_counts = pytest.mark.skipif(not counted(), reason="this kernel does not count waits for a core")


def delays_ms(*windows: tuple[float, float, int]) -> list[float]:
    """Delays of a thread that used (ran_s, waited_s, turns) in windows of a tenth of a second."""
    used, times_s = [CoreTime(7.0, 3.0, 50)], [100.0]
    for ran_s, waited_s, turns in windows:
        used.append(used[-1] + CoreTime(ran_s, waited_s, turns))
        times_s.append(times_s[-1] + 0.1)
    return [round(1000 * delay_s, 3) for delay_s in delays_s(times_s, used)]


BUSY_WINDOW, CALM, ASLEEP = (0.02, 0.08, 0), (0.02, 0.001, 10), (0.0, 0.0, 0)


def test_ordinary_turns_delay_nothing() -> None:
    assert delays_ms((0.01, 400 * ORDINARY_S, 400)) == [0.0]


def test_what_goes_beyond_them_may_have_been_one_wait() -> None:
    assert delays_ms((0.01, 0.04, 100)) == [30.0]


def test_a_thread_without_a_rest_falls_behind_by_all_its_waits() -> None:
    assert delays_ms(BUSY_WINDOW, BUSY_WINDOW, BUSY_WINDOW) == [80.0, 160.0, 240.0]


def test_the_window_after_a_backlog_still_works_it_off() -> None:
    assert delays_ms(BUSY_WINDOW, BUSY_WINDOW, CALM, CALM) == [80.0, 160.0, 160.0, 0.0]


def test_a_rest_ends_a_backlog() -> None:
    assert delays_ms(BUSY_WINDOW, ASLEEP, ASLEEP, CALM, BUSY_WINDOW) == [80.0, 80.0, 0.0, 0.0, 80.0]


def test_a_wait_over_several_windows_is_no_rest() -> None:
    assert delays_ms(BUSY_WINDOW, ASLEEP, ASLEEP, (0.01, 0.29, 0)) == [80.0, 80.0, 80.0, 370.0]


def test_a_wait_that_lasts_at_the_end_of_a_window_is_no_rest_either() -> None:
    assert delays_ms((0.02, 0.05, 0), (0.02, 0.11, 0), CALM) == [50.0, 160.0, 160.0]


def test_a_thread_that_only_computes_waits_for_nothing() -> None:
    assert delays_ms((0.1, 0.0, 3), (0.1, 0.0, 3)) == [0.0, 0.0]


# --- real processes -----------------------------------------------------------------------------------------

BUSY = "import time, os, sys\nfor _ in range(int(sys.argv[1])):\n    if not os.fork(): break\nwhile True: pass"


@contextmanager
def process(code: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own."""
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            yield child
        finally:
            os.killpg(child.pid, 9)


@needs_counts
def test_processes_that_share_cores_are_seen_and_one_that_sleeps_is_not() -> None:
    with ExitStack() as stack:
        crowd = stack.enter_context(process(BUSY, str(2 * (os.cpu_count() or 1))))
        asleep = stack.enter_context(process("import time; time.sleep(60)"))
        time.sleep(0.3)
        queue = RunQueue({"crowd": crowd.pid, "sleeper": asleep.pid})
        queue.start()
        time.sleep(1.0)
        queue.stop()
    windows = queue.windows()
    assert (
        max(window.delay_s.get("crowd", 0.0) for window in windows) > 0.3
    )  # each has a core for half of the second at most
    assert not any("sleeper" in window.delay_s for window in windows)
    assert all(window.start_s < window.end_s for window in windows)
    totals = queue.totals()
    assert totals["crowd"].waited_s > totals["crowd"].ran_s > 0
    assert totals["sleeper"].ran_s < 0.01


STARTS_ANOTHER = """
import os, sys, time
sys.stdin.readline()
if not os.fork():
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s: pass
time.sleep(60)
"""


@needs_counts
@pytest.mark.parametrize("growing", [True, False])
def test_a_process_that_joins_later_counts_in_a_growing_group_only(growing: bool) -> None:
    with process(STARTS_ANOTHER) as parent:
        assert parent.stdin is not None
        queue = RunQueue({"group": parent.pid}, growing=("group",) if growing else ())
        queue.start()
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        time.sleep(SEARCH_S + 0.7)
        queue.stop()
    assert (queue.totals()["group"].ran_s > 0.1) is growing


@needs_counts
def test_a_group_that_is_gone_is_no_error() -> None:
    with process("pass") as gone:
        pass
    queue = RunQueue({"gone": gone.pid})
    queue.start()
    queue.stop()
    queue.stop()
    assert queue.windows() == []


def test_a_kernel_without_counts_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.live.run_queue.counted", lambda: False)
    queue = RunQueue({"self": os.getpgid(0)})
    queue.start()
    queue.stop()
    assert not queue.available
    assert queue.windows() == []


LISTENS = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""


def test_the_process_group_of_a_running_balancer_is_found_by_its_port() -> None:
    with process(LISTENS) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert listening_group(f"http://127.0.0.1:{port}") == child.pid
        assert listening_group(f"http://balancer.example:{port}") is None
    assert listening_group(f"http://localhost:{port}") is None
