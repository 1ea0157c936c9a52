"""What is in a bounded space, who uses it, and what is on its way into it: models in memory, adapters in slots.

Loads start in the order in which they were asked for, at most ``loads_at_once`` at a time, and the head of that
queue blocks the ones behind it. A load that does not fit evicts what is idle, least recently used first, and
only if that makes it fit; else it waits. Idle is what no job runs on or waits for. What is pinned is never
evicted, nor is what takes no space: that would make no room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mockgpu.gpu.scheduler_task import CallAt, Resident, SchedulerTask


@dataclass(frozen=True, slots=True)
class ResidencyHooks:
    """Whom a residency tells, each with the time.

    ``loaded``: it is in, and the tasks that waited for it count as its users. ``evicted``: its space is free.
    ``given_up``: what is pinned leaves no room for its load, and these tasks waited in vain.
    """

    loading: Callable[[float, str], None]
    loaded: Callable[[float, Resident, list[SchedulerTask]], None]
    evicted: Callable[[float, str], None]
    given_up: Callable[[float, str, list[SchedulerTask]], None]


class ResidentSet:
    """A space of ``space`` units with what is in it by name. ``measure`` gives size and load time of a name."""

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
        self.paused = False  # no load begins
        self._loads_at_once = loads_at_once
        self._measure = measure
        self._call_at = call_at
        self._hooks = hooks
        self._idle: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self._wanted: OrderedDict[str, None] = OrderedDict()  # the load queue
        self._parked: dict[str, dict[int, SchedulerTask]] = {}  # of all wanted or loading: the tasks that wait for it
        self._asked: set[str] = set()  # loads that go on although nobody waits
        self._leaving: set[str] = set()  # to be evicted once they are idle

    # -- jobs ------------------------------------------------------------------------------------------------

    def take(self, resident: Resident) -> None:
        """Count one more user."""
        if resident.users == 0 and resident.name in self._idle:
            del self._idle[resident.name]
            self.idle_size -= resident.size
        resident.users += 1

    def release(self, at_s: float, resident: Resident) -> None:
        """Count one user less."""
        resident.users -= 1
        if resident.users == 0:
            self._let_idle(at_s, resident)
            self.start_loads(at_s)

    def park(self, at_s: float, name: str, task: SchedulerTask) -> None:
        """Let a task wait for one that is not in, and have that loaded."""
        self._want(name)[task.job.id] = task
        self.start_loads(at_s)

    def unpark(self, at_s: float, name: str, task: SchedulerTask) -> None:
        """Let a task wait no longer; does nothing if it did not.

        A load under way goes on without tasks; one that has not begun is dropped.
        """
        parked = self._parked.get(name)
        if parked is None or parked.pop(task.job.id, None) is None:
            return
        if not parked and name in self._wanted and name not in self._asked:
            self._drop_wish(name)
            self.start_loads(at_s)  # the head of the load queue may have been the one that blocked it

    @property
    def waiting(self) -> int:
        """Tasks that wait for a load."""
        return sum(map(len, self._parked.values()))

    # -- management ------------------------------------------------------------------------------------------

    @property
    def coming(self) -> Collection[str]:
        """Names of those that are being loaded or wait for that."""
        return self._parked.keys()

    def can_ever_fit(self, name: str) -> bool:
        """Whether all that is not pinned can make room for it."""
        others = sum(self._measure(pinned)[0] for pinned in self.pinned if pinned != name and self._is_here(pinned))
        return others + self._measure(name)[0] <= self.space

    def load(self, at_s: float, name: str) -> None:
        """Load one without a task; does nothing if it is in or coming."""
        self._leaving.discard(name)
        if name not in self.resident:
            self._want(name)
            if name in self._wanted:
                self._asked.add(name)
            self.start_loads(at_s)

    def unload(self, at_s: float, name: str) -> None:
        """Evict one as soon as no task uses it or waits for it, pinned or not."""
        self._asked.discard(name)
        if name in self._wanted and not self._parked[name]:
            self._drop_wish(name)
        if self._is_here(name) or name in self._wanted:
            self._leaving.add(name)
            resident = self.resident.get(name)
            if resident is not None and resident.users == 0:
                self._evict(at_s, resident)
        self.start_loads(at_s)

    def pin(self, at_s: float, name: str, pinned: bool) -> None:
        """Keep one from eviction, whether it is in or not, or no longer."""
        (self.pinned.add if pinned else self.pinned.discard)(name)
        resident = self.resident.get(name)
        if resident is not None and resident.users == 0:
            self._forget_idle(resident)
            self._let_idle(at_s, resident)
        self._give_up_hopeless(at_s)
        self.start_loads(at_s)

    def evict_idle(self, at_s: float) -> None:
        """Evict all that nobody uses and that is not pinned."""
        for resident in list(self.resident.values()):
            if resident.users == 0 and resident.name not in self.pinned:
                self._evict(at_s, resident)
        self.start_loads(at_s)

    def start_loads(self, at_s: float) -> None:
        """Begin the loads at the head of the queue that may begin."""
        while self._wanted and len(self.loading) < self._loads_at_once and not self.paused:
            name = next(iter(self._wanted))
            size, load_s = self._measure(name)
            if self.used + size - self.space > self.idle_size:
                return
            while self.used + size > self.space:
                self._evict(at_s, next(iter(self._idle.values())))
            del self._wanted[name]
            self._asked.discard(name)
            self.loading.add(name)
            self.used += size
            self._hooks.loading(at_s, name)
            self._call_at(at_s + load_s, self._finish_load, name)
            if name in self.pinned:
                self._give_up_hopeless(at_s)

    # -- inside ----------------------------------------------------------------------------------------------

    def _is_here(self, name: str) -> bool:
        return name in self.resident or name in self.loading

    def _want(self, name: str) -> dict[int, SchedulerTask]:
        parked = self._parked.get(name)
        if parked is None:
            parked = self._parked[name] = {}
            self._wanted[name] = None
        return parked

    def _drop_wish(self, name: str) -> None:
        del self._parked[name]
        del self._wanted[name]
        self._asked.discard(name)
        self._leaving.discard(name)

    def _give_up_hopeless(self, at_s: float) -> None:
        for name in [wish for wish in self._wanted if not self.can_ever_fit(wish)]:
            parked = list(self._parked[name].values())
            self._drop_wish(name)
            self._hooks.given_up(at_s, name, parked)

    def _let_idle(self, at_s: float, resident: Resident) -> None:
        if resident.name in self._leaving:
            self._evict(at_s, resident)
        elif resident.size > 0 and resident.name not in self.pinned:
            self._idle[resident.name] = resident
            self.idle_size += resident.size

    def _forget_idle(self, resident: Resident) -> None:
        if self._idle.pop(resident.name, None) is not None:
            self.idle_size -= resident.size

    def _evict(self, at_s: float, resident: Resident) -> None:
        self._forget_idle(resident)
        del self.resident[resident.name]
        self._leaving.discard(resident.name)
        self.used -= resident.size
        self._hooks.evicted(at_s, resident.name)

    def _finish_load(self, at_s: float, name: str) -> None:
        self.loading.discard(name)
        parked = list(self._parked.pop(name).values())
        self.resident[name] = resident = Resident(name, self._measure(name)[0], len(parked))
        self._hooks.loaded(at_s, resident, parked)
        if resident.users == 0 and self.resident.get(name) is resident:
            self._let_idle(at_s, resident)
        self.start_loads(at_s)
