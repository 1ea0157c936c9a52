"""Under any sequence of calls no job is lost or counted twice, and no event precedes its cause.

A state machine makes random calls to servers of several setups, and keeps its own books from its calls and the events
it received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from mockgpu.gpu.catalogue import Gpu, Model, Pools, Setup
from mockgpu.gpu.events import (
    AdapterLoaded,
    AdapterUnloaded,
    Event,
    Evicted,
    Finished,
    FirstToken,
    Job,
    Loaded,
    LoadFailed,
    Loading,
    Preempted,
    Refused,
    Resumed,
    Slept,
    Started,
    Woken,
)
from mockgpu.gpu.model import GpuServer
from mockgpu.gpu.scheduler_task import SchedulerTask, SteppedTask

MB = 1_000_000
MODELS = (
    Model("a", 300, 3.0, 10.0, 1.0, 0.1, MB // 4),
    Model("b", 500, 1.0, 10.0, 1.0, 0.0, MB // 2),
    Model("c", 250, 0.0, 10.0, 1.0),
    Model("d", 0, 2.0, 10.0, 0.0, 0.5, MB // 4, max_model_tokens=30),
    Model("whale", 5_000, 1.0, 10.0, 1.0),
)
FREE = Model("free", 0, 0.0, 10.0, 1.0, 0.25, MB // 4)
NAMES = ("a", "b", "c", "d", "whale", "free", "other")
ADAPTERS = {"x": "a", "y": "free", "z": "c"}

gpus = st.builds(
    Gpu,
    name=st.just("box"),
    memory_mb=st.just(800),
    max_running=st.integers(1, 5),
    queue_limit=st.sampled_from([None, None, 0, 4]),
    loads_at_once=st.integers(1, 2),
    update_s=st.just(1.5),
    kv_share=st.sampled_from([0.0, 0.0125, 0.02]),
    block_tokens=st.just(4),
    prefix_cache=st.booleans(),
    pools=st.sampled_from([None, None, Pools(1, 2, 0.5, 0.25), Pools(2, 1)]),
    max_adapters=st.just(1),
    adapter_mb=st.just(10),
    adapter_load_s=st.just(1.0),
    sleep_s=st.just((1.0, 0.5)),
    wake_s=st.just((0.5, 1.0)),
    refuse_asleep=st.booleans(),
)
Call = tuple[str, tuple[Any, ...]]
# Management calls, as a method name and its arguments after the time.
loads = st.tuples(st.sampled_from(["load", "load", "unload", "invalidate"]), st.sampled_from(NAMES))
pins = st.tuples(st.just("pin"), st.sampled_from(NAMES), st.booleans())
rests = st.sampled_from([("evict",), ("die",), ("sleep", 1), ("sleep", 2), ("wake",), ("wake",), ("wake",)])
adapters = st.sampled_from([("load_adapter", *pair) for pair in ADAPTERS.items()] + [("unload_adapter", "x")])


class Books:
    """The state of each job by the events so far, with the rules it must obey."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}  # jobs in the server
        self.running: set[int] = set()
        self.stages: dict[int, list[type]] = {}
        self.last_s = float("-inf")

    def submitted(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.stages[job.id] = []

    def cancelled(self, number: int) -> None:
        self.jobs.pop(number, None)
        self.running.discard(number)

    def take(self, event: Event, now_s: float) -> None:
        assert self.last_s <= event.at_s <= now_s
        self.last_s = event.at_s
        if isinstance(event, Loading | Loaded | Evicted | LoadFailed | AdapterLoaded | AdapterUnloaded | Slept | Woken):
            return
        number = event.job_id
        assert number in self.jobs, f"{event} of a job that is not in the server"
        before = self.stages[number]
        match event:
            case Started():
                assert before == []
                self.running.add(number)
            case FirstToken():
                assert number in self.running and FirstToken not in before
                assert self.jobs[number].kind == "inference" and self.jobs[number].output_tokens > 0
            case Preempted():
                assert number in self.running
                self.running.remove(number)
            case Resumed():
                assert before.count(Preempted) == before.count(Resumed) + 1
                self.running.add(number)
            case Finished():
                assert number in self.running
                job = self.jobs.pop(number)
                assert (FirstToken in before) == (job.kind == "inference" and job.output_tokens > 0)
                self.running.remove(number)
            case Refused():
                assert before == [] or event.reason == "engine_dead"
                self.running.discard(number)
                del self.jobs[number]
        before.append(type(event))


class Machine(RuleBasedStateMachine):
    """Advances the server at every rule; a second server gets the same calls without intermediate advances."""

    inside = Bundle("inside")

    @initialize(gpu=gpus)
    def make(self, gpu: Gpu) -> None:
        self.setup = Setup(gpu, FREE, MODELS)
        self.server = GpuServer(self.setup)
        self.books = Books()
        self.now_s = 0.0
        self.calls: list[Call] = []
        self.events: list[Event] = []
        self.came: dict[tuple[int, int], float] = {}

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, (self.now_s, *arguments)))
        getattr(self.server, name)(self.now_s, *arguments)

    def look(self) -> None:
        for event in self.server.advance(self.now_s):
            self.events.append(event)
            self.books.take(event, self.now_s)

    def put_in(self, job: Job) -> int:
        self.books.submitted(job)
        self.call("submit", job)
        return job.id

    @rule(
        target=inside,
        model=st.sampled_from(NAMES),
        tokens=st.tuples(st.integers(0, 25), st.integers(0, 20)),
        slowness=st.sampled_from([1.0, 1.0, 0.5, 2.0]),
        prompt=st.sampled_from([(), (1, 2, 3), (1, 2, 4, 5, 6), (9, 8, 7, 6, 5)]),
        adapter=st.sampled_from(["", "", "", "x", "y", "z"]),
        sequences=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def submit(
        self,
        model: str,
        tokens: tuple[int, int],
        slowness: float,
        prompt: tuple[int, ...],
        adapter: str,
        sequences: int,
    ) -> int:
        model = ADAPTERS.get(adapter, model)
        job = Job(len(self.calls), model, "inference", *tokens, slowness, prompt, adapter, sequences=sequences)
        return self.put_in(job)

    @rule(target=inside, model=st.sampled_from(NAMES), update=st.sampled_from(["embedding", "weights"]))
    def update(self, model: str, update: Any) -> int:
        return self.put_in(Job(len(self.calls), model, "update", 0, 0, update=update))

    @rule(
        target=inside,
        tokens=st.tuples(st.integers(4, 24), st.integers(4, 16)),
        prompt=st.sampled_from([(1, 2, 3), (1, 2, 4, 5, 6)]),
    )
    def submit_one_of_a_crowd(self, tokens: tuple[int, int], prompt: tuple[int, ...]) -> int:
        return self.put_in(Job(len(self.calls), "free", "inference", *tokens, 1.0, prompt))

    @rule(number=consumes(inside))
    def cancel(self, number: int) -> None:
        self.look()  # earlier events stay
        self.call("cancel", number)
        self.books.cancelled(number)

    @rule(gap_s=st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0]))
    def wait(self, gap_s: float) -> None:
        self.now_s += gap_s

    @rule()
    def go_to_the_next_event(self) -> None:
        next_s = self.server.next_event_s()
        if next_s is not None:
            assert next_s >= self.now_s
            self.now_s = next_s
            self.look()

    @rule(do=st.one_of(loads, pins, rests, adapters))
    def manage(self, do: tuple[Any, ...]) -> None:
        self.call(*do)

    @invariant()
    def all_is_in_order(self) -> None:
        self.look()
        self.the_state_is_what_the_books_say()
        self.memory_is_conserved()
        self.blocks_are_conserved()
        self.tokens_keep_the_times_at_which_they_came()

    def the_state_is_what_the_books_say(self) -> None:
        state, gpu = self.server.state(), self.setup.gpu
        jobs = self.books.jobs
        assert state.running == len(self.books.running)
        assert state.queue_depth == len(jobs) - state.running
        assert state.pending_tokens == sum(
            job.prompt_tokens + job.output_tokens * job.sequences for job in jobs.values()
        )
        assert 0 <= state.waiting_for_load <= state.queue_depth
        slots = gpu.max_running if gpu.pools is None else gpu.pools.prefill_slots + gpu.pools.decode_slots
        if gpu.pools is None:
            assert state.running <= slots
        if gpu.queue_limit is not None:
            assert len(jobs) <= slots + gpu.queue_limit

    def memory_is_conserved(self) -> None:
        server = self.server
        state = server.state()
        assert 0 <= state.memory_evictable_mb <= state.memory_used_mb <= state.memory_total_mb
        for space in (server._models, server._adapters.slots):
            sizes = {name: space._measure(name)[0] for name in [*space.resident, *space.loading]}
            assert space.used == sum(sizes.values()) <= space.space
            idle = [name for name, resident in space.resident.items() if not resident.users]
            assert space.idle_size == sum(sizes[name] for name in idle if name not in space.pinned)
            tasks = list(server._tasks.values())
            users = [task.resident if space is server._models else adapter_of(task) for task in tasks]
            for resident in space.resident.values():
                assert resident.users == users.count(resident)

    def blocks_are_conserved(self) -> None:
        kv = self.server._batching.kv
        tasks = [task for task in self.server._tasks.values() if isinstance(task, SteppedTask)]
        holds = [task.held for task in tasks if task.held is not None]
        shared = {id(block): block for hold in holds for block in hold.shared}
        assert kv.used_blocks == sum(hold.own + hold.copies for hold in holds) + len(shared)
        assert kv.used_bytes == sum((hold.own + hold.copies) * hold.block_bytes for hold in holds) + sum(
            block.size_bytes for block in shared.values()
        )
        for block in shared.values():
            assert block.users == sum(hold.shared.count(block) for hold in holds)
            assert block.key is None or block.key not in kv._cached
        assert kv.cached_bytes == sum(block.size_bytes for block in kv._cached.values())
        assert kv.used_bytes + kv.cached_bytes <= kv.capacity_bytes
        assert all(number in self.books.running for number in self.server._batching._holders)
        for task in tasks:
            if task.held is not None:
                assert task.held.blocks * 4 >= task.job.prompt_tokens + task.done
                others = task.held.blocks - task.job.prompt_tokens // 4
                assert task.held.copies == (task.job.sequences - 1) * others

    def tokens_keep_the_times_at_which_they_came(self) -> None:
        for number, job in self.books.jobs.items():
            due = [self.server.token_due_s(number, token) for token in range(job.output_tokens)]
            known = [at_s for at_s in due if at_s is not None]
            assert known == sorted(known)
            for token, at_s in enumerate(due):
                if (number, token) in self.came:
                    assert at_s == pytest.approx(self.came[number, token], abs=1e-9)
                elif at_s is not None and at_s <= self.now_s:
                    assert FirstToken in self.books.stages[number]
                    self.came[number, token] = at_s

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        self.look()
        self.call("wake")
        for name in NAMES:
            self.call("pin", name, False)
        while (next_s := self.server.next_event_s()) is not None:
            self.now_s = next_s
            self.look()
        self.all_is_in_order()
        assert self.books.jobs == {}, "these never ended"
        assert self.server._limit == GpuServer(self.setup)._limit
        assert self.server._batching._batches == {}
        assert self.replayed(cut=True) == self.replayed(cut=False) == self.events

    def replayed(self, cut: bool) -> list[Event]:
        """Events of a new server for the same calls; ``cut``: advance to every event in between."""
        server = GpuServer(self.setup)
        events: list[Event] = []
        for name, (at_s, *rest) in self.calls:
            if cut:
                while (next_s := server.next_event_s()) is not None and next_s <= at_s:
                    events += server.advance(next_s)
            make: Callable[..., None] = getattr(server, name)
            make(at_s, *rest)
        while (next_s := server.next_event_s()) is not None:
            events += server.advance(next_s)
        return events


def adapter_of(task: SchedulerTask) -> object:
    return task.adapter if isinstance(task, SteppedTask) else None


TestConservation = Machine.TestCase
TestConservation.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
