"""Equipment of the data path's experiments: ways through a server under test, laps in ms, and a sentinel of noise.

An experiment is made of parts, which are functions of a `Lab`. Parts run beside each other, so that forty waits take
the time of a few; those that keep a core busy say so and run alone.
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

API_PATIENCE_S = 40.0
CLOSES_WITH_RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER on, 0 seconds


class Lap(float):
    """A time in ms that was measured between two moments (seconds, CLOCK_MONOTONIC)."""

    start_s: float
    end_s: float

    @staticmethod
    def between(start_s: float, end_s: float) -> Lap:
        """The time from one moment to another."""
        return Lap.of((end_s - start_s) * 1000, start_s, end_s)

    @staticmethod
    def of(time_ms: float, start_s: float, end_s: float) -> Lap:
        """A time gained from what was measured between two moments."""
        lap = Lap(time_ms)
        lap.start_s, lap.end_s = start_s, end_s
        return lap


def since(start_s: float) -> Lap:
    """The time from a moment until now."""
    return Lap.between(start_s, time.monotonic())


def extent(laps: list[Lap]) -> dict[str, Lap]:
    """The least and the middle of some times."""
    start_s, end_s = laps[0].start_s, laps[-1].end_s
    return {
        "min": Lap.of(min(laps), start_s, end_s),
        "p50": Lap.of(statistics.median(laps), start_s, end_s),
        "max": Lap.of(max(laps), start_s, end_s),
    }


class Event(NamedTuple):
    """Something that a backend saw: `data` and its bytes, `eof` and all bytes, or an errno."""

    at_s: float
    what: str
    detail: object


Serve = Callable[[socket.socket, list[Event]], object]


def echo(connected: socket.socket, events: list[Event]) -> None:
    """Send everything back; note only the end."""
    try:
        rig.echo(connected)
        events.append(Event(time.monotonic(), "eof", ""))
    except OSError as error:
        events.append(Event(time.monotonic(), "exc", errno.errorcode[error.errno or 0]))


def collect(connected: socket.socket, events: list[Event]) -> None:
    """Read to the end, noting each read."""
    total = 0
    try:
        while data := connected.recv(65536):
            events.append(Event(time.monotonic(), "data", len(data)))
            total += len(data)
        events.append(Event(time.monotonic(), "eof", total))
    except OSError as error:
        events.append(Event(time.monotonic(), errno.errorcode[error.errno or 0], total))


def answers(*sizes: int, then_close: bool = True) -> Serve:
    """For each byte asked send so many bytes, one size after the other, or the last again and again."""

    def serve(connected: socket.socket, events: list[Event]) -> None:
        for size in sizes if then_close else itertools.chain(sizes, itertools.repeat(sizes[-1])):
            if not connected.recv(1):
                return
            connected.sendall(bytes(size))

    return serve


class Reading(NamedTuple):
    """What a client read: how it ended (`ok`: all that was asked for, `EOF`, `timeout`, errno), and each arrival."""

    ending: str
    size: int
    arrivals: list[tuple[float, int]]

    @property
    def outcome(self) -> list[object]:
        """Ending and bytes."""
        return [self.ending, self.size]


def read(client: socket.socket, size: int | None = None, patience_s: float = 5.0) -> Reading:
    """Read until the end, an error, `patience_s` of silence, or `size` bytes."""
    client.settimeout(patience_s)
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
    """Times of round trips through an echo, one after the other."""
    laps = []
    for _ in range(count):
        start_s = time.monotonic()
        client.sendall(bytes(size))
        assert read(client, size).ending == "ok"
        laps.append(since(start_s))
    return laps


def close_with_reset(client: socket.socket) -> None:
    """Break a connection off, so that its peer sees a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES_WITH_RESET)
    client.close()


class Way(ExitStack):
    """A proxy with a backend behind it and the connections through it; leaving removes them all."""

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
        """A client's connection."""
        return self.enter_context(rig.connect(self.port))

    def toxic(self, kind: str, stream: str = "downstream", toxicity: float = 1.0, **values: Any) -> str:
        """Add a toxic, return its name. `values`: its attributes, and `name`."""
        wish: dict[str, Any] = {"type": kind, "stream": stream, "toxicity": toxicity}
        if "name" in values:
            wish["name"] = values.pop("name")
        status, answer = self._lab.ask("POST", f"{self.path}/toxics", {**wish, "attributes": values})
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

    def seen(self, *kinds: str) -> list[str]:
        """What the backend saw, without bytes and times, of some kinds or of all."""
        return [event.what for event in self.events if not kinds or event.what in kinds]

    def seen_with_details(self) -> list[list[object]]:
        """What the backend saw, and how much."""
        return [[event.what, event.detail] for event in self.events]

    def ends_since(self, start_s: float) -> list[list[object]]:
        """All that the backend saw but data, with its times."""
        return [[e.what, Lap.between(start_s, e.at_s)] for e in self.events if e.what != "data"]

    def await_event(self, what: str, patience_s: float = rig.LONG_S) -> None:
        """Return when the backend has seen something of that kind."""
        deadline_s = time.monotonic() + patience_s
        while what not in self.seen() and time.monotonic() < deadline_s:
            time.sleep(0.002)


class Lab:
    """A server under test, by the port of its control API."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()

    def ask(self, method: str, path: str, body: object = None, patience_s: float = API_PATIENCE_S) -> tuple[int, Any]:
        """Status and decoded answer of a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=patience_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text

    def open(self, upstream: str) -> tuple[str, int]:
        """Create a proxy; its name and port."""
        name = f"lab{next(self._numbers)}"
        status, answer = self.ask("POST", "/proxies", {"name": name, "listen": "127.0.0.1:0", "upstream": upstream})
        assert status == 201, answer
        return name, int(answer["listen"].rpartition(":")[2])

    def way(self, serve: Serve) -> Way:
        """A proxy in front of a new backend."""
        return Way(self, serve)


Run = Callable[[Lab], Any]


@dataclass(frozen=True)
class Part:
    """A part of an experiment: its value stands under `key`, or is the whole (a dictionary) where there is none."""

    experiment: str
    key: str | None
    run: Run
    alone: bool


class Parts(list[Part]):
    """A list of parts that functions join by decoration."""

    def part(self, experiment: str, key: str | None = None, alone: bool = False) -> Callable[[Run], Run]:
        """Decorate a function of a lab. `alone`: it needs the cores for itself."""

        def join(run: Run) -> Run:
            self.append(Part(experiment, key, run, alone))
            return run

        return join


class Sentinel(threading.Thread):
    """Sleeps a millisecond and makes a round trip through the server, again and again; remembers what took too long.

    So it meets what holds up the test as well as what holds up the server. Use as a context manager.
    """

    PAUSE_S = 0.001

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab
        self._times_s: list[float] = []
        self._late_s: list[float] = []
        self._over = False

    def run(self) -> None:
        with self._lab.way(echo) as way:
            client = way.connect()
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
        """The worst lateness while a lap was measured."""
        first = bisect_left(self._times_s, lap.start_s)
        last = bisect_left(self._times_s, lap.end_s) + 1  # the sleep that the end fell into, too
        return max(self._late_s[first : last + 1], default=0.0)


def laps_in(value: object) -> Iterable[Lap]:
    """All laps of a part's value."""
    if isinstance(value, Lap):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from laps_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from laps_in(inner)
