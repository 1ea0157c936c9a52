"""LoRA adapters: which are known, and which are in one of the slots on the GPU.

A job whose adapter is known but in no slot waits for its load, in which the least recently used idle one gives
way, and the others pass it: as with models. When a base model leaves the memory its adapters leave their slots.
"""

from __future__ import annotations

from collections.abc import Callable

from mockgpu.gpu.events import AdapterLoaded, AdapterUnloaded, Event
from mockgpu.gpu.residency import ResidencyHooks, ResidentSet
from mockgpu.gpu.scheduler_task import CallAt, Resident, SchedulerTask, SteppedTask
from mockgpu.gpu.setup import Gpu


class Adapters:
    """All adapters of one GPU. ``has_base`` says whether a model is resident, ``ready`` is given tasks to go on."""

    def __init__(
        self,
        gpu: Gpu,
        call_at: CallAt,
        emit: Callable[[Event], None],
        has_base: Callable[[str], bool],
        ready: Callable[[float, list[SchedulerTask]], None],
    ) -> None:
        self.known: dict[str, str] = {}  # adapter to base
        self._bases: dict[str, str] = {}  # the same, with those that are unknown but still in a slot or needed
        self._needed: dict[str, int] = {}  # by adapter: jobs inside, even those that still wait for its base
        self._adapter_mb = gpu.adapter_mb
        self._emit = emit
        self._has_base = has_base
        self._ready = ready
        hooks = ResidencyHooks(lambda at_s, name: None, self._loaded, self._evicted, lambda at_s, name, tasks: None)
        self.slots = ResidentSet(gpu.max_adapters, 1, lambda name: (1, gpu.adapter_load_s), call_at, hooks)

    @property
    def memory_mb(self) -> int:
        """What the adapters in slots take."""
        return self.slots.used * self._adapter_mb

    def load(self, at_s: float, name: str, base: str) -> None:
        """Make an adapter known and, if its base is resident, load it; raises ValueError."""
        if self.slots.space == 0:
            raise ValueError(f"adapter {name!r}: max_adapters is 0, expected a GPU with slots for adapters")
        if self._bases.get(name, base) != base:
            raise ValueError(f"adapter {name!r} belongs to {self._bases[name]!r}, expected that base, seen {base!r}")
        self.known[name] = self._bases[name] = base
        if self._has_base(base):
            self.slots.load(at_s, name)

    def unload(self, at_s: float, name: str) -> None:
        """Forget an adapter; those inside that need it are served. Does nothing if it is unknown."""
        if self.known.pop(name, None) is not None:
            self._tidy(at_s, name)

    def base_gone(self, at_s: float, base: str) -> None:
        """A model, which nobody uses, has left the memory."""
        for name in [name for name, owner in self._bases.items() if owner == base]:
            self.slots.unload(at_s, name)

    def need(self, name: str) -> None:
        """Count a task that has come for an adapter, which is known."""
        self._needed[name] = self._needed.get(name, 0) + 1

    def enter(self, at_s: float, task: SteppedTask) -> bool:
        """Have a task, whose base is there, use its adapter; False if it must wait and will be ``ready`` later."""
        name = task.job.adapter
        resident = self.slots.resident.get(name)
        if resident is None:
            self.slots.park(at_s, name, task)
            return False
        self.slots.take(resident)
        task.adapter = resident
        return True

    def leave(self, at_s: float, task: SteppedTask) -> None:
        """Count no longer a task that has gone."""
        name = task.job.adapter
        self._needed[name] -= 1
        if self._needed[name] == 0:
            del self._needed[name]
        if task.adapter is not None:
            self.slots.release(at_s, task.adapter)
            task.adapter = None
        else:
            self.slots.unpark(at_s, name, task)
        self._tidy(at_s, name)

    def _tidy(self, at_s: float, name: str) -> None:
        """Free the slot of an adapter that is neither known nor needed, and forget its base with that."""
        if name not in self.known and name not in self._needed:
            self.slots.unload(at_s, name)
            if name not in self.slots.resident and name not in self.slots.coming:
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
        if name not in self.known and name not in self._needed:
            del self._bases[name]
