"""What goes into a GPU server and what comes out: jobs, events and the reported state, as values.

All times are seconds on the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, dataclass_transform

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True)
def _value(cls: type[_Value]) -> type[_Value]:
    """A dataclass that nobody changes, which a type checker sees to.

    Frozen at run time an event takes three to six times as long to make, a quarter of all that a job costs here.
    """
    return dataclass(slots=True)(cls)


@_value
class Job:
    """A request for service. ``id`` is the caller's and must be unique among the jobs inside.

    Service takes ``slowness`` times as long as the model's speeds say. ``prompt_blocks`` are the hashes of the
    full KV blocks of the prompt, chained: two prompts with a common beginning have as many leading hashes in
    common as that beginning has full blocks. ``adapter`` names a LoRA adapter of ``model``, "" none. ``update``
    says what an update brings: an embedding, or new weights for ``model``.

    An inference makes ``sequences`` answers of ``output_tokens`` each from one prompt. They share its prefill and its
    full KV blocks, go in step, and take one slot, but as many places in the batch as they are.
    """

    id: int
    model: str
    kind: Literal["inference", "update"]
    prompt_tokens: int
    output_tokens: int
    slowness: float = 1.0
    prompt_blocks: tuple[int, ...] = ()
    adapter: str = ""
    update: Literal["embedding", "weights"] = "embedding"
    sequences: int = 1


@_value
class Started:
    """Service began; it does so once for every job.

    ``cold``: the model was not resident at submission. ``queue_wait_s``: from then on. ``batch``: sequences of its
    model that run now, with its own (0 for an update). ``cached_tokens``: prompt tokens the prefix cache spares.
    """

    at_s: float
    job_id: int
    cold: bool
    queue_wait_s: float
    batch: int = 0
    cached_tokens: int = 0


@_value
class FirstToken:
    """The first output token is there; none comes for updates or for jobs without output tokens."""

    at_s: float
    job_id: int


@_value
class Finished:
    """Service ended in full."""

    at_s: float
    job_id: int


@_value
class Preempted:
    """The KV cache ran out: the job is back at the head of the queue, keeps its tokens and loses its KV blocks."""

    at_s: float
    job_id: int


@_value
class Resumed:
    """A preempted job runs again; it computes its prompt and its tokens so far anew before the next one."""

    at_s: float
    job_id: int


Reason: TypeAlias = Literal["queue_full", "out_of_memory", "not_found", "asleep", "too_long", "engine_dead"]


@_value
class Refused:
    """The job will not be served, or no further.

    ``queue_full``: no room in the queue. ``out_of_memory``: the model can't be made to fit. ``not_found``: its
    model was unloaded, or its adapter is not there. ``asleep``: the server sleeps. ``too_long``: more tokens
    than the model takes or the KV cache can ever hold. ``engine_dead``: the engine died while the job was inside,
    the one reason that also meets a job that runs.
    """

    at_s: float
    job_id: int
    reason: Reason


@_value
class Loading:
    """A load began; its memory counts as used from now on."""

    at_s: float
    model: str


@_value
class Loaded:
    """The model is resident."""

    at_s: float
    model: str


@_value
class Evicted:
    """The model left the memory."""

    at_s: float
    model: str


@_value
class LoadFailed:
    """An explicit load was given up: what is pinned leaves no room for the model."""

    at_s: float
    model: str


@_value
class AdapterLoaded:
    """The adapter is in one of the slots on the GPU."""

    at_s: float
    adapter: str
    base: str


@_value
class AdapterUnloaded:
    """The adapter left its slot on the GPU; if it is still known, a request brings it back."""

    at_s: float
    adapter: str
    base: str


@_value
class Slept:
    """The server sleeps. Level 1 keeps the weights in host memory, level 2 drops them; the KV cache is gone."""

    at_s: float
    level: int


@_value
class Woken:
    """The server serves again."""

    at_s: float


JobEvent: TypeAlias = Started | FirstToken | Finished | Refused | Preempted | Resumed
Residency: TypeAlias = Loading | Loaded | Evicted
Management: TypeAlias = LoadFailed | AdapterLoaded | AdapterUnloaded | Slept | Woken
Event: TypeAlias = JobEvent | Residency | Management


@_value
class State:
    """What a server reports of itself.

    ``memory_used_mb`` counts resident and loading models, adapters in slots, and KV blocks, in use or cached;
    ``memory_evictable_mb`` the idle models that are not pinned and the cached blocks among them.
    ``queue_depth`` counts waiting jobs, for a slot or for a load; ``waiting_for_load`` the latter alone.
    ``pending_tokens`` is the sum of prompt and output tokens of all jobs inside, each in full until it ends.
    ``models`` are the resident ones, in order of loading, without those that are always resident.
    ``adapters`` are the known ones, each with its base model.

    ``kv_blocks_total`` is in blocks of the default model; ``kv_blocks_used`` are held by jobs,
    ``kv_blocks_cached`` kept for prompts that begin alike. ``asleep_level`` is 0 while awake; asleep, models take
    no memory. The rest are counters since the start: prompt tokens looked up in the prefix cache and found there,
    preemptions, prompt tokens of the inferences that have come to their first token (or, without any, to their end),
    and output tokens of those that have ended, in full or not. ``Engine.figures`` adds the output tokens of those
    inside, and ``output_tokens_per_s``, which they make now.
    """

    ready: bool
    memory_total_mb: int
    memory_used_mb: int
    memory_evictable_mb: int
    queue_depth: int
    running: int
    pending_tokens: int
    models: tuple[str, ...]
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    preemptions: int = 0
    prompt_tokens_done: int = 0
    output_tokens_done: int = 0
    asleep_level: int = 0
    adapters: tuple[tuple[str, str], ...] = ()
    waiting_for_load: int = 0
    output_tokens_per_s: float = 0.0
