"""The job of a load process for one run, as a JSON file. Imports neither gevent nor Locust."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter

from harness.claims.features import PROTOCOLS
from harness.scenario.model import HarnessError, Load
from harness.scenario.reading import among, read_json, shown


def _http_url(text: str) -> str:
    if not text.startswith("http://"):
        raise ValueError(f"saw {shown(text)}, expected http://HOST:PORT")
    return text


@dataclass(frozen=True, slots=True)
class LoadJob:
    """One run's load.

    `load` and `seed` determine the arrivals, `nonce` (31 bits) marks the run's requests, `url` is their target
    (`http://HOST:PORT`; a path is prepended to every request's own). `start_s` is second 0 of the run on
    CLOCK_MONOTONIC, which all processes of one Linux machine share. `backends` are the names that answers carry in
    `x-backend-id`, in the order of their numbers; without any they are numbered as they answer. `out` is the file of
    request records to write (harness.evidence.records), `protocol` one of harness.claims.features.PROTOCOLS.

    If several `workers` send one job together, the one with number `worker` (from 0) sends its shard.
    """

    load: Load
    seed: int
    nonce: Annotated[int, Field(ge=0, lt=1 << 31)]
    url: Annotated[str, AfterValidator(_http_url)]
    start_s: float
    backends: tuple[str, ...]
    out: str
    protocol: Annotated[str, among(PROTOCOLS)] = "http"
    worker: Annotated[int, Field(ge=0)] = 0
    workers: Annotated[int, Field(ge=1)] = 1

    def write(self, path: Path) -> None:
        """Write this job to `path` as JSON."""
        path.write_bytes(_FORM.dump_json(self))

    @staticmethod
    def read(path: Path) -> LoadJob:
        """The job in the file at `path`. HarnessError, one line, if it cannot be read or is not a job."""
        try:
            return read_json(LoadJob, path.read_bytes())
        except OSError as error:
            raise HarnessError(f"{path}: cannot read the job ({error})") from None
        except ValueError as error:
            raise HarnessError(f"{path}: not a job of the load process: {error}") from None


_FORM = TypeAdapter(LoadJob)
_LOAD = TypeAdapter(Load)


def text_of(load: Load) -> str:
    """`load` as JSON, the same as in a job's file."""
    return _LOAD.dump_json(load).decode()


def load_in(text: str) -> Load:
    """The load of a text made by `text_of`. ValueError for any other text."""
    return _LOAD.validate_json(text)


def message_in(line: bytes) -> dict[str, Any] | None:
    """The message (a JSON object) in one line of a load process's standard input; None if the line has none."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def not_a_message(line: bytes) -> dict[str, Any]:
    """The answer to a line without a message, as JSON."""
    return {"job": None, "error": f"expected a JSON object on one line, saw {line[:80]!r}"}
