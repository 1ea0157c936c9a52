"""Tools of the data path experiments: proxies on a server under test, measured times in ms, and a noise sentinel.

An experiment consists of parts, which are functions of a `Lab`. Parts run concurrently, so that forty waits take the
time of a few; parts that keep a core busy are marked `alone` and run one at a time.
"""

from __future__ import annotations

import errno
import http.client
import itertools
import json
import socket
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.harness.toxiproxy import rig

API_TIMEOUT_S = 40.0
CLOSES_WITH_RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER on, 0 seconds


class Lap(float):
    """A duration in ms, measured between two instants (seconds, CLOCK_MONOTONIC)."""

    start_s: float
    end_s: float

    @staticmethod
    def between(start_s: float, end_s: float) -> Lap:
        """The duration between two instants."""
        return Lap.of((end_s - start_s) * 1000, start_s, end_s)

    @staticmethod
    def of(time_ms: float, start_s: float, end_s: float) -> Lap:
        """A duration derived from measurements between two instants."""
        lap = Lap(time_ms)
        lap.start_s, lap.end_s = start_s, end_s
        return lap


def since(start_s: float) -> Lap:
    """The duration from an instant until now."""
    return Lap.between(start_s, time.monotonic())


def extent(laps: list[Lap]) -> dict[str, Lap]:
    """Minimum, median and maximum of some durations."""
    start_s, end_s = laps[0].start_s, laps[-1].end_s
    return {
        "min": Lap.of(min(laps), start_s, end_s),
        "p50": Lap.of(statistics.median(laps), start_s, end_s),
        "max": Lap.of(max(laps), start_s, end_s),
    }


class Event(NamedTuple):
    """An event at a backend: `data` with its byte count, `eof` with the total byte count, or an errno."""

    at_s: float
    what: str
    detail: object


Serve = Callable[[socket.socket, list[Event]], object]


def echo(connected: socket.socket, events: list[Event]) -> None:
    """Echo all data; record only the end."""
    try:
        rig.echo(connected)
        events.append(Event(time.monotonic(), "eof", ""))
    except OSError as error:
        events.append(Event(time.monotonic(), "exc", errno.errorcode[error.errno or 0]))


def collect(connected: socket.socket, events: list[Event]) -> None:
    """Read to the end; record each read."""
    total = 0
    try:
        while data := connected.recv(65536):
            events.append(Event(time.monotonic(), "data", len(data)))
            total += len(data)
        events.append(Event(time.monotonic(), "eof", total))
    except OSError as error:
        events.append(Event(time.monotonic(), errno.errorcode[error.errno or 0], total))


def answers(*sizes: int, then_close: bool = True) -> Serve:
    """For each byte received send the next of `sizes` bytes; then close, or repeat the last size."""

    def serve(connected: socket.socket, events: list[Event]) -> None:
        for size in sizes if then_close else itertools.chain(sizes, itertools.repeat(sizes[-1])):
            if not connected.recv(1):
                return
            connected.sendall(bytes(size))

    return serve


class Reading(NamedTuple):
    """Result of a read: its end (`ok`: all requested bytes, `EOF`, `timeout`, errno), and each arrival."""

    ending: str
    size: int
    arrivals: list[tuple[float, int]]

    @property
    def outcome(self) -> list[object]:
        """Ending and bytes."""
        return [self.ending, self.size]


def read(client: socket.socket, size: int | None = None, timeout_s: float = 5.0) -> Reading:
    """Read until the end, an error, `timeout_s` of silence, or `size` bytes."""
    client.settimeout(timeout_s)
    total = 0
    arrivals: list[tuple[float, int]] = []
    while size is None or total < size:
        try:
            data = client.recv(65536)
        except TimeoutError:
            return Reading("timeout", total, arrivals)
        except OSError as error:
            return Reading(errno.errorcode[error.errno or 0], total, arrivals)
        if not data:
            return Reading("EOF", total, arrivals)
        total += len(data)
        arrivals.append((time.monotonic(), len(data)))
    return Reading("ok", total, arrivals)


def trips(client: socket.socket, count: int, size: int = 10) -> list[Lap]:
    """Durations of consecutive round trips through an echo."""
    laps = []
    for _ in range(count):
        start_s = time.monotonic()
        client.sendall(bytes(size))
        assert read(client, size).ending == "ok"
        laps.append(since(start_s))
    return laps


