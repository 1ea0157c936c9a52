"""Admission under any order of events: never above a rate or the cap; none lost, run twice or run after leaving."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.balancer.requests.limits import Admission, AdmissionSettings, Admitted, BucketSettings, Queued, Rejected

URGENCY = st.sampled_from(["normal", "high", "critical"])
RATE_PER_S, BURST, TOKEN_RATE_PER_S, TOKEN_BURST, CAP, QUEUE = 2.0, 3.0, 100.0, 200.0, 3, 4


def worst_excess(passed: list[tuple[float, float]], rate_per_s: float) -> float:
    """Largest amount beyond rate times t that passed in any window of t, over all windows."""
    excess = 0.0
    for first, (start_s, _) in enumerate(passed):
        total = 0.0
        for at_s, amount in passed[first:]:
            total += amount
            excess = max(excess, total - rate_per_s * (at_s - start_s))
    return excess


class Machine(RuleBasedStateMachine):
    """Requests arrive, wait, leave and end in any order, under all limits at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.numbers = 0
        self.leaky = False
        self.limits = Admission(AdmissionSettings())
        self.running: set[int] = set()
        self.waiting: list[int] = []
        self.rank: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.fates: Counter[int] = Counter()
        self.admitted: list[tuple[float, int]] = []

    @initialize(leaky=st.booleans())
    def begin(self, leaky: bool) -> None:
        self.leaky = leaky
        kind = BucketSettings(RATE_PER_S, kind="leaky") if leaky else BucketSettings(RATE_PER_S, BURST)
        self.limits = Admission(AdmissionSettings(kind, BucketSettings(TOKEN_RATE_PER_S, TOKEN_BURST), CAP, QUEUE))

    def go(self, request_id: int) -> None:
        self.fates[request_id] += 1
        self.running.add(request_id)
        self.admitted.append((self.now_s, request_id))

    def go_on(self, admitted: list[int]) -> None:
        """The requests admitted are the first of the queue, and no further one could have been."""
        assert admitted == self.waiting[: len(admitted)]
        del self.waiting[: len(admitted)]
        for request_id in admitted:
            self.go(request_id)
        next_s = self.limits.next_s(self.now_s)
        assert next_s is None or next_s > self.now_s

    @rule(urgency=URGENCY, tokens=st.sampled_from([0, 1, 60, 150, 200, 201]))
    def submit(self, urgency: str, tokens: int) -> None:
        self.go_on(self.limits.due(self.now_s))
        self.numbers += 1
        request_id = self.numbers
        self.rank[request_id] = ["critical", "high", "normal"].index(urgency)
        self.tokens[request_id] = tokens
        match self.limits.submit(request_id, urgency, tokens, self.now_s):
            case Admitted():
                assert all(self.rank[other] > self.rank[request_id] for other in self.waiting)
                self.go(request_id)
            case Queued(shed):
                if shed is not None:
                    assert len(self.waiting) == QUEUE
                    assert self.rank[shed] > self.rank[request_id]
                    assert shed == self.waiting[-1]
                    self.waiting.remove(shed)
                    self.fates[shed] += 1
                self.waiting.append(request_id)
                self.waiting.sort(key=lambda number: (self.rank[number], number))
            case Rejected(status, retry_after_s):
                self.fates[request_id] += 1
                assert (status == 413) == (tokens > TOKEN_BURST) == (retry_after_s is None)
                assert status in (413, 429) or len(self.running) == CAP
                assert retry_after_s is None or retry_after_s > 0

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(request_id)
        self.go_on(self.limits.ended(request_id, self.now_s))

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted([*self.running, *self.waiting])))
        if request_id in self.waiting:
            self.waiting.remove(request_id)
            self.fates[request_id] += 1
        self.go_on(self.limits.gone(request_id, self.now_s))

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.go_on(self.limits.due(self.now_s))

    @precondition(lambda self: self.limits.next_s(self.now_s) is not None)
    @rule()
    def timer_fires(self) -> None:
        """The next request is admitted exactly at `next_s`."""
        self.now_s = max(self.now_s, self.limits.next_s(self.now_s) or 0.0)
        admitted = self.limits.due(self.now_s)
        assert admitted
        self.go_on(admitted)

    @invariant()
    def the_cap_and_the_queue_hold(self) -> None:
        assert self.limits.running == self.running and len(self.running) <= CAP
        assert list(self.limits.waiting) == self.waiting and len(self.waiting) <= QUEUE

    @invariant()
    def no_window_lets_through_too_much(self) -> None:
        recent = self.admitted[-40:]
        requests = [(at_s, 1.0) for at_s, _ in recent]
        assert worst_excess(requests, RATE_PER_S) <= (1.0 if self.leaky else BURST) + 1e-6
        tokens = [(at_s, float(self.tokens[request_id])) for at_s, request_id in recent]
        assert worst_excess(tokens, TOKEN_RATE_PER_S) <= TOKEN_BURST + 1e-6

    @invariant()
    def nothing_is_lost_or_has_two_fates(self) -> None:
        for request_id in range(1, self.numbers + 1):
            assert self.fates[request_id] == (request_id not in self.waiting)

    def teardown(self) -> None:
        """All waiting requests are admitted in the end, and no state is left."""
        while self.running or self.waiting:
            for request_id in sorted(self.running):
                self.running.remove(request_id)
                self.go_on(self.limits.ended(request_id, self.now_s))
            if self.waiting and not self.running:
                self.timer_fires()
            self.nothing_is_lost_or_has_two_fates()
        assert self.limits.running == frozenset() and self.limits.waiting == ()


TestMachine = Machine.TestCase
TestMachine.settings = settings(derandomize=True, deadline=None, database=None, max_examples=80, stateful_step_count=50)
