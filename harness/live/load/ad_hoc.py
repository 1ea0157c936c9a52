"""Ad-hoc loads without a scenario: against any server at a URL, with progress messages.

The load runs in a child process, so that drawing a progress bar delays no request.
"""

from __future__ import annotations

import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any
from urllib.parse import urlsplit

from harness.evidence.records import Rows, read_about, read_requests
from harness.evidence.run_events import Listener, LoadProgressed
from harness.live.load.load_process import LoadProcess
from harness.load.job import LoadJob
from harness.load.wire import NONCE_BITS
from harness.load.workloads.profiles import planned
from harness.scenario.model import ClaimsError, HarnessError, Load

CONNECT_S = 5.0
LEAD_S = 0.3
LEAD_PER_REQUEST_S = 50e-6
"""Lead time per request: the load process draws its arrivals before second 0."""
POLL_S = 0.25
AFTER_S = 30.0
"""Time the load process has to write its records and answer after the latest possible end of the load."""


@dataclass(frozen=True, eq=False)
class Played:
    """Result of a load: request rows, metadata of its records file, and the signal that ended it early, or 0.

    `about`: `backends` in the order of their numbers, `leaving` (numbers of requests whose clients give up on purpose),
    `nonce` of the requests' tags, `began_unix_s`.
    """

    rows: Rows
    about: Mapping[str, Any]
    interrupted: int


@contextmanager
def generator(engine: str) -> Iterator[Generator]:
    """A load process of `engine`, "aiohttp" or "locust", that plays one load after another.

    It is stopped at the end, also after SIGTERM, which raises SystemExit with the usual status 143.
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
    """Plays loads one after another on a ready load process, with files in `folder`."""

    def __init__(self, folder: Path, process: LoadProcess) -> None:
        self._folder = folder
        self._process = process

    def play(
        self,
        load: Load,
        url: str,
        seed: int,
        protocol: str,
        listener: Listener,
        progress_s: float,
    ) -> Played:
        """Play `load` against `url` until its end, or until Ctrl-C or SIGTERM.

        `listener` is told of the progress every `POLL_S`, with the engine's figures if it has sent some since; the
        engine sends one every `progress_s`. Ctrl-C ends the sending, and requests in flight are cut off soon.
        HarnessError if the load process failed, ClaimsError for more requests than request numbers allow.
        """
        requests = planned(load)
        out, nonce = self._folder / "requests.bin", secrets.randbelow(1 << NONCE_BITS)
        start_s = time.monotonic() + LEAD_S + LEAD_PER_REQUEST_S * requests
        began_unix_s = time.time() + start_s - time.monotonic()
        job = LoadJob(load, seed, nonce, url, start_s, (), str(out), protocol)
        lasts_s = max((stream.end_s + stream.timeout_s for stream in load.streams), default=0.0)
        with _Interrupt() as interrupt:
            self._process.begin(job, self._folder / "job.json", progress_s)
            deadline_s, abandoned = start_s + lasts_s + AFTER_S, False
            while time.monotonic() < deadline_s:
                answer = self._process.answer(POLL_S)
                if answer is not None and "done" in answer:
                    about = {**read_about(out), "nonce": nonce, "began_unix_s": began_unix_s}
                    return Played(read_requests(out), about, interrupt.received)
                at_s = max(0.0, time.monotonic() - start_s)
                listener(LoadProgressed(at_s, answer["news"] if answer else None))
                if interrupt.received and not abandoned:
                    self._process.abandon()
                    abandoned = True
        raise HarnessError(f"the load process has not answered {AFTER_S:g} s after the end of its load")


class _Interrupt:
    """Records the first Ctrl-C or SIGTERM in `received` instead of raising it; a second one has its usual effect."""

    def __init__(self) -> None:
        self.received = 0

    def __enter__(self) -> _Interrupt:
        self._before = {number: signal.signal(number, self._record) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def check_reachable(url: str) -> None:
    """ClaimsError, one line, if nothing listens at `url` or it is not a valid target URL."""
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
        raise ClaimsError(f"--target {url!r}: expected http://HOST:PORT, with at most a path prefix")
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ClaimsError(f"--target {url}: no connection ({why}); nothing was sent. Is it running there?") from None
