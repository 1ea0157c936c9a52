"""Inputs and outputs of the GPU server model: jobs, events and the reported state.

All times are in seconds on the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, dataclass_transform

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True)
def _fast_dataclass(cls: type[_Value]) -> type[_Value]:
    """A dataclass that is immutable to the type checker only.

    A dataclass frozen at run time takes three to six times as long to create, a quarter of the total cost of a job.
    """
    return dataclass(slots=True)(cls)


@_fast_dataclass
class Job:
    """A request to the GPU server. ``id`` is the caller's and must be unique among the jobs in the server.

    ``slowness`` multiplies the service time given by the model's speeds. ``prompt_blocks`` are the chained hashes of
    the prompt's full KV blocks: prompts with a common prefix share one leading hash per full block of that prefix.
    ``adapter`` names a LoRA adapter of ``model``, "" for none. ``update`` is the content of an update: an embedding,
    or new weights for ``model``.

    An inference produces ``sequences`` answers of ``output_tokens`` each from one prompt. They share its prefill and
    its full KV blocks, decode in step and take one slot, but each counts in the batch size.
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


@_fast_dataclass
class Started:
    """Service began; emitted once per job.

    ``cold``: the model was not resident at submission. ``queue_wait_s``: time since submission. ``batch``: running
    sequences of its model, its own included (0 for an update). ``cached_tokens``: prompt tokens found in the prefix
    cache.
    """

    at_s: float
    job_id: int
    cold: bool
    queue_wait_s: float
    batch: int = 0
    cached_tokens: int = 0


@_fast_dataclass
class FirstToken:
    """The first output token was produced; not emitted for updates and for jobs without output tokens."""

    at_s: float
    job_id: int


@_fast_dataclass
class Finished:
    """Service was completed."""

    at_s: float
    job_id: int


@_fast_dataclass
class Preempted:
    """The KV cache was full: the job is requeued at the head, keeps its output tokens and loses its blocks."""

    at_s: float
    job_id: int


@_fast_dataclass
class Resumed:
    """A preempted job runs again; it recomputes its prompt and its tokens so far before the next token."""

    at_s: float
    job_id: int


Reason: TypeAlias = Literal["queue_full", "out_of_memory", "not_found", "asleep", "too_long", "engine_dead"]


@_fast_dataclass
class Refused:
    """The job was refused or, with ``engine_dead``, aborted.

    ``queue_full``: the queue is full. ``out_of_memory``: evicting unpinned models can't make room for the model.
    ``not_found``: the model was unloaded, or the adapter is not registered. ``asleep``: the server sleeps.
    ``too_long``: more tokens than the model accepts or the KV cache can hold. ``engine_dead``: the engine died; the
    only reason that also applies to a running job.
    """

    at_s: float
    job_id: int
    reason: Reason


@_fast_dataclass
class Loading:
    """A load began; from now on its memory counts as used."""

    at_s: float
    model: str


@_fast_dataclass
class Loaded:
    """The model is resident."""

    at_s: float
    model: str


@_fast_dataclass
class Evicted:
    """The model was evicted from memory."""

    at_s: float
    model: str


@_fast_dataclass
class LoadFailed:
    """A load failed: pinned models leave no room for the model."""

    at_s: float
    model: str


@_fast_dataclass
class AdapterLoaded:
    """The adapter was loaded into a slot on the GPU."""

    at_s: float
    adapter: str
    base: str


@_fast_dataclass
class AdapterUnloaded:
    """The adapter was evicted from its slot; if it is still registered, a request reloads it."""

    at_s: float
    adapter: str
    base: str


@_fast_dataclass
class Slept:
    """The server sleeps. Level 1 keeps the weights in host memory, level 2 discards them; the KV cache is cleared."""

    at_s: float
    level: int


@_fast_dataclass
class Woken:
    """The server is awake again."""

    at_s: float


JobEvent: TypeAlias = Started | FirstToken | Finished | Refused | Preempted | Resumed
Residency: TypeAlias = Loading | Loaded | Evicted
Management: TypeAlias = LoadFailed | AdapterLoaded | AdapterUnloaded | Slept | Woken
Event: TypeAlias = JobEvent | Residency | Management


@_fast_dataclass
class State:
    """The state that a server reports.

    ``memory_used_mb`` counts resident and loading models, loaded adapters, and KV blocks, used or cached;
    ``memory_evictable_mb`` the idle unpinned models and the cached blocks among them.
    ``queue_depth`` counts jobs that wait for a slot or a load; ``waiting_for_load`` only the latter.
    ``pending_tokens`` is the sum of prompt and output tokens of all jobs in the server, in full until a job ends.
    ``models`` are the resident models in order of loading, without those that are always resident.
    ``adapters`` are the registered adapters, each with its base model.

    ``kv_blocks_total`` is in blocks of the default model; ``kv_blocks_used`` are held by jobs,
    ``kv_blocks_cached`` by the prefix cache. ``asleep_level`` is 0 while awake; while asleep models take no memory.
    The rest are counters since the start: prompt tokens looked up and found in the prefix cache, preemptions, prompt
    tokens of inferences that reached their first token (or, with no output, their end), and output tokens of
    inferences that ended, completed or not. ``Engine.figures`` adds the output tokens of inferences in the server,
    and ``output_tokens_per_s``, their current rate.
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
