"""Items resident in a bounded space, their users and the load queue: models in memory, adapters in slots.

Loads start in the order of request, at most ``loads_at_once`` at a time, and the head of the queue blocks the rest.
A load that does not fit evicts idle items, least recently used first, if that makes it fit; else it waits. An item
is idle if no job runs on it or waits for it. Pinned items are never evicted to make room, nor are items of size 0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mockgpu.gpu.scheduler_task import CallAt, Resident, SchedulerTask


@dataclass(frozen=True, slots=True)
class ResidencyHooks:
    """Callbacks of a resident set, each with the time of the event.

    ``loading``: a load began. ``loaded``: the item is resident; the tasks that waited for it are its users.
    ``evicted``: its space is free. ``load_failed``: pinned items leave no room for it; these tasks waited for it.
    """

    loading: Callable[[float, str], None]
    loaded: Callable[[float, Resident, list[SchedulerTask]], None]
    evicted: Callable[[float, str], None]
    load_failed: Callable[[float, str, list[SchedulerTask]], None]


class ResidentSet:
    """A space of ``space`` units and its items by name. ``measure`` returns the size and load time of a name."""

    def __init__(
        self,
        space: int,
        loads_at_once: int,
        measure: Callable[[str], tuple[int, float]],
        call_at: CallAt,
        hooks: ResidencyHooks,
    ) -> None:
        self.space = space
        self.used = 0
        self.idle_size = 0
        self.resident: dict[str, Resident] = {}
        self.loading: set[str] = set()
        self.pinned: set[str] = set()
        self.paused = False  # if true no load starts
        self._loads_at_once = loads_at_once
        self._measure = measure
        self._call_at = call_at
        self._hooks = hooks
        self._idle: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self._load_queue: OrderedDict[str, None] = OrderedDict()
        self._waiting_tasks: dict[str, dict[int, SchedulerTask]] = {}  # keys: queued and loading items
        self._explicit: set[str] = set()  # queued loads that stay queued even if no task waits
        self._unload_when_idle: set[str] = set()

    # -- jobs ------------------------------------------------------------------------------------------------

    def acquire(self, resident: Resident) -> None:
        """Add a user."""
        if resident.users == 0 and resident.name in self._idle:
            del self._idle[resident.name]
            self.idle_size -= resident.size
        resident.users += 1

    def release(self, at_s: float, resident: Resident) -> None:
        """Remove a user."""
        resident.users -= 1
        if resident.users == 0:
            self._on_idle(at_s, resident)
            self.start_loads(at_s)

    def park(self, at_s: float, name: str, task: SchedulerTask) -> None:
        """Let a task wait for an item that is not resident, and request its load."""
        self._request_load(name)[task.job.id] = task
        self.start_loads(at_s)

    def unpark(self, at_s: float, name: str, task: SchedulerTask) -> None:
        """Remove a waiting task; does nothing if it was not waiting.

        A load in progress continues without tasks; a queued one is dropped.
        """
        tasks = self._waiting_tasks.get(name)
        if tasks is None or tasks.pop(task.job.id, None) is None:
            return
        if not tasks and name in self._load_queue and name not in self._explicit:
            self._drop_queued(name)
            self.start_loads(at_s)  # it may have blocked the load queue as its head

    @property
    def waiting(self) -> int:
        """Number of tasks that wait for a load."""
        return sum(map(len, self._waiting_tasks.values()))

    # -- management ------------------------------------------------------------------------------------------

    @property
    def pending(self) -> Collection[str]:
        """Names of the items that are loading or queued."""
        return self._waiting_tasks.keys()

    def can_ever_fit(self, name: str) -> bool:
        """Whether the item fits once all unpinned items are evicted."""
        others = sum(self._measure(pinned)[0] for pinned in self.pinned if pinned != name and self._is_present(pinned))
        return others + self._measure(name)[0] <= self.space

    def load(self, at_s: float, name: str) -> None:
        """Load an item without a task; does nothing if it is resident, loading or queued."""
        self._unload_when_idle.discard(name)
        if name not in self.resident:
            self._request_load(name)
            if name in self._load_queue:
                self._explicit.add(name)
            self.start_loads(at_s)

    def unload(self, at_s: float, name: str) -> None:
        """Evict an item, pinned or not, as soon as no task uses it or waits for it."""
        self._explicit.discard(name)
        if name in self._load_queue and not self._waiting_tasks[name]:
            self._drop_queued(name)
        if self._is_present(name) or name in self._load_queue:
            self._unload_when_idle.add(name)
            resident = self.resident.get(name)
            if resident is not None and resident.users == 0:
                self._evict(at_s, resident)
        self.start_loads(at_s)

    def pin(self, at_s: float, name: str, pinned: bool) -> None:
        """Pin or unpin an item, resident or not."""
        (self.pinned.add if pinned else self.pinned.discard)(name)
        resident = self.resident.get(name)
        if resident is not None and resident.users == 0:
            self._remove_idle(resident)
            self._on_idle(at_s, resident)
        self._fail_impossible_loads(at_s)
        self.start_loads(at_s)

    def evict_idle(self, at_s: float) -> None:
        """Evict all idle items that are not pinned."""
        for resident in list(self.resident.values()):
            if resident.users == 0 and resident.name not in self.pinned:
                self._evict(at_s, resident)
        self.start_loads(at_s)

    def start_loads(self, at_s: float) -> None:
        """Start loads from the head of the queue while they fit."""
        while self._load_queue and len(self.loading) < self._loads_at_once and not self.paused:
            name = next(iter(self._load_queue))
            size, load_s = self._measure(name)
            if self.used + size - self.space > self.idle_size:
                return
            while self.used + size > self.space:
                self._evict(at_s, next(iter(self._idle.values())))
            del self._load_queue[name]
            self._explicit.discard(name)
            self.loading.add(name)
            self.used += size
            self._hooks.loading(at_s, name)
            self._call_at(at_s + load_s, self._finish_load, name)
            if name in self.pinned:
                self._fail_impossible_loads(at_s)

    # -- internals -------------------------------------------------------------------------------------------

    def _is_present(self, name: str) -> bool:
        return name in self.resident or name in self.loading

    def _request_load(self, name: str) -> dict[int, SchedulerTask]:
        tasks = self._waiting_tasks.get(name)
        if tasks is None:
            tasks = self._waiting_tasks[name] = {}
            self._load_queue[name] = None
        return tasks

    def _drop_queued(self, name: str) -> None:
        del self._waiting_tasks[name]
        del self._load_queue[name]
        self._explicit.discard(name)
        self._unload_when_idle.discard(name)

    def _fail_impossible_loads(self, at_s: float) -> None:
        for name in [queued for queued in self._load_queue if not self.can_ever_fit(queued)]:
            tasks = list(self._waiting_tasks[name].values())
            self._drop_queued(name)
            self._hooks.load_failed(at_s, name, tasks)

    def _on_idle(self, at_s: float, resident: Resident) -> None:
        if resident.name in self._unload_when_idle:
            self._evict(at_s, resident)
        elif resident.size > 0 and resident.name not in self.pinned:
            self._idle[resident.name] = resident
            self.idle_size += resident.size

    def _remove_idle(self, resident: Resident) -> None:
        if self._idle.pop(resident.name, None) is not None:
            self.idle_size -= resident.size

    def _evict(self, at_s: float, resident: Resident) -> None:
        self._remove_idle(resident)
        del self.resident[resident.name]
        self._unload_when_idle.discard(resident.name)
        self.used -= resident.size
        self._hooks.evicted(at_s, resident.name)

    def _finish_load(self, at_s: float, name: str) -> None:
        self.loading.discard(name)
        tasks = list(self._waiting_tasks.pop(name).values())
        self.resident[name] = resident = Resident(name, self._measure(name)[0], len(tasks))
        self._hooks.loaded(at_s, resident, tasks)
        if resident.users == 0 and self.resident.get(name) is resident:
            self._on_idle(at_s, resident)
        self.start_loads(at_s)
