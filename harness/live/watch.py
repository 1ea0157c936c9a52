"""Observes an environment from outside: backends' logs and states from the fleet, and answers to our own load.

The logs are read from the fleet, not from the backends, so paused and dead backends are observed too.
"""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Mapping

import numpy as np

from harness.evidence.records import Rows
from harness.live.environment import Environment
from harness.live.evidence import LOG
from harness.live.faults.command_words import duration
from harness.live.process.http import call
from harness.live.process.ports import HOST
from harness.live.statistics import (
    WINDOW_S,
    Client,
    ObservedBackend,
    Snapshot,
    Tail,
    attempts_of,
    by_backend,
    client_of,
    missed,
    shares,
)
from harness.scenario.model import HarnessError
from mockgpu.server.attempt_log import HEADER_SIZE, LogError, read_header


class Watch:
    """Takes snapshots of `environment` on request; `log_full` names backends whose log is full."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._tails = {name: Tail() for name in environment.names}
        self._start_s = time.monotonic()
        self.log_full: set[str] = set()

    def snapshot(self) -> Snapshot:
        """The current state. HarnessError if the fleet does not answer."""
        environment = self._environment
        states = {str(item["id"]): str(item["state"]) for item in json.loads(self._get("/fleet"))}
        ended = environment.active_faults.ended()
        for name, tail in self._tails.items():
            rows = self._rows(name, tail.first)
            tail.take(rows, time.monotonic(), WINDOW_S, ended.get(name, -math.inf))
        now_s = time.monotonic()
        window_s = max(min(WINDOW_S, now_s - self._start_s), 0.1)
        answers = [] if environment.load is None else environment.load.answered(now_s - window_s)
        clients = by_backend(answers, environment.names)
        faults = self._faults()
        backends = tuple(
            self._observe(name, states[name], faults[name], clients[name], ended.get(name, -math.inf), now_s, window_s)
            for name in environment.names
        )
        share = shares({item.name: item.attempts.started for item in backends})
        return Snapshot(
            now_s - self._start_s,
            window_s,
            tuple(item.with_share(share[item.name]) for item in backends),
            None if environment.load is None else client_of(answers),
            tuple(sorted(self.log_full)),
        )

    def _observe(
        self,
        name: str,
        process: str,
        faults: tuple[str, ...],
        client: Client,
        ended_s: float,
        now_s: float,
        window_s: float,
    ) -> ObservedBackend:
        tail, setup = self._tails[name], self._environment.setup
        others = [other for other in self._tails.values() if other is not tail]
        models = tail.resident(ended_s) if process != "dead" else {}
        sizes = {model.name: model.weights_mb for model in setup.models}
        return ObservedBackend(
            name=name,
            process=process,
            attempts=attempts_of(tail.rows, now_s, window_s, ended_s, process != "dead"),
            client=client,
            share=0.0,
            silent_s=None if math.isinf(tail.last_s) else now_s - tail.last_s,
            missed=missed(tail, others, max(tail.last_s, self._environment.changed_s(name))),
            membership=self._environment.membership_status(name),
            faults=faults,
            models=tuple(model if loaded else f"{model} loading" for model, loaded in models.items()),
            used_mb=sum(sizes.get(model, setup.default_model.weights_mb) for model in models),
            total_mb=setup.gpu.weights_mb,
        )

    def _faults(self) -> Mapping[str, tuple[str, ...]]:
        now_s = time.monotonic()
        found: dict[str, list[str]] = {name: [] for name in self._environment.names}
        for row in self._environment.active_faults.rows(now_s):
            left_s = row["heals_in_s"]
            found[row["backend"]].append(
                row["told"]
                if left_s is None
                else f"{row['told']}, heals {f'in {duration(left_s)}' if left_s else 'now'}"
            )
        return {name: tuple(items) for name, items in found.items()}

    def _rows(self, name: str, first: int) -> Rows:
        data = self._get(f"/fleet/{name}/log?first={first}")
        try:
            header = read_header(data)
        except LogError as error:
            raise HarnessError(f"the log of {name} cannot be read: {error}") from None
        if header.lost:
            self.log_full.add(name)
        return np.frombuffer(data, LOG, header.count, HEADER_SIZE)

    def _get(self, path: str) -> bytes:
        try:
            answer = call("GET", f"http://{HOST}:{self._environment.fleet_control}{path}", timeout_s=10.0)
        except (OSError, http.client.HTTPException) as error:
            self._environment.check()
            raise HarnessError(f"the mock fleet does not answer GET {path}: {error}") from None
        if answer.status != 200:
            raise HarnessError(f"the mock fleet answered {answer.status} to GET {path}: {answer.body[:200]!r}")
        return answer.body
