"""The event queue: order of times, insertion order at equal times, and void limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sim.event_queue import NETWORK_DELAY_S, EventQueue

PINNED = settings(derandomize=True, deadline=None, database=None, max_examples=150)
DELAYS_S = st.sampled_from([0.0, NETWORK_DELAY_S, 2 * NETWORK_DELAY_S, 0.5, 1.0])
WAYS = st.sampled_from(["at", "later", "hop", "limit", "limit"])


@dataclass
class Job:
    """A numbered subject of a time limit."""

    number: int
    done: bool = False


@dataclass
class Diary:
    """Records callbacks with their times."""

    event_queue: EventQueue = field(default_factory=EventQueue)
    records: list[tuple[float, int]] = field(default_factory=list)

    def note(self, job: Job) -> None:
        """Record a callback now."""
        self.records.append((self.event_queue.now.now_s, job.number))

    def run(self) -> list[tuple[float, int]]:
        """Run all entries; the records."""
        while self.event_queue.advance():
            assert len(self.records) < 1000
        return self.records


def put(diary: Diary, method: str, delay_s: float, job: Job) -> float:
    """Schedule a job by the given method; returns its due time."""
    event_queue = diary.event_queue
    match method:
        case "at":
            event_queue.at(event_queue.now.now_s + delay_s, diary.note, job)
        case "later":
            event_queue.later(delay_s, diary.note, job)
        case "hop":
            event_queue.after_network_delay(diary.note, job)
            return event_queue.now.now_s + NETWORK_DELAY_S
        case _:
            event_queue.limit(delay_s, diary.note, job)
    return event_queue.now.now_s + delay_s


@PINNED
@given(st.lists(st.tuples(WAYS, DELAYS_S, st.integers(0, 3), st.booleans()), max_size=40))
def test_everything_happens_in_its_turn(steps: list[tuple[str, float, int, bool]]) -> None:
    """The order is by time and number, whatever the method and the number of finished jobs."""
    diary = Diary()
    due: dict[int, float] = {}
    jobs: dict[int, Job] = {}
    for number, (method, delay_s, advances, meets) in enumerate(steps):
        jobs[number] = Job(number)
        due[number] = put(diary, method, delay_s, jobs[number])
        for _ in range(advances):
            diary.event_queue.advance()
        if method == "limit" and meets and number not in {done for _, done in diary.records}:
            jobs[number].done = True
            del due[number]
    records = diary.run()
    assert records == sorted(records)
    assert sorted(records, key=lambda item: item[1]) == [(at_s, number) for number, at_s in sorted(due.items())]
    assert diary.event_queue.empty


def test_what_is_past_happens_now() -> None:
    diary = Diary()
    diary.event_queue.later(5.0, diary.note, Job(0))
    diary.run()
    for method in ("at", "limit"):
        put(diary, method, -3.0, Job(1))
    assert diary.run() == [(5.0, 0), (5.0, 1), (5.0, 1)]


def test_a_schedule_comes_before_all_else_of_its_time() -> None:
    diary = Diary()
    diary.event_queue.later(1.0, diary.note, Job(0))
    diary.event_queue.before(1.0, diary.note, Job(1))
    assert diary.run() == [(1.0, 1), (1.0, 0)]


def test_nothing_happens_after_the_last_time() -> None:
    diary = Diary()
    diary.event_queue.after_network_delay(diary.note, Job(0))
    assert not diary.event_queue.advance(NETWORK_DELAY_S / 2) and diary.event_queue.now() == 0.0
    assert diary.event_queue.advance(NETWORK_DELAY_S)
    diary.event_queue.later(1.0, diary.note, Job(1))
    assert not diary.event_queue.advance(1.0)
    assert diary.event_queue.advance(1.0 + NETWORK_DELAY_S)
    assert not diary.event_queue.advance() and diary.event_queue.empty


def test_limits_that_come_to_nothing_are_forgotten() -> None:
    """However many limits were set: one entry on the heap, and one in the lane after the next limit."""
    diary = Diary()
    for number in range(100):
        job = Job(number)
        diary.event_queue.limit(1.0, diary.note, job)
        job.done = True
    assert len(diary.event_queue._lanes[1.0]) == len(diary.event_queue._heap) == 1
    assert diary.run() == [] and diary.event_queue.empty
