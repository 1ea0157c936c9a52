"""`steelyard balancer` and plain backends as processes, for tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from harness.live.process.child import Child
from harness.live.process.http import HttpResponse, call
from tests.harness.live.helpers import HOST, PATIENCE_S, ROOT, until

COMMAND = "from harness.cli import main; main()"


class PlainBackend:
    """A process of tests.harness.live.plain_backend."""

    def __init__(self, folder: Path, name: str, ports: int = 1, delay_s: float = 0.0) -> None:
        self.log = folder / f"{name}.log"
        self.log.touch()
        script = str(ROOT / "tests" / "harness" / "live" / "plain_backend.py")
        words = (sys.executable, script, str(self.log), str(ports), str(delay_s))
        self.child = Child(words, folder / f"{name}.err", pipes=True)
        self.ports: list[int] = json.loads(self.child.stdout.readline())

    @property
    def url(self) -> str:
        """URL of its first port."""
        return f"http://{HOST}:{self.ports[0]}"

    def pause(self) -> None:
        """SIGSTOP the process until `go_on`; the kernel still accepts connections."""
        self.child.signal(SIGSTOP)

    def go_on(self) -> None:
        """Resume the process."""
        self.child.signal(SIGCONT)

    def events(self) -> Iterator[tuple[str, str, float]]:
        """Id, event and time of every request so far."""
        for line in self.log.read_text().splitlines():
            asked, what, at_s = line.split()
            yield asked, what, float(at_s)

    def when(self, asked: str, what: str) -> float:
        """Time of an event of a request; waits for it."""
        return until(lambda: [at_s for name, event, at_s in self.events() if (name, event) == (asked, what)])[0]


class BalancerProcess:
    """A running `steelyard balancer` on free ports; `words` are additional options."""

    def __init__(self, folder: Path, backends: list[str], *words: str) -> None:
        options = [word for url in backends for word in ("--backend", url)]
        command = (sys.executable, "-c", COMMAND, "balancer", *options, "--port", "0", "--seed", "1", *words)
        self.child = Child(command, folder / "balancer.log")
        message = until(lambda: self._ready() or self.child.status is not None)
        assert self.child.status is None, self.child.ending()
        assert isinstance(message, dict)
        self.url: str = message["url"]
        self.admin: str = message["admin"]
        self.port = int(self.url.rpartition(":")[2])
        self.admin_port = int(self.admin.rpartition(":")[2]) if self.admin else 0

    def _ready(self) -> dict[str, Any] | None:
        for line in self.child.log.read_text().splitlines():
            if line.startswith("ready "):
                message: dict[str, Any] = json.loads(line.removeprefix("ready "))
                return message
        return None

    @property
    def said(self) -> list[str]:
        """Its output after the ready line."""
        return self.child.log.read_text().splitlines()[1:]

    def ask(self, method: str, path: str, document: object = None) -> tuple[int, Any]:
        """Status and JSON of a call to the admin interface."""
        body = b"" if document is None else json.dumps(document).encode()
        answer = self.ask_raw(method, path, body)
        return answer.status, json.loads(answer.body)

    def ask_raw(self, method: str, path: str, body: bytes = b"") -> HttpResponse:
        """The raw response of a call to the admin interface."""
        return call(method, self.admin + path, body, timeout_s=PATIENCE_S)

    def call(self, method: str = "GET", path: str = "/short", body: bytes = b"", **headers: str) -> HttpResponse:
        """One request on a fresh connection."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return call(method, self.url + path, body, named, timeout_s=PATIENCE_S)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Every sample of /metrics: its name and the values of its labels, in the order of the labels' names."""
        text = self.ask_raw("GET", "/metrics").body.decode()
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def await_metric(self, name: tuple[str, ...], value: float) -> None:
        """Return when a sample has this value."""
        until(lambda: self.metrics().get(name) == value)


@contextmanager
def balancing(folder: Path, backends: list[str], *words: str) -> Iterator[BalancerProcess]:
    """A balancer that must run, without further output, until the end of the test."""
    made = BalancerProcess(folder, backends, *words)
    try:
        yield made
        assert made.child.status in (None, 0), made.child.ending()
        assert made.said == []
    finally:
        made.child.stop()


@contextmanager
def plain_backends(folder: Path, count: int, ports: int = 1, delay_s: float = 0.0) -> Iterator[list[PlainBackend]]:
    """Several plain backends."""
    with ExitStack() as stack:
        started = [PlainBackend(folder, f"plain-{number}", ports, delay_s) for number in range(count)]
        for backend in started:
            stack.callback(backend.child.stop)
        yield started
