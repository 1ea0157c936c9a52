"""`python -m harness.load.locust_engine`: read jobs as JSON lines from standard input, write answers as JSON lines to
standard output.

    <- {"ready": true, "pid": 4711}
    -> {"job": "run-1", "file": "/tmp/run-1/job.json"}
    <- {"job": "run-1", "done": true, "requests": 1000, "sent": 1000, "failed": 3, "lateness_s": {...}}
    <- {"job": "run-1", "error": "one line"}            instead, if the job failed
    -> {"stop": true}                                   abandons all unanswered jobs

A job may request progress reports while it runs, on requests ended since the last report
(harness.load.results.progress):

    -> {"job": "run-1", "file": "/tmp/run-1/job.json", "news_s": 0.5}
    <- {"job": "run-1", "news": {"at_s": 3.5, "sent": 700, "ended": 690, "failed": 2, "per_s": 201.0, "p99_s": ...}}

An abandoned job writes its records and answers `done`; unsent requests are NOT_SENT. End of input, SIGTERM and SIGINT
abandon all jobs and end the process. With `--with-parent` (Linux) it is killed when its parent ends.
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

from harness.load.job import LoadJob, message_in, not_a_message
from harness.load.results.progress import ProgressMessage
from harness.load.locust_engine.engine import run_job
from harness.parent_death import die_with_parent
from harness.scenario.model import SteelyardError

_STANDARD_INPUT = 0


class LocustJobLoop:
    """Reads jobs, writes answers; one job at a time, in order."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._jobs: gevent.queue.SimpleQueue[tuple[dict[str, Any], gevent.event.Event] | None]
        self._jobs = gevent.queue.SimpleQueue()
        self._unanswered: list[gevent.event.Event] = []

    def run(self) -> None:
        """Run jobs until the end of input or a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            gevent.signal_handler(number, self.leave)
        reader = gevent.spawn(self._read)
        self._answer({"ready": True, "pid": os.getpid()})
        for message, stopped in iter(self._jobs.get, None):
            self._answer(self._run_job(message, stopped))
            self._unanswered.remove(stopped)
            gc.collect()  # collect reference cycles of the job between timed runs
        reader.kill()

    def leave(self) -> None:
        """Abandon all jobs and let `run` return."""
        self.abandon()
        self._jobs.put(None)

    def abandon(self) -> None:
        """Stop the current job and the queued ones."""
        for stopped in self._unanswered:
            stopped.set()

    def _read(self) -> None:
        for line in _lines(_STANDARD_INPUT):
            message = message_in(line)
            if message is None:
                self._answer(not_a_message(line))
            elif message.get("stop"):
                self.abandon()
            else:
                stopped = gevent.event.Event()
                self._unanswered.append(stopped)
                self._jobs.put((message, stopped))
        self.leave()

    def _run_job(self, message: dict[str, Any], stopped: gevent.event.Event) -> dict[str, Any]:
        name = message.get("job")
        if not isinstance(name, str) or not isinstance(message.get("file"), str):
            return {"job": None, "error": f'expected {{"job": NAME, "file": PATH}}, saw {json.dumps(message)[:80]}'}

        def report(progress: ProgressMessage) -> None:
            self._answer({"job": name, "news": progress})

        try:
            progress_s = float(message.get("news_s") or 0.0)
            job = LoadJob.read(Path(message["file"]))
            return {"job": name, "done": True, **run_job(job, stopped, report if progress_s > 0 else None, progress_s)}
        except SteelyardError as error:
            reason = str(error)
        except Exception as error:  # the process continues with the next job
            reason = f"{type(error).__name__}: {error}"
        return {"job": name, "error": " ".join(reason.split())}

    def _answer(self, answer: dict[str, Any]) -> None:
        os.write(self._answers, json.dumps(answer).encode() + b"\n")


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines from a descriptor until its end. Waits with gevent: a plain read would block every greenlet."""
    rest = b""
    while True:
        gevent.socket.wait_read(descriptor)
        block = os.read(descriptor, 65_536)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from (line for line in lines if line.strip())


def main() -> int:
    """Run the load process; the exit status is 0 unless it crashes."""
    if "--with-parent" in sys.argv[1:]:
        die_with_parent(signal.SIGKILL)  # if the parent has ended already, standard input ends
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    answers = os.dup(1)
    os.dup2(2, 1)  # other output must not mix with the answers
    worker = LocustJobLoop(answers)
    # A garbage collection during a run would add 20 to 30 ms to some latencies.
    gc.collect()
    gc.freeze()
    gc.disable()
    worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
