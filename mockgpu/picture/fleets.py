"""Fleets for ``mockgpu.picture.drawing``: a seeded load over more models than fit in memory, in virtual time.

The same load goes through two fleets: one with round robin, the other with affinity (each model has one backend).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import cycle

from mockgpu.gpu.catalogue import GPUS, MODELS
from mockgpu.gpu.events import Evicted, Job, Loaded, Loading, Started
from mockgpu.gpu.model import GpuServer
from mockgpu.gpu.setup import Setup

MODELS_PER_BACKEND = 8
ZIPF_EXPONENT = 1.0
RATE_PER_BACKEND_PER_S = 3.0
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 60
LOAD_TIME_FACTOR = 0.2
"""Load time relative to the catalogue's, which is from disk: here the weights are in the page cache."""

Route = Callable[[int, str], int]
"""Maps the number of a request and its model to the number of a backend."""


@dataclass(slots=True)
class ResidencySpan:
    """Time of one model in memory, in seconds; ``ready_s`` and ``evicted_s`` are None if the picture ends first.

    ``lanes``: the memory slices that it takes in the picture.
    """

    model: str
    loading_s: float
    lanes: tuple[int, ...]
    ready_s: float | None = None
    evicted_s: float | None = None


@dataclass(slots=True)
class Track:
    """Record of one backend. ``waiting``: queue length from a time on; ``waits_s``: waiting time of each request.

    ``warm`` counts the requests whose model was resident at submission.
    """

    spans: list[ResidencySpan] = field(default_factory=list)
    waiting: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    waits_s: list[float] = field(default_factory=list)
    warm: int = 0


def fleet_setup(backends: int) -> Setup:
    """A backend of the picture and its models, named by rank in order of popularity; every third one is in bf16."""
    kinds = [MODELS["llama-8b"], MODELS["llama-8b-fp8"], MODELS["llama-8b-fp8"]]
    models = tuple(
        replace(kind, name=str(rank), load_s=kind.load_s * LOAD_TIME_FACTOR)
        for rank, kind in zip(range(1, MODELS_PER_BACKEND * backends + 1), cycle(kinds), strict=False)
    )
    return Setup(replace(GPUS["h100-80gb"], kv_share=0.0), models[0], models)


def arrivals(setup: Setup, backends: int, seconds: float, seed: int) -> list[tuple[float, Job]]:
    """Poisson arrivals at the fleet, for models with Zipf popularity."""
    generator = random.Random(f"picture/{seed}")
    names = [model.name for model in setup.models]
    weights = [1 / rank**ZIPF_EXPONENT for rank in range(1, len(names) + 1)]
    rate_per_s = RATE_PER_BACKEND_PER_S * backends
    jobs: list[tuple[float, Job]] = []
    at_s = generator.expovariate(rate_per_s)
    while at_s < seconds:
        (name,) = generator.choices(names, weights)
        jobs.append((at_s, Job(len(jobs), name, "inference", PROMPT_TOKENS, OUTPUT_TOKENS)))
        at_s += generator.expovariate(rate_per_s)
    return jobs


def simulate(
    setup: Setup, jobs: Sequence[tuple[float, Job]], backends: int, route: Route, seconds: float
) -> list[Track]:
    """Simulate a fleet that serves the jobs until ``seconds``; one track per backend."""
    recorders = [_Recorder(setup) for _ in range(backends)]
    for at_s, job in jobs:
        recorders[route(job.id, job.model)].submit(at_s, job)
    return [recorder.end(seconds) for recorder in recorders]


class _Recorder:
    """One backend and its track."""

    def __init__(self, setup: Setup) -> None:
        self._server = GpuServer(setup)
        self._track = Track()
        lane_mb = lane_size_mb(setup)
        self._lanes = {model.name: model.weights_mb // lane_mb for model in setup.models}
        self._free = list(range(setup.gpu.memory_mb // lane_mb))
        self._resident: dict[str, ResidencySpan] = {}
        self._unserved_s: dict[int, float] = {}

    def submit(self, at_s: float, job: Job) -> None:
        """Advance to ``at_s`` and submit the job."""
        self._run_to(at_s)
        self._unserved_s[job.id] = at_s
        self._server.submit(at_s, job)
        self._record_events(at_s)

    def end(self, at_s: float) -> Track:
        """Advance to ``at_s`` and return the track; requests still unserved have waited until then."""
        self._run_to(at_s)
        self._track.waits_s += [at_s - since_s for since_s in self._unserved_s.values()]
        return self._track

    def _run_to(self, at_s: float) -> None:
        while (next_s := self._server.next_event_s()) is not None and next_s <= at_s:
            self._record_events(next_s)

    def _record_events(self, now_s: float) -> None:
        for event in self._server.advance(now_s):
            match event:
                case Loading():
                    span = ResidencySpan(event.model, event.at_s, take_lanes(self._free, self._lanes[event.model]))
                    self._resident[event.model] = span
                    self._track.spans.append(span)
                case Loaded():
                    self._resident[event.model].ready_s = event.at_s
                case Evicted():
                    span = self._resident.pop(event.model)
                    span.evicted_s = event.at_s
                    self._free += span.lanes
                case Started():
                    del self._unserved_s[event.job_id]
                    self._track.waits_s.append(event.queue_wait_s)
                    self._track.warm += not event.cold
                case _:
                    continue  # not shown in the picture
        waiting = self._server.state().queue_depth
        if waiting != self._track.waiting[-1][1]:
            self._track.waiting.append((now_s, waiting))


def lane_size_mb(setup: Setup) -> int:
    """Memory per lane: the size of the smallest model."""
    return min(model.weights_mb for model in setup.models)


def take_lanes(free: list[int], count: int) -> tuple[int, ...]:
    """Remove ``count`` lanes from ``free`` and return them: the lowest adjacent ones, else the lowest."""
    free.sort()
    for first in range(len(free) - count + 1):
        lanes = free[first : first + count]
        if lanes[-1] - lanes[0] == count - 1:
            break
    else:
        lanes = free[:count]
    for lane in lanes:
        free.remove(lane)
    return tuple(lanes)


def round_robin(backends: int) -> Route:
    """Round robin over the backends."""
    return lambda number, model: number % backends


def affinity(backends: int) -> Route:
    """Model affinity by rendezvous hashing: a model's backend is the one with the highest hash."""

    def score(backend: int, model: str) -> bytes:
        return blake2b(f"gpu-{backend}:{model}".encode(), digest_size=8).digest()

    return lambda number, model: max(range(backends), key=lambda backend: score(backend, model))
