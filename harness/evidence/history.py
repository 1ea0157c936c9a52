"""Evidence of one run in columns, observed from outside the balancer, and the queries of checks.

All times are seconds from the start of the run; nan where nothing happened. Backends are numbers (`gpu-3` is 3).
A history contains nothing from inside the balancer, so one check judges every balancer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.evidence import store
from harness.evidence.queries import AttemptSelection, RequestSelection
from harness.evidence.records import REQUEST, Rows
from harness.evidence.tables import (
    ATTEMPT,
    CONNECTION,
    HEALTH_CHECK,
    RESIDENCY,
    TABLES,
    UNSEEN,
    Mask,
    Numbers,
    Tables,
    Times,
)
from harness.scenario.fast_dataclass import canonical
from harness.scenario.model import EvidenceError, Failure, Residency, Scenario
from harness.scenario.text_form import scenario_of

SEVERAL = -2
"""More than one backend was the first for requests with the key."""


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A fault or membership change as carried out: when requested, effective and healed (nan: never), in seconds.

    `hits`: number of requests or reports that a request fault affected; None if not counted.
    """

    kind: str
    backend: int
    asked_s: float
    effective_s: float
    healed_s: float = float("nan")
    hits: int | None = None

    def as_json(self) -> dict[str, Any]:
        """This step in plain JSON types; nan becomes None."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StepSeen:
        """The step that `as_json` describes."""
        times_s = {name: float("nan") if values[name] is None else float(values[name]) for name in _STEP_TIMES}
        return cls(**{**values, **times_s})

    @property
    def took_effect(self) -> bool:
        """Whether a probe confirmed the step's effect."""
        return not math.isnan(self.effective_s)


_STEP_TIMES = ("asked_s", "effective_s", "healed_s")


def _empty(dtype: np.dtype[Any]) -> Rows:
    return np.zeros(0, dtype=dtype)