def close_with_reset(client: socket.socket) -> None:
    """Close a connection with a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES_WITH_RESET)
    client.close()


class Route(ExitStack):
    """A proxy with its backend and its client connections; exit removes them all."""

    def __init__(self, lab: Lab, serve: Serve) -> None:
        super().__init__()
        self._lab = lab
        self.events: list[Event] = []
        self.backend = rig.Backend(lambda connected: serve(connected, self.events))
        self.callback(self.backend.close)
        self.name, self.port = lab.open(f"127.0.0.1:{self.backend.port}")
        self.path = f"/proxies/{self.name}"
        self.callback(lab.ask, "DELETE", self.path)

    def connect(self) -> socket.socket:
        """Open a client connection."""
        return self.enter_context(rig.connect(self.port))

    def toxic(self, kind: str, stream: str = "downstream", toxicity: float = 1.0, **values: Any) -> str:
        """Add a toxic and return its name. `values`: its attributes, and optionally `name`."""
        requested: dict[str, Any] = {"type": kind, "stream": stream, "toxicity": toxicity}
        if "name" in values:
            requested["name"] = values.pop("name")
        status, answer = self._lab.ask("POST", f"{self.path}/toxics", {**requested, "attributes": values})
        assert status == 200, answer
        return str(answer["name"])

    def update(self, toxic: str, **attributes: int) -> None:
        """Change attributes of a toxic."""
        assert self._lab.ask("PATCH", f"{self.path}/toxics/{toxic}", {"attributes": attributes})[0] == 200

    def remove(self, toxic: str) -> None:
        """Remove a toxic."""
        assert self._lab.ask("DELETE", f"{self.path}/toxics/{toxic}")[0] == 204

    def change(self, **fields: Any) -> tuple[int, Any]:
        """Update the proxy; status and answer."""
        return self._lab.ask("PATCH", self.path, fields)

    def observed(self, *kinds: str) -> list[str]:
        """Event names at the backend, of the given kinds or of all."""
        return [event.what for event in self.events if not kinds or event.what in kinds]

    def observed_with_details(self) -> list[list[object]]:
        """Event names at the backend, with byte counts."""
        return [[event.what, event.detail] for event in self.events]

    def ends_since(self, start_s: float) -> list[list[object]]:
        """All events at the backend except data, with their times."""
        return [[e.what, Lap.between(start_s, e.at_s)] for e in self.events if e.what != "data"]

    def await_event(self, what: str, timeout_s: float = rig.LONG_S) -> None:
        """Return when the backend has recorded an event of that kind, or after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while what not in self.observed() and time.monotonic() < deadline_s:
            time.sleep(0.002)


class Lab:
    """A server under test, addressed by the port of its control API."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()

    def ask(self, method: str, path: str, body: object = None, timeout_s: float = API_TIMEOUT_S) -> tuple[int, Any]:
        """Status and decoded answer of a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text

    def open(self, upstream: str) -> tuple[str, int]:
        """Create a proxy; returns its name and port."""
        name = f"lab{next(self._numbers)}"
        status, answer = self.ask("POST", "/proxies", {"name": name, "listen": "127.0.0.1:0", "upstream": upstream})
        assert status == 201, answer
        return name, int(answer["listen"].rpartition(":")[2])

    def route(self, serve: Serve) -> Route:
        """A proxy in front of a new backend."""
        return Route(self, serve)


Run = Callable[[Lab], Any]


@dataclass(frozen=True)
class Part:
    """A part of an experiment: its value is stored under `key`; without a key it is a dictionary and merged."""

    experiment: str
    key: str | None
    run: Run
    alone: bool


class Parts(list[Part]):
    """A list of parts; a decorator adds functions to it."""

    def part(self, experiment: str, key: str | None = None, alone: bool = False) -> Callable[[Run], Run]:
        """Decorate a function of a lab. `alone`: no other part runs at the same time."""

        def join(run: Run) -> Run:
            self.append(Part(experiment, key, run, alone))
            return run

        return join


class Sentinel(threading.Thread):
    """Repeats a sleep of 1 ms and a round trip through the server, and records the delay of each.

    It therefore notices pauses of the test and of the server. Use as a context manager.
    """

    PAUSE_S = 0.001

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab
        self._times_s: list[float] = []
        self._late_s: list[float] = []
        self._over = False

    def run(self) -> None:
        with self._lab.route(echo) as route:
            client = route.connect()
            before_s = time.monotonic()
            while not self._over:
                time.sleep(self.PAUSE_S)
                trips(client, 1)
                now_s = time.monotonic()
                self._late_s.append(now_s - before_s - self.PAUSE_S)
                self._times_s.append(now_s)
                before_s = now_s

    def __enter__(self) -> Sentinel:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self.join()

    def worst_s(self, lap: Lap) -> float:
        """The longest delay while a duration was measured, in seconds."""
        first = bisect_left(self._times_s, lap.start_s)
        last = bisect_left(self._times_s, lap.end_s) + 1  # include the sleep in progress at the end
        return max(self._late_s[first : last + 1], default=0.0)


def laps_in(value: object) -> Iterable[Lap]:
    """All durations in a part's value."""
    if isinstance(value, Lap):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from laps_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from laps_in(inner)
