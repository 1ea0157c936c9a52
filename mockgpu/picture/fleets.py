"""The fleets behind ``mockgpu.picture.drawing``: a seeded load over more models than fit, in virtual time.

The same load goes through two fleets. One is asked in turn; in the other every model has a backend of its own.
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
LOAD_SHARE = 0.2
"""Load times against the catalogue's, which are of a disk: here the page cache has the weights."""

Route = Callable[[int, str], int]
"""From the number of a request and its model to the number of a backend."""


@dataclass(slots=True)
class ResidencySpan:
    """One model's time in memory, in seconds; ``ready_s`` and ``evicted_s`` are None where the picture ends first.

    ``lanes``: which slices of the memory it takes in the picture.
    """

    model: str
    loading_s: float
    lanes: tuple[int, ...]
    ready_s: float | None = None
    evicted_s: float | None = None


@dataclass(slots=True)
class Track:
    """What happened at one backend. ``waiting``: how many wait from when on; ``waits_s``: one for each request."""

    stays: list[ResidencySpan] = field(default_factory=list)
    waiting: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    waits_s: list[float] = field(default_factory=list)
    warm: int = 0


def fleet_setup(backends: int) -> Setup:
    """A backend of the picture and its models, named by rank, the most wanted first; every third one is in bf16."""
    kinds = [MODELS["llama-8b"], MODELS["llama-8b-fp8"], MODELS["llama-8b-fp8"]]
    models = tuple(
        replace(kind, name=str(rank), load_s=kind.load_s * LOAD_SHARE)
        for rank, kind in zip(range(1, MODELS_PER_BACKEND * backends + 1), cycle(kinds), strict=False)
    )
    return Setup(replace(GPUS["h100-80gb"], kv_share=0.0), models[0], models)


def arrivals(setup: Setup, backends: int, seconds: float, seed: int) -> list[tuple[float, Job]]:
    """Poisson arrivals at the fleet, for models that are wanted by Zipf's law."""
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


def play(setup: Setup, jobs: Sequence[tuple[float, Job]], backends: int, route: Route, seconds: float) -> list[Track]:
    """Let a fleet serve these jobs until the picture ends."""
    recorders = [_Recorder(setup) for _ in range(backends)]
    for at_s, job in jobs:
        recorders[route(job.id, job.model)].submit(at_s, job)
    return [recorder.end(seconds) for recorder in recorders]


class _Recorder:
    """One backend, and what the picture shows of it."""

    def __init__(self, setup: Setup) -> None:
        self._server = GpuServer(setup)
        self._track = Track()
        lane_mb = lane_size_mb(setup)
        self._lanes = {model.name: model.weights_mb // lane_mb for model in setup.models}
        self._free = list(range(setup.gpu.memory_mb // lane_mb))
        self._resident: dict[str, ResidencySpan] = {}
        self._unserved_s: dict[int, float] = {}

    def submit(self, at_s: float, job: Job) -> None:
        """Let time pass until then, and submit the job."""
        self._run_to(at_s)
        self._unserved_s[job.id] = at_s
        self._server.submit(at_s, job)
        self._note(at_s)

    def end(self, at_s: float) -> Track:
        """Let time pass until then; who is not served yet has waited so long."""
        self._run_to(at_s)
        self._track.waits_s += [at_s - since_s for since_s in self._unserved_s.values()]
        return self._track

    def _run_to(self, at_s: float) -> None:
        while (next_s := self._server.next_event_s()) is not None and next_s <= at_s:
            self._note(next_s)

    def _note(self, now_s: float) -> None:
        for event in self._server.advance(now_s):
            match event:
                case Loading():
                    stay = ResidencySpan(event.model, event.at_s, take(self._free, self._lanes[event.model]))
                    self._resident[event.model] = stay
                    self._track.stays.append(stay)
                case Loaded():
                    self._resident[event.model].ready_s = event.at_s
                case Evicted():
                    stay = self._resident.pop(event.model)
                    stay.evicted_s = event.at_s
                    self._free += stay.lanes
                case Started():
                    del self._unserved_s[event.job_id]
                    self._track.waits_s.append(event.queue_wait_s)
                    self._track.warm += not event.cold
                case _:
                    continue  # the rest is not in the picture
        waiting = self._server.state().queue_depth
        if waiting != self._track.waiting[-1][1]:
            self._track.waiting.append((now_s, waiting))


def lane_size_mb(setup: Setup) -> int:
    """The slice of memory that one lane stands for: the smallest model."""
    return min(model.weights_mb for model in setup.models)


def take(free: list[int], count: int) -> tuple[int, ...]:
    """Take so many of the free lanes, side by side if there is room for that; the lowest ones."""
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


def in_turn(backends: int) -> Route:
    """Requests go to one backend after the other, whatever they ask for."""
    return lambda number, model: number % backends


def by_model(backends: int) -> Route:
    """Requests for a model always go to the same backend: the one with the highest hash (rendezvous hashing)."""

    def score(backend: int, model: str) -> bytes:
        return blake2b(f"gpu-{backend}:{model}".encode(), digest_size=8).digest()

    return lambda number, model: max(range(backends), key=lambda backend: score(backend, model))
