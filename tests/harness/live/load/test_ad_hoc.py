"""Clean-up of a load process that ends early."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from harness.live.load import ad_hoc as load_run
from harness.live.load.ad_hoc import generator
from harness.scenario.model import HarnessError


class Starting:
    """A load process that does not become ready; `ending` runs meanwhile."""

    stopped = 0

    def __init__(self, workdir: Path, engine: str) -> None:
        (workdir / "load.log").write_text(engine)

    def await_ready(self) -> None:
        """Run `ending`."""
        self.ending()

    def ending(self) -> None:
        """Receive SIGTERM."""
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("SIGTERM was ignored")

    def stop(self) -> None:
        """Count."""
        Starting.stopped += 1


class Failing(Starting):
    """A load process that dies."""

    def ending(self) -> None:
        """Die."""
        raise HarnessError("the load process is not up")


def unheard(number: int, frame: object) -> None:
    """Ignore the signal, which would end the tests."""
    raise AssertionError("SIGTERM found nobody")


@pytest.mark.parametrize(("process", "error"), [(Starting, SystemExit), (Failing, HarnessError)])
def test_what_ends_before_it_is_ready_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, process: type[Starting], error: type[BaseException]
) -> None:
    monkeypatch.setattr(load_run, "LoadProcess", process)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, stopped = signal.signal(signal.SIGTERM, unheard), Starting.stopped
    try:
        with pytest.raises(error) as caught, generator("aiohttp"):
            raise AssertionError("it was never ready")
        assert signal.getsignal(signal.SIGTERM) is unheard
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not isinstance(caught.value, SystemExit) or caught.value.code == 143
    assert not list(tmp_path.iterdir()) and Starting.stopped == stopped + 1
