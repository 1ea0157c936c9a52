"""LoRA adapters: the registered ones, and those loaded into a slot on the GPU.

A job whose adapter is registered but not loaded waits for the load, which evicts the least recently used idle
adapter if there is no free slot. Other jobs overtake it, as with models. When a base model is evicted, its adapters
are unloaded.
"""

from __future__ import annotations

from collections.abc import Callable

from mockgpu.gpu.events import AdapterLoaded, AdapterUnloaded, Event
from mockgpu.gpu.residency import ResidencyHooks, ResidentSet
from mockgpu.gpu.scheduler_task import CallAt, Resident, SchedulerTask, SteppedTask
from mockgpu.gpu.setup import Gpu


class Adapters:
    """All adapters of one GPU. ``has_base``: whether a model is resident; ``ready`` receives tasks that may run."""

    def __init__(
        self,
        gpu: Gpu,
        call_at: CallAt,
        emit: Callable[[Event], None],
        has_base: Callable[[str], bool],
        ready: Callable[[float, list[SchedulerTask]], None],
    ) -> None:
        self.known: dict[str, str] = {}  # adapter to base
        self._bases: dict[str, str] = {}  # the same, plus unregistered ones that are still loaded or used
        self._jobs: dict[str, int] = {}  # jobs in the server by adapter, including those that wait for its base
        self._adapter_mb = gpu.adapter_mb
        self._emit = emit
        self._has_base = has_base
        self._ready = ready
        hooks = ResidencyHooks(lambda at_s, name: None, self._loaded, self._evicted, lambda at_s, name, tasks: None)
        self.slots = ResidentSet(gpu.max_adapters, 1, lambda name: (1, gpu.adapter_load_s), call_at, hooks)

    @property
    def memory_mb(self) -> int:
        """Megabytes that the loaded adapters take."""
        return self.slots.used * self._adapter_mb

    def load(self, at_s: float, name: str, base: str) -> None:
        """Register an adapter, and load it if its base is resident. ValueError without slots, or for another base."""
        if self.slots.space == 0:
            raise ValueError(f"adapter {name!r}: max_adapters is 0, expected a GPU with slots for adapters")
        if self._bases.get(name, base) != base:
            raise ValueError(f"adapter {name!r} belongs to {self._bases[name]!r}, expected that base, got {base!r}")
        self.known[name] = self._bases[name] = base
        if self._has_base(base):
            self.slots.load(at_s, name)

    def unload(self, at_s: float, name: str) -> None:
        """Unregister an adapter; jobs that already use it are served. Does nothing if it is unknown."""
        if self.known.pop(name, None) is not None:
            self._discard_unused(at_s, name)

    def base_evicted(self, at_s: float, base: str) -> None:
        """Unload the adapters of a model that was evicted; no job uses it."""
        for name in [name for name, owner in self._bases.items() if owner == base]:
            self.slots.unload(at_s, name)

    def add_job(self, name: str) -> None:
        """Count a new job for a registered adapter."""
        self._jobs[name] = self._jobs.get(name, 0) + 1

    def acquire(self, at_s: float, task: SteppedTask) -> bool:
        """Give a task whose base is resident its adapter; False if it waits for a load and becomes ``ready`` later."""
        name = task.job.adapter
        resident = self.slots.resident.get(name)
        if resident is None:
            self.slots.park(at_s, name, task)
            return False
        self.slots.acquire(resident)
        task.adapter = resident
        return True

    def remove_job(self, at_s: float, task: SteppedTask) -> None:
        """Release the adapter of a task that left the server, or stop waiting for it."""
        name = task.job.adapter
        self._jobs[name] -= 1
        if self._jobs[name] == 0:
            del self._jobs[name]
        if task.adapter is not None:
            self.slots.release(at_s, task.adapter)
            task.adapter = None
        else:
            self.slots.unpark(at_s, name, task)
        self._discard_unused(at_s, name)

    def _discard_unused(self, at_s: float, name: str) -> None:
        """Unload an adapter that is neither registered nor used, and forget its base."""
        if name not in self.known and name not in self._jobs:
            self.slots.unload(at_s, name)
            if name not in self.slots.resident and name not in self.slots.pending:
                self._bases.pop(name, None)

    def _loaded(self, at_s: float, resident: Resident, tasks: list[SchedulerTask]) -> None:
        name = resident.name
        base = self._bases[name]
        self._emit(AdapterLoaded(at_s, name, base))
        for task in tasks:
            assert isinstance(task, SteppedTask)
            task.adapter = resident
        if not tasks and not self._has_base(base):
            self.slots.unload(at_s, name)
        self._ready(at_s, tasks)

    def _evicted(self, at_s: float, name: str) -> None:
        self._emit(AdapterUnloaded(at_s, name, self._bases[name]))
        if name not in self.known and name not in self._jobs:
            del self._bases[name]
