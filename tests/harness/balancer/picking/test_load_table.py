"""The load table: own counts are exact for every end, reports add foreign load, and a missing report is not idle."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.balancer.picking.load_table import LoadSettings, LoadTable
from harness.balancer.picking.two_choices import less_loaded_of_two

SETTINGS = LoadSettings(tokens_per_request=100.0, stale_s=3.0)
NAMES = ("a", "b", "c", "d")


def table_of(*backends: str) -> LoadTable:
    table = LoadTable(SETTINGS)
    table.set_backends(backends)
    return table


def loads(table: LoadTable, now_s: float = 0.0, health: float = 1.0) -> dict[str, float]:
    return {name: table.composite(name, health, now_s) for name in sorted(table.backends)}


class TestOwnCounts:
    """C5, C6, C7: counts follow requests and nothing else."""

    def test_one_decrement_per_increment(self) -> None:
        table = table_of("a")
        first, second = table.sent("a", 10, 0.0), table.sent("a", 20, 0.0)
        assert table.in_flight("a") == 2
        assert table.ended(first)
        assert not table.ended(first), "a second end of the same request counts nothing"
        assert table.in_flight("a") == 1 and table.total_in_flight == 1
        assert table.ended(second)
        assert table.in_flight("a") == 0 and table.total_in_flight == 0
        assert not table.ended(99)

    def test_a_count_never_expires(self) -> None:
        table = table_of("a")
        table.sent("a", 10, 0.0)
        assert table.composite("a", 1.0, 1e9) == pytest.approx(2.1)

    def test_reports_do_not_touch_it(self) -> None:
        table = table_of("a")
        table.sent("a", 0, 0.0)
        assert table.report("a", 0, 0, 0, at_s=1.0)
        assert table.in_flight("a") == 1
        assert table.composite("a", 1.0, 1.0) == 2.0

    def test_nothing_is_in_flight_at_a_stranger(self) -> None:
        assert table_of().in_flight("x") == 0
        assert table_of().composite("x", 1.0, 0.0) == math.inf


class TestComposite:
    def test_it_is_pending_work_with_one_more_over_health(self) -> None:
        table = table_of("a")
        table.report("a", queue_depth=2, pending_tokens=300, running=4, at_s=0.0)
        assert table.composite("a", 1.0, 0.0) == 2 + 4 + 3 + 1
        assert table.composite("a", 0.5, 0.0) == 20.0

    @pytest.mark.parametrize("health", [0.0, -1.0, math.nan])
    def test_without_health_it_is_infinite(self, health: float) -> None:
        assert table_of("a").composite("a", health, 0.0) == math.inf

    def test_what_was_sent_since_the_report_counts_on_top(self) -> None:
        table = table_of("a")
        table.sent("a", 100, 1.0)  # at the instant of the report's request: counted in addition to the report
        table.report("a", 0, 0, 5, at_s=1.0)
        table.sent("a", 100, 1.5)
        assert table.composite("a", 1.0, 1.5) == 5 + 2 + 2 + 1

    def test_what_the_report_covers_does_not_count_twice(self) -> None:
        table = table_of("a")
        tickets = [table.sent("a", 50, 0.5) for _ in range(3)]
        table.report("a", queue_depth=1, pending_tokens=150, running=4, at_s=1.0)
        assert table.composite("a", 1.0, 1.0) == 2 + 3 + 1.5 + 1
        for ticket in tickets:
            table.ended(ticket)
        assert table.composite("a", 1.0, 1.0) == 2 + 1

    def test_a_report_that_lags_behind_our_own_counts_leaves_them(self) -> None:
        table = table_of("a")
        for _ in range(3):
            table.sent("a", 50, 0.5)
        table.report("a", 0, 0, 1, at_s=1.0)
        assert table.composite("a", 1.0, 1.0) == 3 + 1.5 + 1

    def test_a_report_older_than_the_last_is_late(self) -> None:
        table = table_of("a")
        assert table.report("a", 0, 0, 5, at_s=2.0)
        assert not table.report("a", 0, 0, 50, at_s=1.0)
        assert table.composite("a", 1.0, 2.0) == 6.0

    @pytest.mark.parametrize(("full_scan", "most"), [(True, 3), (False, 8)])
    def test_no_herd_between_two_polls(self, full_scan: bool, most: int) -> None:
        """C3: 50 requests within one poll interval; snapshots alone would send them all to the least loaded."""
        generator = Random(4)
        table = table_of(*NAMES)
        for place, name in enumerate(NAMES):
            table.report(name, 0, 0, place, at_s=0.0)

        def load(name: str) -> float:
            return table.composite(name, 1.0, 0.1)

        for _ in range(50):
            chosen = min(NAMES, key=load) if full_scan else less_loaded_of_two(NAMES, load, generator)
            table.sent(chosen or "", 0, 0.1)
        counts = [table.in_flight(name) for name in NAMES]
        assert max(counts) - min(counts) <= most


class TestSilence:
    """C4: a missing, stale or invalid report does not mean an idle backend."""

    def test_a_backend_without_report_counts_as_the_worst_of_the_others(self) -> None:
        table = table_of("a", "b", "c")
        table.report("a", 1, 200, 1, at_s=0.0)
        table.report("b", 6, 100, 3, at_s=0.0)
        assert loads(table) == {"a": 5.0, "b": 11.0, "c": 9 + 2 + 1}

    def test_the_worst_is_that_of_now(self) -> None:
        table = table_of("a", "b", "c")
        table.report("a", 0, 0, 9, at_s=0.0)
        table.report("b", 0, 0, 2, at_s=0.0)
        assert table.composite("c", 1.0, 0.0) == 10.0
        table.report("a", 0, 0, 4, at_s=0.5)
        assert table.composite("c", 1.0, 0.5) == 5.0
        table.set_backends(["b", "c"])
        assert table.composite("c", 1.0, 0.5) == 3.0

    def test_without_any_report_own_counts_decide(self) -> None:
        table = table_of("a", "b")
        table.sent("a", 0, 0.0)
        assert loads(table) == {"a": 2.0, "b": 1.0}

    def test_a_stale_report_is_at_least_the_worst(self) -> None:
        table = table_of("a", "b")
        table.report("a", 0, 0, 0, at_s=0.0)
        table.report("b", 0, 0, 8, at_s=2.0)
        assert loads(table, now_s=2.9) == {"a": 1.0, "b": 9.0}
        assert loads(table, now_s=3.0) == {"a": 9.0, "b": 9.0}
        assert table.silent(2.9) == () and table.silent(3.0) == ("a",)

    def test_a_stale_report_of_much_work_is_not_made_less(self) -> None:
        table = table_of("a", "b")
        table.report("a", 0, 0, 20, at_s=0.0)
        table.report("b", 0, 0, 8, at_s=4.0)
        assert loads(table, now_s=4.0) == {"a": 21.0, "b": 9.0}

    @pytest.mark.parametrize("garbage", [math.nan, -1.0, math.inf, 1e10, "7", None, True])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_garbage_is_no_report(self, garbage: float, place: int) -> None:
        table = table_of("a", "b")
        values: list[float] = [0, 0, 0]
        values[place] = garbage
        assert not table.report("a", values[0], values[1], values[2], at_s=1.0)
        assert table.silent(1.0) == ("a", "b")
        table.report("b", 0, 0, 7, at_s=1.0)
        assert loads(table, 1.0) == {"a": 8.0, "b": 8.0}

    def test_one_garbled_report_leaves_the_last_good_one(self) -> None:
        table = table_of("a")
        table.report("a", 0, 0, 5, at_s=1.0)
        assert not table.report("a", math.nan, 0, 0, at_s=2.0)
        assert not table.report("a", 0, 0, 0, at_s=math.nan)
        assert table.composite("a", 1.0, 2.0) == 6.0

    def test_a_silent_backend_gets_no_more_than_its_share(self) -> None:
        table = table_of(*NAMES)
        generator = Random(3)
        shares = Counter[str]()
        for number in range(2000):
            now_s = number / 100
            if number % 10 == 0:
                for name in NAMES[1:]:
                    table.report(name, 0, 0, table.in_flight(name) + 2, at_s=now_s)
            chosen = less_loaded_of_two(NAMES, lambda name: table.composite(name, 1.0, now_s), generator) or ""  # noqa: B023
            shares[chosen] += 1
            ticket = table.sent(chosen, 0, now_s)
            if number % 2:
                table.ended(ticket)
        assert shares["a"] / 2000 <= 1.5 / 4


class TestMembership:
    def test_edits_keep_the_state_of_the_others(self) -> None:
        table = table_of("a", "b")
        table.report("a", 0, 0, 5, at_s=0.0)
        table.sent("a", 0, 0.0)
        table.set_backends(["c", "a"])
        assert table.composite("a", 1.0, 0.0) == 7.0
        assert table.backends == {"a", "c"}

    def test_one_that_left_is_forgotten_when_nothing_is_in_flight_there(self) -> None:
        table = table_of("a", "b")
        ticket = table.sent("a", 0, 0.0)
        table.set_backends(["b"])
        assert table.backends == {"a", "b"} and table.in_flight("a") == 1
        assert table.composite("a", 1.0, 0.0) == math.inf, "it is no candidate"
        assert not table.report("a", 0, 0, 0, at_s=0.0)
        assert table.ended(ticket)
        assert table.backends == {"b"}

    def test_one_that_returns_meanwhile_keeps_its_count_and_has_no_report(self) -> None:
        table = table_of("a", "b")
        table.report("a", 0, 0, 50, at_s=0.0)
        table.report("b", 0, 0, 2, at_s=0.5)
        ticket = table.sent("a", 0, 1.0)
        table.set_backends(["b"])
        table.set_backends(["a", "b"])
        assert table.in_flight("a") == 1 and table.silent(1.0) == ("a",)
        table.report("b", 0, 0, 2, at_s=1.0)
        assert table.composite("a", 1.0, 1.0) == 2 + 1 + 1
        assert table.ended(ticket) and table.in_flight("a") == 0


@pytest.mark.parametrize("name", ["tokens_per_request", "stale_s", "most_requests", "most_tokens"])
def test_settings_are_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} 0: expected above 0"):
        LoadSettings(**{name: 0})


class Machine(RuleBasedStateMachine):
    """Sends, ends (some of them twice), reports and edits in any order: counts equal the requests in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LoadTable(SETTINGS)
        self.members: set[str] = set()
        self.running: dict[int, str] = {}
        self.over: list[int] = [0]
        self.now_s = 0.0

    @rule(members=st.sets(st.sampled_from(NAMES)))
    def edit(self, members: set[str]) -> None:
        self.members = members
        self.table.set_backends(members)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), tokens=st.integers(0, 500))
    def send(self, data: st.DataObject, tokens: int) -> None:
        backend = data.draw(st.sampled_from(sorted(self.members)))
        ticket = self.table.sent(backend, tokens, self.now_s)
        assert ticket not in self.running
        self.running[ticket] = backend

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[ticket]
        assert self.table.ended(ticket)
        self.over.append(ticket)

    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        assert not self.table.ended(data.draw(st.sampled_from(self.over)))

    @rule(
        backend=st.sampled_from(NAMES),
        value=st.sampled_from([0, 3, 700, -1, math.nan]),
        seconds=st.sampled_from([0.0, 1.0, 4.0]),
    )
    def report(self, backend: str, value: float, seconds: float) -> None:
        self.now_s += seconds
        assert self.table.report(backend, value, value, value, self.now_s) == (backend in self.members and value >= 0)

    @invariant()
    def counts_are_what_is_in_flight(self) -> None:
        counts = Counter(self.running.values())
        assert all(self.table.in_flight(name) == counts[name] for name in NAMES)
        assert self.table.total_in_flight == len(self.running)
        assert self.table.backends == self.members | set(counts)

    @invariant()
    def no_load_is_below_the_own_part(self) -> None:
        counts = Counter(self.running.values())
        for name in self.members:
            assert self.table.composite(name, 1.0, self.now_s) >= counts[name] + 1


TestMachine = Machine.TestCase
TestMachine.settings = settings(derandomize=True, deadline=None, database=None, max_examples=50, stateful_step_count=40)