@dataclass(frozen=True)
class History:
    """Observations of clients, backends and the fault proxy in one run. Rows are ordered by time.

    `requests` has one row per arrival, at the index of its number. `slack_s` (timing uncertainty) has one value per
    second of the run. `died`: how the balancer ended during the run, if it did. `correlated`: whether attempts can be
    matched to requests. `baselines`: the same arrivals under policies of the simulator.

    The methods' examples use this history: three answered chat requests and a failed update.

    >>> from harness.evidence.example import example_history
    >>> history = example_history()
    >>> history.requests["status"].tolist()
    [200, 200, 200, 503]
    """

    scenario: Scenario
    seed: int
    requests: Rows
    attempts: Rows = field(default_factory=lambda: _empty(ATTEMPT))
    health_checks: Rows = field(default_factory=lambda: _empty(HEALTH_CHECK))
    residency: Rows = field(default_factory=lambda: _empty(RESIDENCY))
    connections: Rows = field(default_factory=lambda: _empty(CONNECTION))
    steps: tuple[StepSeen, ...] = ()
    slack_s: Times = field(default_factory=lambda: np.zeros(0))
    correlated: bool = True
    died: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    baselines: Mapping[str, History] = field(default_factory=dict)

    # --- selections ---------------------------------------------------------------------------------------

    def all_requests(self) -> RequestSelection:
        """All requests, to be narrowed (`harness.evidence.queries`).

        >>> len(history.all_requests().lost())
        1
        """
        return RequestSelection(self._tables(), np.arange(len(self.requests)))

    def requests_in(self, *streams: str) -> RequestSelection:
        """The requests of the streams with these names. KeyError for an unknown name.

        >>> history.requests_in("chat").first_backends().tolist()
        [0, 1, 0]
        """
        return self.all_requests().in_streams(*streams)

    def all_attempts(self) -> AttemptSelection:
        """All attempts of this run's requests; foreign ones, without a tag of the run, are left out.

        >>> history.all_attempts().of_request("key").tolist()
        [0, 1, 0]
        """
        return AttemptSelection(self._tables(), np.flatnonzero(self.attempts["request"] >= 0))

    def attempts_on(self, *backends: str | int) -> AttemptSelection:
        """The attempts of this run's requests at these backends, given by name or number.

        >>> len(history.attempts_on("gpu-0"))
        2
        """
        return self.all_attempts().on(*backends)

    def _tables(self) -> Tables:
        streams = tuple((stream.name, stream.timeout_s) for stream in self.scenario.load.streams)
        return Tables(self.requests, self.attempts, self.scenario.backend_ids, streams)

    def in_stream(self, name: str) -> Mask:
        """Mask of the requests of the stream called `name`. KeyError if there is none.

        >>> history.in_stream("updates").tolist()
        [False, False, False, True]
        """
        mask: Mask = self.requests["stream"] == self.scenario.load.index(name)
        return mask

    def answered(self) -> Mask:
        """Mask of the requests that got a complete answer with a 2xx status.

        >>> history.answered().tolist()
        [True, True, True, False]
        """
        status = self.requests["status"]
        mask: Mask = (status >= 200) & (status < 300) & (self.requests["failure"] == Failure.NONE)
        return mask

    def first_attempts(self) -> Numbers:
        """For each request the row of its first attempt, -1 where no backend received it.

        >>> history.first_attempts().tolist()
        [0, 1, 2, -1]
        """
        return self.all_requests().first_attempts()

    def first_backends(self) -> Numbers:
        """For each request the backend of its first attempt, -1 where no backend received it.

        >>> history.first_backends().tolist()
        [0, 1, 0, -1]
        """
        return self.all_requests().first_backends()

    def owners(self, stream: str) -> Numbers:
        """For each key of a stream the backend of the first attempts of all its requests.

        UNSEEN (-1) if no backend received a request with the key, SEVERAL (-2) if several were first.

        >>> history.owners("chat").tolist()
        [0, 1]
        """
        keys = self.scenario.load.stream(stream).keys
        owners = np.full(keys.count if keys else 0, UNSEEN, dtype=np.int64)
        mask = self.in_stream(stream) & (self.requests["key"] >= 0)
        backends = self.first_backends()
        for key, backend in zip(self.requests["key"][mask], backends[mask], strict=True):
            if backend == UNSEEN:
                continue
            owners[key] = backend if owners[key] in (UNSEEN, backend) else SEVERAL
        return owners

    def step(self, kind: str, backend: str) -> StepSeen | None:
        """The first step of this kind ("Kill", "Leave", ...) on `backend` that took effect, or None.

        >>> history.step("Kill", "gpu-1").effective_s
        0.51
        """
        number = self.scenario.backend_ids.index(backend)
        for step in self.steps:
            if step.kind == kind and step.backend == number and step.took_effect:
                return step
        return None

    def baseline(self, name: str) -> History:
        """The same arrivals under the simulator's policy `name`. KeyError unless the property declares it.

        >>> compared = history.with_baselines({"round_robin": history})
        >>> compared.baseline("round_robin").cold_loads()
        1
        """
        return self.baselines[name]

    def with_baselines(self, baselines: Mapping[str, History]) -> History:
        """A copy of this history with comparison runs attached."""
        return replace(self, baselines=dict(baselines))

    # --- figures ------------------------------------------------------------------------------------------

    def cold_loads(self) -> int:
        """Number of times that a model's weights were loaded into a GPU.

        >>> history.cold_loads()
        1
        """
        return int(np.count_nonzero(self.residency["event"] == Residency.LOADING))

    def worst_slack_s(self, start_s: float, end_s: float | None = None) -> float:
        """Largest slack of the seconds that overlap [start_s, end_s]; `end_s` None: the second of `start_s`.

        >>> history.worst_slack_s(0.2, 1.5)
        0.004
        """
        seconds = self._seconds(start_s, end_s)
        return float(self.slack_s[seconds].max()) if len(self.slack_s) else 0.0

    def slack_at(self, at_s: Times) -> Times:
        """The slack of the second of each of these times; nan and inf have that of the last second.

        >>> history.slack_at(np.array([0.2, 1.5])).tolist()
        [0.002, 0.004]
        """
        if not len(self.slack_s):
            return np.zeros(len(at_s))
        last = len(self.slack_s) - 1
        seconds = np.clip(np.nan_to_num(at_s, nan=last, posinf=last, neginf=0), 0, last)
        return self.slack_s[seconds.astype(np.int64)]

    def slack_cause(self, start_s: float, end_s: float | None = None) -> str:
        """What the largest slack of these seconds measured ("a mock waited for a core"); "" where no one recorded it.

        >>> history.slack_cause(0.2, 1.5)
        'generator delay'
        """
        causes = self.facts.get("slack_causes", [])
        if not len(self.slack_s) or len(causes) != len(self.slack_s):
            return ""
        seconds = self._seconds(start_s, end_s)
        return str(causes[seconds.start + int(self.slack_s[seconds].argmax())])

    def _seconds(self, start_s: float, end_s: float | None) -> slice:
        last = len(self.slack_s) - 1
        first, until = (
            last if math.isnan(at_s) else int(min(max(at_s, 0.0), last))
            for at_s in (start_s, start_s if end_s is None else end_s)
        )
        return slice(first, max(first, until) + 1)

    # --- files --------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write all of this history, comparison runs included, to one file (`harness.evidence.store`).

        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history.save(Path(folder, "example.history"))
        ...     History.load(Path(folder, "example.history")).digest() == history.digest()
        True
        """
        arrays: dict[str, Rows] = {}
        store.write(path, self._about(arrays), arrays)

    @classmethod
    def load(cls, path: Path) -> History:
        """The history that `save` wrote. EvidenceError, one line, for another version or an altered file."""
        about, arrays = store.read(path)
        try:
            return cls._from(about, arrays)
        except KeyError as missing:
            raise EvidenceError(f"{path}: not a history of this release: no {missing}") from None
        except (TypeError, ValueError) as error:
            raise EvidenceError(f"{path}: not a history of this release: {error}") from None

    def _about(self, arrays: dict[str, Rows], prefix: str = "") -> dict[str, Any]:
        """Everything but the tables as plain JSON types; adds the tables to `arrays`, names after `prefix`."""
        arrays |= {f"{prefix}{name}": getattr(self, name) for name in TABLES}
        return {
            "scenario": canonical(self.scenario),
            "seed": self.seed,
            "steps": [step.as_json() for step in self.steps],
            "correlated": self.correlated,
            "died": self.died,
            "facts": canonical(self.facts),
            "baselines": {name: run._about(arrays, f"{prefix}{name}.") for name, run in self.baselines.items()},
        }

    @classmethod
    def _from(cls, about: Mapping[str, Any], arrays: Mapping[str, Rows], prefix: str = "") -> History:
        tables = {name: arrays[f"{prefix}{name}"] for name in TABLES}
        for name, dtype in TABLES.items():
            if tables[name].dtype != dtype or tables[name].ndim != 1:
                raise ValueError(f"table {name} has columns {tables[name].dtype}, expected {dtype}")
        baselines = {name: cls._from(run, arrays, f"{prefix}{name}.") for name, run in about["baselines"].items()}
        return cls(
            scenario=scenario_of(about["scenario"]),
            seed=about["seed"],
            **tables,
            steps=tuple(StepSeen.from_json(step) for step in about["steps"]),
            correlated=about["correlated"],
            died=about["died"],
            facts=about["facts"],
            baselines=baselines,
        )

    def digest(self) -> str:
        """SHA-256 of all records; in `sim` equal for equal scenario and seed, in every process."""
        total = hashlib.sha256()
        for name in TABLES:
            rows = getattr(self, name)
            total.update(f"{rows.dtype.descr} {len(rows)}".encode())
            total.update(np.ascontiguousarray(rows).tobytes())
        rest = {
            "scenario": canonical(self.scenario),
            "seed": self.seed,
            "steps": [[step.kind, step.backend, repr(step)] for step in self.steps],
            "correlated": self.correlated,
            "died": self.died,
        }
        total.update(json.dumps(rest, sort_keys=True).encode())
        return total.hexdigest()


def empty_requests(count: int) -> Rows:
    """`count` rows of requests not sent: nan times, no answer, numbered in order."""
    rows = np.zeros(count, dtype=REQUEST)
    rows["number"] = np.arange(count)
    rows["key"] = rows["connection"] = rows["answered_by"] = -1
    rows["failure"] = Failure.NOT_SENT
    for name in ("intended_s", "sent_s", "first_byte_s", "end_s", "patience_s"):
        rows[name] = np.nan
    return rows
