"""Loads without a scenario, for people: against whatever listens at a URL, with news while they run.

The load process is a child of its own, so that drawing a progress bar delays no request.
"""

from __future__ import annotations

import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any
from urllib.parse import urlsplit

from harness.evidence.records import Rows, read_about, read_requests
from harness.live.load.load_process import LoadProcess
from harness.load.job import LoadJob
from harness.load.wire import NONCE_BITS
from harness.load.workloads.profiles import planned
from harness.scenario.model import ClaimsError, HarnessError, Load

CONNECT_S = 5.0
LEAD_S = 0.3
LEAD_PER_REQUEST_S = 50e-6
"""Before second 0 the load process draws its arrivals; so much for each of them."""
LOOK_S = 0.25
AFTER_S = 30.0
"""How long the load process may take to write its records and answer, once everything must have ended."""

News = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Played:
    """What a load came to: its request rows, what its file tells of them, and the signal that ended it early, or 0.

    `about`: `backends` in the order of their numbers, `leaving` (numbers of requests whose clients meant to give up),
    `nonce` of the requests' tags, `began_unix_s`.
    """

    rows: Rows
    about: Mapping[str, Any]
    interrupted: int


@contextmanager
def generator(engine: str) -> Iterator[Generator]:
    """A process of that engine, "aiohttp" or "locust", that plays one load after another.

    Nothing is left of it in the end, after SIGTERM neither: that raises SystemExit here, with the usual status of 143.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with tempfile.TemporaryDirectory(prefix="steelyard-load-") as folder:
            process = LoadProcess(Path(folder), engine)
            try:
                process.await_ready()
                yield Generator(Path(folder), process)
            finally:
                process.stop()
    finally:
        signal.signal(signal.SIGTERM, before)


class Generator:
    """Plays one load after another by a load process that is ready, with its files in `folder`."""

    def __init__(self, folder: Path, process: LoadProcess) -> None:
        self._folder = folder
        self._process = process

    def play(
        self,
        load: Load,
        url: str,
        seed: int,
        protocol: str,
        on_look: Callable[[float, News | None], None],
        news_s: float,
    ) -> Played:
        """Play `load` against `url` until its end, or until Ctrl-C or SIGTERM.

        `on_look(at_s, news)` is called several times a second, with the news that the engine may have told. Ctrl-C ends
        the sending, and what is under way is cut off soon. HarnessError if the load process broke down, ClaimsError for
        a load of more requests than their numbers have room for.
        """
        requests = planned(load)
        out, nonce = self._folder / "requests.bin", secrets.randbelow(1 << NONCE_BITS)
        start_s = time.monotonic() + LEAD_S + LEAD_PER_REQUEST_S * requests
        began_unix_s = time.time() + start_s - time.monotonic()
        job = LoadJob(load, seed, nonce, url, start_s, (), str(out), protocol)
        lasts_s = max((stream.end_s + stream.timeout_s for stream in load.streams), default=0.0)
        with _Interrupt() as interrupt:
            self._process.begin(job, self._folder / "job.json", news_s)
            deadline_s, abandoned = start_s + lasts_s + AFTER_S, False
            while time.monotonic() < deadline_s:
                answer = self._process.answer(LOOK_S)
                if answer is not None and "done" in answer:
                    about = {**read_about(out), "nonce": nonce, "began_unix_s": began_unix_s}
                    return Played(read_requests(out), about, interrupt.seen)
                on_look(max(0.0, time.monotonic() - start_s), answer["news"] if answer else None)
                if interrupt.seen and not abandoned:
                    self._process.abandon()
                    abandoned = True
        raise HarnessError(f"the load process has not answered {AFTER_S:g} s after the end of its load")


class _Interrupt:
    """Notes the first Ctrl-C or SIGTERM, in `seen`, instead of raising it; a second one ends everything as usual."""

    def __init__(self) -> None:
        self.seen = 0

    def __enter__(self) -> _Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def reach(url: str) -> None:
    """Make sure that something listens at `url`. ClaimsError, one line, if nothing does or it is no such URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise ClaimsError(f"--target {url!r}: {error}; expected http://HOST:PORT") from None
    if parts.scheme == "https":
        raise ClaimsError(f"--target {url!r}: https is not supported; expected http://HOST:PORT")
    if parts.scheme != "http" or not host:
        raise ClaimsError(f"--target {url!r}: expected http://HOST:PORT")
    if parts.query or parts.fragment or parts.username:
        raise ClaimsError(f"--target {url!r}: expected http://HOST:PORT, with a path before every request's at most")
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ClaimsError(f"--target {url}: no connection ({why}); nothing was sent. Is it running there?") from None
