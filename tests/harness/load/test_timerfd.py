"""The timer: never early, reports an expiry once, and a new setting replaces the old one."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator

import pytest

from harness.load.timerfd import Timerfd

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


@pytest.fixture
def timer() -> Iterator[Timerfd]:
    made = Timerfd()
    yield made
    made.close()


def readable(timer: Timerfd, patience_s: float) -> bool:
    return bool(select.select([timer.descriptor], [], [], patience_s)[0])


def test_expires_at_its_time_and_is_told_once(timer: Timerfd) -> None:
    for step in range(50):
        due_s = time.monotonic() + step * 37e-6
        timer.set(due_s)
        assert readable(timer, 20.0)
        assert time.monotonic() >= due_s
        assert (timer.expired(), timer.expired()) == (True, False)


def test_a_time_that_is_past_expires_too(timer: Timerfd) -> None:
    for due_s in (-5.0, 0.0, 1e-3):
        timer.set(due_s)
        assert readable(timer, 20.0) and timer.expired()


def test_set_anew_it_forgets_that_it_had_expired(timer: Timerfd) -> None:
    timer.set(0.0)
    assert readable(timer, 20.0)
    timer.set(time.monotonic() + 1000.0)
    assert not timer.expired()
    assert not readable(timer, 0.0)


def test_close_gives_the_descriptor_back() -> None:
    timer = Timerfd()
    timer.close()
    with pytest.raises(OSError):
        os.fstat(timer.descriptor)
