"""`python -m harness.load.locust_engine`: take jobs as JSON lines on standard input, answer with JSON lines on
standard output.

    <- {"ready": true, "pid": 4711}
    -> {"job": "run-1", "file": "/tmp/run-1/job.json"}
    <- {"job": "run-1", "done": true, "requests": 1000, "sent": 1000, "failed": 3, "lateness_s": {...}}
    <- {"job": "run-1", "error": "one line"}            instead, if the job could not be played
    -> {"stop": true}                                   abandons all jobs asked for and not yet answered

A job may ask for news while it runs, of what ended since the news before (harness.load.results.progress):

    -> {"job": "run-1", "file": "/tmp/run-1/job.json", "news_s": 0.5}
    <- {"job": "run-1", "news": {"at_s": 3.5, "sent": 700, "ended": 690, "failed": 2, "per_s": 201.0, "p99_s": ...}}

An abandoned job writes its records and answers `done` as ever; what it had not sent is NOT_SENT. End of input, SIGTERM
and SIGINT abandon likewise, and then the process leaves. With `--with-parent` (Linux) it dies with its parent.
"""

import locust  # noqa: F401, I001  before anything else: it patches the interpreter, and ssl must not be loaded yet

import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import gevent.queue
import gevent.socket

from harness.load.job import LoadJob, asked_in, not_asked
from harness.load.results.progress import Told
from harness.load.locust_engine.engine import perform
from harness.parent_death import die_with_parent
from harness.scenario.model import SteelyardError

_STANDARD_INPUT = 0


class LocustJobLoop:
    """Jobs in, answers out; one job at a time, in the order asked."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._jobs: gevent.queue.SimpleQueue[tuple[dict[str, Any], gevent.event.Event] | None]
        self._jobs = gevent.queue.SimpleQueue()
        self._unanswered: list[gevent.event.Event] = []

    def run(self) -> None:
        """Take jobs until the end of input or a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            gevent.signal_handler(number, self.leave)
        reader = gevent.spawn(self._read)
        self._answer({"ready": True, "pid": os.getpid()})
        for asked, stopped in iter(self._jobs.get, None):
            self._answer(self._played(asked, stopped))
            self._unanswered.remove(stopped)
            gc.collect()  # what the job left behind in cycles, while nothing is timed
        reader.kill()

    def leave(self) -> None:
        """Abandon all jobs and let `run` return."""
        self.abandon()
        self._jobs.put(None)

    def abandon(self) -> None:
        """Stop the current job and those that wait."""
        for stopped in self._unanswered:
            stopped.set()

    def _read(self) -> None:
        for line in _lines(_STANDARD_INPUT):
            asked = asked_in(line)
            if asked is None:
                self._answer(not_asked(line))
            elif asked.get("stop"):
                self.abandon()
            else:
                stopped = gevent.event.Event()
                self._unanswered.append(stopped)
                self._jobs.put((asked, stopped))
        self.leave()

    def _played(self, asked: dict[str, Any], stopped: gevent.event.Event) -> dict[str, Any]:
        name = asked.get("job")
        if not isinstance(name, str) or not isinstance(asked.get("file"), str):
            return {"job": None, "error": f'expected {{"job": NAME, "file": PATH}}, saw {json.dumps(asked)[:80]}'}

        def tell(news: Told) -> None:
            self._answer({"job": name, "news": news})

        try:
            news_s = float(asked.get("news_s") or 0.0)
            job = LoadJob.read(Path(asked["file"]))
            return {"job": name, "done": True, **perform(job, stopped, tell if news_s > 0 else None, news_s)}
        except SteelyardError as error:
            told = str(error)
        except Exception as error:  # the process has to live on for the next run
            told = f"{type(error).__name__}: {error}"
        return {"job": name, "error": " ".join(told.split())}

    def _answer(self, answer: dict[str, Any]) -> None:
        os.write(self._answers, json.dumps(answer).encode() + b"\n")


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines from a descriptor until its end. Waits in gevent's way: a plain read would halt every greenlet."""
    rest = b""
    while True:
        gevent.socket.wait_read(descriptor)
        block = os.read(descriptor, 65_536)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from (line for line in lines if line.strip())


def main() -> int:
    """Run the load process; the exit status is 0 unless it breaks down."""
    if "--with-parent" in sys.argv[1:]:
        die_with_parent(signal.SIGKILL)  # a parent that has ended already shows as the end of input
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    answers = os.dup(1)
    os.dup2(2, 1)  # what anybody prints must not mix with the answers
    worker = LocustJobLoop(answers)
    # A collection in the middle of a run would be a stall of 20 to 30 ms in somebody's latency.
    gc.collect()
    gc.freeze()
    gc.disable()
    worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
