"""The circuit breaker under calls in any order, compared with a model and with a twin that is never queried."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.balancer.health.breaker import BreakerSettings, CircuitBreaker, Settled, Ticket
from harness.claims.features import Backoff

OK, FAILED, NEUTRAL, ABORTED = Settled.OK, Settled.FAILED, Settled.NEUTRAL, Settled.ABORTED


class Calls(RuleBasedStateMachine):
    """A breaker with calls that end in any order, a simple model of it, and a twin that is never queried."""

    chosen = BreakerSettings(
        failures=3, open_s=1.0, probes=2, successes=3, backoff=Backoff(2.0, max_s=5.0, jitter=0.2), window_s=4.0
    )

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker(self.chosen, Random(7))
        self.twin = CircuitBreaker(self.chosen, Random(7))
        self.now_s = 0.0
        self.out: list[
            tuple[Ticket, Ticket, int, bool]
        ] = []  # tickets of both, with the model's generation and whether each is a probe
        self.era = 0
        self.mode = "closed"
        self.until_s = 0.0
        self.run = self.good = self.reopened = 0

    def trip(self) -> None:
        nominal_s = min(self.chosen.open_s * self.chosen.backoff.multiplier**self.reopened, self.chosen.backoff.max_s)
        until_s = self.breaker.open_until_s(self.now_s)
        assert until_s is not None
        open_s = until_s - self.now_s
        assert nominal_s * 0.8 - 1e-9 <= open_s <= min(nominal_s * 1.2, self.chosen.backoff.max_s) + 1e-9
        self.mode, self.until_s = "open", until_s
        self.era += 1
        self.run = self.good = 0

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.9, 2.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        if self.mode == "open" and self.now_s >= self.until_s:
            self.mode = "half-open"

    @rule()
    def a_call_begins(self) -> None:
        ticket, same = self.breaker.acquire(self.now_s), self.twin.acquire(self.now_s)
        probes_out = sum(probe for *_, probe in self.out)
        room = self.mode == "closed" or (self.mode == "half-open" and probes_out < self.chosen.probes)
        assert (ticket is not None) == (same is not None) == room
        if ticket is not None and same is not None:
            assert ticket.probe == same.probe == (self.mode == "half-open")
            self.out.append((ticket, same, self.era, ticket.probe))

    @precondition(lambda self: self.out)
    @rule(pick=st.integers(0, 50), settled=st.sampled_from([OK, OK, FAILED, FAILED, FAILED, NEUTRAL, ABORTED]))
    def a_call_ends(self, pick: int, settled: Settled) -> None:
        ticket, same, era, probe = self.out.pop(pick % len(self.out))
        for _ in range(1 + pick % 2):
            self.breaker.settle(ticket, settled, 0.1, self.now_s)
        self.twin.settle(same, settled, 0.1, self.now_s)
        if era != self.era or settled in (NEUTRAL, ABORTED):
            return
        if settled is FAILED:
            self.run += 1
            if probe:
                self.reopened += 1
            if probe or self.run == self.chosen.failures:
                self.trip()
            return
        self.run = 0
        self.good += probe
        if self.good == self.chosen.successes:
            self.mode = "closed"
            self.era += 1
            self.good = self.reopened = 0

    @rule(times=st.integers(1, 5), ahead_s=st.sampled_from([0.0, 0.5, 50.0]))
    def somebody_looks(self, times: int, ahead_s: float) -> None:
        for _ in range(times):
            self.breaker.state(self.now_s + ahead_s)
            self.breaker.allows(self.now_s + ahead_s)
            self.breaker.open_until_s(self.now_s + ahead_s)

    @invariant()
    def it_is_where_the_model_is(self) -> None:
        assert self.breaker.state(self.now_s) == self.mode
        assert self.breaker.open_until_s(self.now_s) == (self.until_s if self.mode == "open" else None)

    @invariant()
    def no_count_leaks(self) -> None:
        assert self.breaker.tickets_out == len(self.out)
        assert sum(probe for *_, probe in self.out) <= self.chosen.probes

    def teardown(self) -> None:
        """A backend that answers always gets its traffic back."""
        for ticket, *_ in self.out:
            self.breaker.settle(ticket, ABORTED, 0.1, self.now_s)
        self.now_s += self.chosen.backoff.max_s
        for _ in range(self.chosen.successes):
            good = self.breaker.acquire(self.now_s)
            assert good is not None
            self.breaker.settle(good, OK, 0.1, self.now_s)
        assert self.breaker.state(self.now_s) == "closed" and self.breaker.tickets_out == 0


TestCalls = Calls.TestCase
TestCalls.settings = settings(derandomize=True, deadline=None, database=None, max_examples=120, stateful_step_count=60)
