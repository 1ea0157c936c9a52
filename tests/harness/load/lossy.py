"""A run in one process with lost and duplicate messages. Usage: ``python -m tests.harness.load.lossy URL FILE``.

Prints which kinds were lost. Run it in a process of its own: it imports Locust.
"""

import locust  # noqa: F401, I001  before anything else: it patches the interpreter

import sys
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import LocalRunner

from harness.load.locust_engine.coordinator import Coordinator
from harness.load.job import text_of
from harness.load.locust_engine.messages import Plan
from harness.load.locust_engine.worker import Worker
from harness.load.workloads.profiles import load_of


class Lossy(LocalRunner):
    """Loses every second message of records, done and ack; sends the other messages of records twice."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.lost: list[str] = []
        self._sent: dict[str, int] = {}

    def send_message(self, msg_type: str, data: Any = None, client_id: str | None = None) -> None:
        """Send the message, or lose it."""
        self._sent[msg_type] = self._sent.get(msg_type, 0) + 1
        if msg_type in ("steelyard_records", "steelyard_done", "steelyard_ack") and self._sent[msg_type] % 2:
            self.lost.append(msg_type)
            return
        for _ in range(2 if msg_type == "steelyard_records" else 1):
            super().send_message(msg_type, data, client_id)


def main() -> None:
    """Send 150 requests and write their records."""
    environment = Environment()
    environment.runner = runner = Lossy(environment)
    coordinator, _ = Coordinator(environment, runner), Worker(environment, runner)
    load = text_of(load_of("steady", 100.0, 1.5))
    plan = Plan(0, "steady", 100.0, 1.5, 1, 0, sys.argv[1], "http", 0, 0.0, 0, 1, load)
    coordinator.begin(plan, sys.argv[2])
    with gevent.Timeout(60.0):
        while not coordinator.finished:
            gevent.sleep(0.05)
    print(*sorted(set(runner.lost)))


if __name__ == "__main__":
    main()
