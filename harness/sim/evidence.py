"""Evidence of a simulated run: rows collected during the run, converted to a history at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from harness.evidence.history import History, StepSeen, empty_requests
from harness.evidence.records import Rows
from harness.evidence.tables import ATTEMPT, HEALTH_CHECK, RESIDENCY
from harness.scenario.arrivals import Arrival
from harness.scenario.model import Echo, Failure, Scenario
from harness.sim.backend import SimBackend

NAN = float("nan")
ALL_CARRIERS = 15


@dataclass(slots=True)
class ClientRow:
    """One request as its client observed it."""

    number: int
    sent_s: float = NAN
    first_byte_s: float = NAN
    end_s: float = NAN
    status: int = 0
    failure: Failure = Failure.NOT_SENT
    echo: Echo = Echo.NONE
    answered_by: int = -1
    done: bool = False


class Evidence:
    """Rows of one run. `died`: report of the gateway's exception. `arrivals` and `requests` may grow together."""

    def __init__(self, scenario: Scenario, seed: int, arrivals: Sequence[Arrival]) -> None:
        self._scenario = scenario
        self._seed = seed
        self._arrivals = arrivals
        self.requests = [ClientRow(arrival.number) for arrival in arrivals]
        self.health_checks: list[tuple[int, int, float]] = []
        self.died: str | None = None

    def history(self, backends: list[SimBackend], steps: tuple[StepSeen, ...]) -> History:
        """All rows as the columns of a history."""
        requests = empty_requests(len(self._arrivals))
        for name in ("stream", "kind", "method", "key", "connection"):
            _fill(requests, name, self._arrivals)
        _fill(requests, "intended_s", self._arrivals, "at_s")
        _fill(requests, "patience_s", self._arrivals)
        for name in ("sent_s", "first_byte_s", "end_s", "status", "failure", "echo", "answered_by"):
            _fill(requests, name, self.requests)
        rows = sorted((row for backend in backends for row in backend.rows), key=attrgetter("start_s", "request"))
        attempts = np.zeros(len(rows), dtype=ATTEMPT)
        for name in ("request", "backend", "kind", "ending", "cold", "status"):
            _fill(attempts, name, rows)
        for name in ("start_s", "first_byte_s", "end_s", "queue_wait_s"):
            _fill(attempts, name, rows)
        _fill(attempts, "service_asked_s", rows, "service_s")
        attempts["service_actual_s"] = attempts["service_asked_s"]
        attempts["carriers"] = ALL_CARRIERS
        residency = sorted((item for backend in backends for item in backend.residency), key=lambda item: item[3])
        return History(
            scenario=self._scenario,
            seed=self._seed,
            requests=requests,
            attempts=attempts,
            health_checks=np.array(self.health_checks, dtype=HEALTH_CHECK),
            residency=np.array(
                [(number, event, model.encode(), at_s) for number, event, model, at_s in residency], dtype=RESIDENCY
            ),
            steps=steps,
            slack_s=np.zeros(int(self._scenario.end_s) + 1),
            died=self.died,
        )


def _fill(columns: Rows, name: str, rows: Sequence[object], attribute: str = "") -> None:
    """Fill column `name` from an attribute of the rows, by default the attribute of the same name."""
    columns[name] = np.fromiter(map(attrgetter(attribute or name), rows), columns.dtype[name], len(rows))
