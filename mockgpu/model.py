"""One GPU model server without clock, socket or chance: time is an argument.

The same class runs behind a socket (``mockgpu.server``) and in a simulator. A caller submits and cancels jobs
and collects events::

    server.submit(now_s, job)
    wake_s = server.next_event_s()      # ask again after every call
    for event in server.advance(wake_s): ...

Rules
-----
- At most ``max_running`` jobs run at once, the rest wait in order of arrival. A job is refused with
  ``queue_full`` when ``max_running + queue_limit`` jobs are inside already, running or waiting.
- An inference job needs its model in memory. A missing model joins the load queue; loads start in that order,
  at most ``loads_at_once`` at a time, and the head of that queue blocks the ones behind it.
- A load that does not fit evicts idle models, least recently used first, and only if that makes it fit; else
  it waits. A model is idle when no job runs on it or waits for it. So a job whose model was resident when
  it came never finds it gone.
- Jobs whose model is resident pass jobs that wait for a load. So a model under constant load can keep another
  one out for as long as that load lasts.
- A model larger than the memory is refused with ``out_of_memory``.
- An update needs no model, takes a running slot for ``update_s`` and yields no first token.
- Service of an inference is prompt_tokens / prefill_tokens_per_s + output_tokens * decode_step_s; the first
  token comes after prefill and one step. A job's ``slowness`` multiplies all three, and ``update_s``.
- What happens at the same instant happens in the order in which it was scheduled, and before a call made at
  that instant.

Every operation costs O(log n) in the jobs inside. Cancelled jobs leave their entries behind in the heaps,
where they are skipped when their turn comes.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush, heapreplace

from mockgpu.catalogue import Model, Setup
from mockgpu.events import Event, Evicted, Finished, FirstToken, Job, Loaded, Loading, Refused, Started, State

__all__ = [
    "Event",
    "Evicted",
    "Finished",
    "FirstToken",
    "GpuServer",
    "Job",
    "Loaded",
    "Loading",
    "Refused",
    "Started",
    "State",
]


class _Resident:
    """A model in memory, and how many jobs run on it or wait for a slot to do so."""

    __slots__ = ("name", "users", "weights_mb")

    def __init__(self, name: str, weights_mb: int, users: int) -> None:
        self.name = name
        self.weights_mb = weights_mb
        self.users = users


_WAITING, _PREFILL, _DECODE, _GONE = range(4)


class _Task:
    """A job inside the server. ``resident`` is None while it waits for a load, and if it needs no model."""

    __slots__ = ("cold", "finish_s", "job", "order", "resident", "spec", "stage", "submitted_s")

    def __init__(self, job: Job, order: int, submitted_s: float, spec: Model | None) -> None:
        self.job = job
        self.order = order
        self.submitted_s = submitted_s
        self.spec = spec
        self.cold = False
        self.resident: _Resident | None = None
        self.stage = _WAITING
        self.finish_s = 0.0


class GpuServer:
    """One GPU server; see the rules at the head of this module.

    Time must not run backwards: a call with an earlier ``now_s`` than the one before raises ValueError.
    """

    def __init__(self, setup: Setup) -> None:
        self._gpu = setup.gpu
        self._default = setup.default_model
        self._specs = {model.name: model for model in setup.models}
        self._inside_limit = None if setup.gpu.queue_limit is None else setup.gpu.max_running + setup.gpu.queue_limit
        self._now_s = float("-inf")
        self._events: list[Event] = []
        self._order = 0  # grows with every heap entry: ties go first come, first served
        self._tasks: dict[int, _Task] = {}
        self._ready: list[tuple[int, _Task]] = []  # heap of tasks that wait for a slot only
        # Heap of what happens next: a task that enters its next stage, or the name of a model being loaded.
        self._timers: list[tuple[float, int, _Task | str]] = []
        self._running = 0
        self._pending_tokens = 0
        self._memory_used_mb = 0
        self._memory_idle_mb = 0
        self._resident: dict[str, _Resident] = {}
        self._idle: OrderedDict[str, _Resident] = OrderedDict()  # least recently used first
        self._wanted: OrderedDict[str, None] = OrderedDict()  # the load queue
        self._loading: set[str] = set()
        self._parked: dict[str, dict[int, _Task]] = {}  # by model: tasks that wait for its load

    # -- what a caller does ----------------------------------------------------------------------------------

    def submit(self, now_s: float, job: Job) -> None:
        """Take in a job, or refuse it; either way events tell. A job id that is inside raises ValueError."""
        self._run_to(now_s)
        if job.id in self._tasks:
            raise ValueError(f"job id {job.id} is inside already, expected a new one")
        spec = None
        if job.kind == "inference":
            spec = self._specs.get(job.model, self._default)
            if spec.weights_mb > self._gpu.memory_mb:
                self._events.append(Refused(now_s, job.id, "out_of_memory"))
                return
        if self._inside_limit is not None and len(self._tasks) >= self._inside_limit:
            self._events.append(Refused(now_s, job.id, "queue_full"))
            return
        self._order = order = self._order + 1
        task = _Task(job, order, now_s, spec)
        self._tasks[job.id] = task
        self._pending_tokens += job.prompt_tokens + job.output_tokens
        if spec is not None and not spec.always_resident:
            resident = self._resident.get(job.model)
            if resident is None:
                self._park(now_s, task)
                return
            self._take(resident)
            task.resident = resident
        if self._running < self._gpu.max_running:
            self._start(now_s, task)  # a free slot means that nobody waits for one
        else:
            heappush(self._ready, (order, task))

    def cancel(self, now_s: float, job_id: int) -> None:
        """Let a job go, with no event; its slot, queue place and hold on a model are free at once.

        Does nothing for a job that has ended or was never there.
        """
        self._run_to(now_s)
        task = self._tasks.get(job_id)
        if task is None:
            return
        was_running = task.stage != _WAITING
        self._remove(task)
        name = task.job.model
        parked = self._parked.get(name)
        if parked is not None and parked.pop(job_id, None) is not None:
            # A load under way goes on without jobs; one that has not begun is dropped.
            if not parked and name not in self._loading:
                del self._parked[name]
                del self._wanted[name]
                self._start_loads(now_s)  # the head of the load queue may have been the one that blocked it
            return
        self._settle(now_s, task, was_running)

    def next_event_s(self) -> float | None:
        """When to call ``advance`` next, in seconds; None if nothing is to come.

        Events that wait there already make it the time of the last call, that is: now.
        """
        if self._events:
            return self._now_s
        timers = self._timers
        while timers:
            at_s, _, subject = timers[0]
            if isinstance(subject, str) or subject.stage != _GONE:
                return at_s
            heappop(timers)
        return None

    def advance(self, now_s: float) -> list[Event]:
        """Everything that happened up to ``now_s``, since the last time, each event with its exact time."""
        self._run_to(now_s)
        events = self._events
        self._events = []
        return events

    def state(self) -> State:
        """The state as of the last call. A server without I/O is always ready; its shell may not be."""
        return State(
            ready=True,
            memory_total_mb=self._gpu.memory_mb,
            memory_used_mb=self._memory_used_mb,
            memory_evictable_mb=self._memory_idle_mb,
            queue_depth=len(self._tasks) - self._running,
            running=self._running,
            pending_tokens=self._pending_tokens,
            models=tuple(self._resident),
        )

    # -- the passing of time ---------------------------------------------------------------------------------

    def _run_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time ran backwards: {now_s} after {self._now_s}")
        self._now_s = now_s
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            at_s, _, subject = timers[0]
            if isinstance(subject, str):
                heappop(timers)
                self._finish_load(at_s, subject)
            elif subject.stage == _PREFILL:
                self._events.append(FirstToken(at_s, subject.job.id))
                subject.stage = _DECODE
                self._order = order = self._order + 1
                heapreplace(timers, (subject.finish_s, order, subject))
            else:
                heappop(timers)
                if subject.stage == _DECODE:
                    self._events.append(Finished(at_s, subject.job.id))
                    self._remove(subject)
                    self._settle(at_s, subject, True)

    def _start(self, at_s: float, task: _Task) -> None:
        """Give a task a running slot."""
        job = task.job
        self._running += 1
        self._events.append(Started(at_s, job.id, task.cold, at_s - task.submitted_s))
        spec = task.spec
        if spec is None:
            wake_s = task.finish_s = at_s + self._gpu.update_s * job.slowness
            task.stage = _DECODE
        else:
            decode_step_s = spec.decode_step_s * job.slowness
            wake_s = at_s + job.prompt_tokens / spec.prefill_tokens_per_s * job.slowness
            task.finish_s = wake_s + job.output_tokens * decode_step_s
            if job.output_tokens > 0:
                wake_s += decode_step_s
                task.stage = _PREFILL
            else:
                task.stage = _DECODE
        self._order = order = self._order + 1
        heappush(self._timers, (wake_s, order, task))

    def _remove(self, task: _Task) -> None:
        """Forget a task, wherever it stands."""
        del self._tasks[task.job.id]
        self._pending_tokens -= task.job.prompt_tokens + task.job.output_tokens
        task.stage = _GONE

    def _settle(self, at_s: float, task: _Task, was_running: bool) -> None:
        """Hand on what a removed task held: its slot and its hold on a model."""
        if was_running:
            self._running -= 1
            self._fill_slots(at_s)
        resident = task.resident
        if resident is not None:
            resident.users -= 1
            if resident.users == 0:
                self._let_idle(resident)
                self._start_loads(at_s)

    def _fill_slots(self, at_s: float) -> None:
        ready = self._ready
        while ready and self._running < self._gpu.max_running:
            _, task = heappop(ready)
            if task.stage != _GONE:
                self._start(at_s, task)

    # -- memory ----------------------------------------------------------------------------------------------

    def _take(self, resident: _Resident) -> None:
        if resident.users == 0 and resident.weights_mb > 0:
            del self._idle[resident.name]
            self._memory_idle_mb -= resident.weights_mb
        resident.users += 1

    def _let_idle(self, resident: _Resident) -> None:
        if resident.weights_mb > 0:  # evicting what weighs nothing would make no room
            self._idle[resident.name] = resident
            self._memory_idle_mb += resident.weights_mb

    def _park(self, now_s: float, task: _Task) -> None:
        """Let a task wait for its model, and have the model loaded."""
        name = task.job.model
        task.cold = True
        parked = self._parked.get(name)
        if parked is None:
            parked = self._parked[name] = {}
            self._wanted[name] = None
        parked[task.job.id] = task
        self._start_loads(now_s)

    def _start_loads(self, at_s: float) -> None:
        total_mb = self._gpu.memory_mb
        while self._wanted and len(self._loading) < self._gpu.loads_at_once:
            name = next(iter(self._wanted))
            spec = self._specs.get(name, self._default)
            needed_mb = self._memory_used_mb + spec.weights_mb - total_mb
            if needed_mb > self._memory_idle_mb:
                return
            while self._memory_used_mb + spec.weights_mb > total_mb:
                self._evict(at_s)
            del self._wanted[name]
            self._loading.add(name)
            self._memory_used_mb += spec.weights_mb
            self._events.append(Loading(at_s, name))
            self._order = order = self._order + 1
            heappush(self._timers, (at_s + spec.load_s, order, name))

    def _evict(self, at_s: float) -> None:
        """Drop the least recently used idle model."""
        name, resident = self._idle.popitem(last=False)
        del self._resident[name]
        self._memory_idle_mb -= resident.weights_mb
        self._memory_used_mb -= resident.weights_mb
        self._events.append(Evicted(at_s, name))

    def _finish_load(self, at_s: float, name: str) -> None:
        self._loading.discard(name)
        spec = self._specs.get(name, self._default)
        parked = self._parked.pop(name, {})
        resident = _Resident(name, spec.weights_mb, len(parked))
        self._resident[name] = resident
        self._events.append(Loaded(at_s, name))
        for task in parked.values():
            task.resident = resident
            heappush(self._ready, (task.order, task))
        if not parked:
            self._let_idle(resident)
        self._fill_slots(at_s)
        self._start_loads(at_s)
