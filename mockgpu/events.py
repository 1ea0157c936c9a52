"""What goes into a GPU server and what comes out: jobs, events and the reported state, as frozen values.

All times are seconds on the caller's clock. ``mockgpu.model`` offers these names too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Job:
    """A request for service. ``id`` is the caller's and must be unique among the jobs inside.

    Service takes ``slowness`` times as long as the model's speeds say.
    """

    id: int
    model: str
    kind: Literal["inference", "update"]
    prompt_tokens: int
    output_tokens: int
    slowness: float = 1.0


@dataclass(frozen=True, slots=True)
class Started:
    """Service began. ``cold``: the model was not resident at submission. ``queue_wait_s``: from then on."""

    at_s: float
    job_id: int
    cold: bool
    queue_wait_s: float


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first output token is there; none comes for updates or for jobs without output tokens."""

    at_s: float
    job_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Service ended in full."""

    at_s: float
    job_id: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The job was not taken in."""

    at_s: float
    job_id: int
    reason: Literal["queue_full", "out_of_memory"]


@dataclass(frozen=True, slots=True)
class Loading:
    """A load began; its memory counts as used from now on."""

    at_s: float
    model: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is resident."""

    at_s: float
    model: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """The model left the memory."""

    at_s: float
    model: str


Event: TypeAlias = Started | FirstToken | Finished | Refused | Loading | Loaded | Evicted


@dataclass(frozen=True, slots=True)
class State:
    """What a server reports of itself.

    ``memory_used_mb`` counts resident and loading models, ``memory_evictable_mb`` the idle ones among them.
    ``queue_depth`` counts waiting jobs, for a slot or for a load. ``pending_tokens`` is the sum of prompt and
    output tokens of all jobs inside, each in full until it ends. ``models`` are the resident ones, in order
    of loading, without those that are always resident.
    """

    ready: bool
    memory_total_mb: int
    memory_used_mb: int
    memory_evictable_mb: int
    queue_depth: int
    running: int
    pending_tokens: int
    models: tuple[str, ...]
