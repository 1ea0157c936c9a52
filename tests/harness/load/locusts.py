"""Locust as started by users (`locust -f harness/load/locust_engine/locustfile.py ...`), in child processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.load.conftest import PATIENCE_S, ROOT

LEAN = Path(__file__).with_name("lean_server.py")
LOCUSTFILE = ROOT / "harness" / "load" / "locust_engine" / "locustfile.py"


@contextmanager
def serving(*options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """URL and process of the lean server."""
    child = subprocess.Popen([sys.executable, str(LEAN), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    try:
        yield f"http://127.0.0.1:{int(child.stdout.readline())}", child
    finally:
        child.stdin.close()
        child.stdout.close()
        child.wait(PATIENCE_S)


def free_port() -> int:
    """A port that is not in use now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class Locust:
    """A running Locust with this project's locustfile; its output goes to a file in `folder`."""

    def __init__(self, folder: Path, name: str, *options: str, file: Path = LOCUSTFILE) -> None:
        self.log = folder / f"{name}.log"
        command = [sys.executable, "-m", "locust", "-f", str(file), *options]
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def output(self) -> str:
        return self.log.read_text()

    def ends(self, patience_s: float = 60.0) -> int:
        """Its exit status."""
        try:
            return self.child.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience_s:.0f} s: {self.output[-2000:]}") from None

    def wait_for_output(self, words: str) -> None:
        """Return once its output contains `words`."""
        until(lambda: words in self.output, lambda: f"did not print {words!r}: {self.output[-2000:]}")

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


@contextmanager
def locusts(folder: Path, **each: tuple[str, ...]) -> Iterator[dict[str, Locust]]:
    """Several Locust processes by name, with their options; killed at the end."""
    running: dict[str, Locust] = {}
    try:
        for name, options in each.items():
            running[name] = Locust(folder, name, *options)
        yield running
    finally:
        for locust in running.values():
            locust.close()


class Page:
    """A client of Locust's web page."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self._base + path, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def post(self, path: str, **form: str) -> Any:
        data = urllib.parse.urlencode(form).encode()
        with urllib.request.urlopen(self._base + path, data, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    @property
    def total(self) -> dict[str, Any]:
        """The total of all requests, and the other fields that the page polls."""
        stats = self.get("/stats/requests")
        return {**stats, **stats["stats"][-1]}


def until(holds: Callable[[], bool], why: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Return once `holds()`; fail with `why()` if it does not."""
    deadline_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline_s, why()
        time.sleep(0.05)
