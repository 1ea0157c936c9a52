"""Looks at a stage from outside: the backends' logs and states as the fleet tells them, and answers to our own load.

The logs are read from the fleet, not from the backends, so one that is paused or dead is seen like the others.
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
    """Makes a snapshot of `stage` whenever it is asked for one; `log_full` names backends whose log took no more."""

    def __init__(self, stage: Environment) -> None:
        self._stage = stage
        self._tails = {name: Tail() for name in stage.names}
        self._start_s = time.monotonic()
        self.log_full: set[str] = set()

    def snapshot(self) -> Snapshot:
        """How the stage looks now. HarnessError if the fleet does not answer."""
        stage = self._stage
        states = {str(item["id"]): str(item["state"]) for item in json.loads(self._ask("/fleet"))}
        ended = stage.book.ended()
        for name, tail in self._tails.items():
            rows = self._rows(name, tail.first)
            tail.take(rows, time.monotonic(), WINDOW_S, ended.get(name, -math.inf))
        now_s = time.monotonic()
        window_s = max(min(WINDOW_S, now_s - self._start_s), 0.1)
        answers = [] if stage.load is None else stage.load.answered(now_s - window_s)
        clients = by_backend(answers, stage.names)
        faults = self._faults()
        backends = tuple(
            self._seen(name, states[name], faults[name], clients[name], ended.get(name, -math.inf), now_s, window_s)
            for name in stage.names
        )
        share = shares({seen.name: seen.attempts.started for seen in backends})
        return Snapshot(
            now_s - self._start_s,
            window_s,
            tuple(seen.with_share(share[seen.name]) for seen in backends),
            None if stage.load is None else client_of(answers),
            tuple(sorted(self.log_full)),
        )

    def _seen(
        self,
        name: str,
        process: str,
        faults: tuple[str, ...],
        client: Client,
        ended_s: float,
        now_s: float,
        window_s: float,
    ) -> ObservedBackend:
        tail, setup = self._tails[name], self._stage.setup
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
            missed=missed(tail, others, max(tail.last_s, self._stage.changed_s(name))),
            membership=self._stage.standing(name),
            faults=faults,
            models=tuple(model if loaded else f"{model} loading" for model, loaded in models.items()),
            used_mb=sum(sizes.get(model, setup.default_model.weights_mb) for model in models),
            total_mb=setup.gpu.weights_mb,
        )

    def _faults(self) -> Mapping[str, tuple[str, ...]]:
        now_s = time.monotonic()
        found: dict[str, list[str]] = {name: [] for name in self._stage.names}
        for entry in self._stage.book.entries():
            row = entry.row(now_s)
            left_s = row["heals_in_s"]
            found[entry.fault.backend].append(
                row["told"]
                if left_s is None
                else f"{row['told']}, heals {f'in {duration(left_s)}' if left_s else 'now'}"
            )
        return {name: tuple(items) for name, items in found.items()}

    def _rows(self, name: str, first: int) -> Rows:
        data = self._ask(f"/fleet/{name}/log?first={first}")
        try:
            header = read_header(data)
        except LogError as error:
            raise HarnessError(f"the log of {name} cannot be read: {error}") from None
        if header.lost:
            self.log_full.add(name)
        return np.frombuffer(data, LOG, header.count, HEADER_SIZE)

    def _ask(self, path: str) -> bytes:
        try:
            answer = call("GET", f"http://{HOST}:{self._stage.fleet_control}{path}", timeout_s=10.0)
        except (OSError, http.client.HTTPException) as error:
            self._stage.check()
            raise HarnessError(f"the mock fleet does not answer GET {path}: {error}") from None
        if answer.status != 200:
            raise HarnessError(f"the mock fleet answered {answer.status} to GET {path}: {answer.body[:200]!r}")
        return answer.body
