"""The circuit breaker: trip conditions, open times, probes, and ignored results."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.core.settings_to_claims import claim_of
from harness.balancer.health.breaker import BreakerSettings, CircuitBreaker, Settled, Ticket
from harness.balancer.health.windows import LatencyWindow
from harness.claims.features import Backoff, Breaker

OK, FAILED, NEUTRAL, ABORTED = Settled.OK, Settled.FAILED, Settled.NEUTRAL, Settled.ABORTED
STEADY = Backoff(multiplier=2.0, jitter=0.0)
QUICK = BreakerSettings(failures=3, error_rate=None, open_s=2.0, successes=1, backoff=STEADY)
BY_P99 = BreakerSettings(failures=None, error_rate=None, slow_p99_s=1.0)
PINNED = settings(derandomize=True, deadline=None, database=None, max_examples=100)


def breaker_of(chosen: BreakerSettings, seed: int = 1) -> CircuitBreaker:
    return CircuitBreaker(chosen, Random(seed))


def taken(breaker: CircuitBreaker, now_s: float) -> Ticket:
    ticket = breaker.acquire(now_s)
    assert ticket is not None
    return ticket


def call(breaker: CircuitBreaker, settled: Settled, now_s: float = 0.0, latency_s: float = 0.01) -> None:
    breaker.settle(taken(breaker, now_s), settled, latency_s, now_s)


def tripped(chosen: BreakerSettings = QUICK, at_s: float = 0.0) -> CircuitBreaker:
    breaker = breaker_of(chosen)
    assert chosen.failures is not None
    for _ in range(chosen.failures):
        call(breaker, FAILED, at_s)
    assert breaker.state(at_s) == "open"
    return breaker


def open_times_s(chosen: BreakerSettings, trips: int, seed: int = 1) -> list[float]:
    """Open times of a backend whose probes all fail at once."""
    breaker, now_s, found = breaker_of(chosen, seed), 0.0, []
    for _ in range(chosen.failures or 0):
        call(breaker, FAILED)
    for _ in range(trips):
        until_s = breaker.open_until_s(now_s)
        assert until_s is not None
        found.append(until_s - now_s)
        now_s = until_s
        call(breaker, FAILED, now_s)
    return found


# --- tripping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_trips_at_exactly_its_run_of_failures(failures: int) -> None:
    """S4: counted and used."""
    breaker = breaker_of(BreakerSettings(failures=failures))
    states = []
    for _ in range(failures):
        states.append(breaker.state(0.0))
        call(breaker, FAILED)
    assert states == ["closed"] * failures
    assert breaker.state(0.0) == "open"


def test_a_success_clears_the_run_and_nothing_else_touches_it() -> None:
    """S5: at exactly the claimed number of consecutive failures."""
    breaker = breaker_of(QUICK)
    for settled in (FAILED, FAILED, OK, FAILED, NEUTRAL, FAILED, ABORTED):
        call(breaker, settled)
    assert breaker.state(0.0) == "closed"
    call(breaker, FAILED)
    assert breaker.state(0.0) == "open"


def test_the_threshold_is_the_same_in_every_cycle() -> None:
    breaker, now_s = tripped(), 0.0
    for _ in range(4):
        now_s = breaker.open_until_s(now_s) or 0.0
        call(breaker, OK, now_s)
        for _ in range(2):
            call(breaker, FAILED, now_s)
        assert breaker.state(now_s) == "closed"
        call(breaker, FAILED, now_s)
        assert breaker.state(now_s) == "open"


@pytest.mark.parametrize("settled", [NEUTRAL, ABORTED])
def test_client_errors_and_cancellations_never_trip(settled: Settled) -> None:
    chosen = BreakerSettings(failures=1, error_rate=0.01, minimum_calls=1, slow_p99_s=0.1)
    breaker = breaker_of(chosen)
    for _ in range(200):
        call(breaker, settled, latency_s=9.0)
    assert breaker.state(0.0) == "closed"


def test_trips_at_its_error_rate_once_there_are_enough_calls() -> None:
    breaker = breaker_of(BreakerSettings(failures=None, error_rate=0.3, minimum_calls=10))
    for settled in (FAILED, FAILED, FAILED, OK, OK, OK, OK, OK, OK, NEUTRAL, ABORTED):
        call(breaker, settled)
    assert breaker.state(0.0) == "closed"
    call(breaker, OK)
    assert breaker.state(0.0) == "open"


def test_the_error_rate_is_that_of_the_window() -> None:
    breaker = breaker_of(BreakerSettings(failures=None, error_rate=0.5, minimum_calls=4, window_s=10.0))
    for _ in range(2000):
        call(breaker, OK, 0.0)
    for _ in range(3):
        call(breaker, FAILED, 10.0)
    assert breaker.state(10.0) == "closed"
    call(breaker, FAILED, 10.0)
    assert breaker.state(10.0) == "open"


def test_trips_when_its_p99_is_slow() -> None:
    """Of 199 calls the 198th smallest is the p99, so one may be slow; of 200 the 199th, so two may not."""
    breaker = breaker_of(replace(BY_P99, minimum_calls=100))
    for latency_s in [1.0] * 198 + [1.1]:
        call(breaker, OK, latency_s=latency_s)
    assert breaker.state(0.0) == "closed"
    call(breaker, OK, latency_s=1.1)
    assert breaker.state(0.0) == "open"


def test_slow_calls_below_the_minimum_prove_nothing() -> None:
    breaker = breaker_of(BY_P99)
    for _ in range(19):
        call(breaker, OK, latency_s=5.0)
    assert breaker.state(0.0) == "closed"
    call(breaker, OK, latency_s=0.1)
    assert breaker.state(0.0) == "open"


@PINNED
@given(st.lists(st.sampled_from([0.5, 1.0, 1.5]), max_size=250), st.integers(1, 120))
def test_counting_slow_calls_says_the_same_as_the_p99(latencies_s: list[float], minimum_calls: int) -> None:
    breaker = breaker_of(replace(BY_P99, slow_p99_s=1.2, minimum_calls=minimum_calls, window_s=20.0))
    window = LatencyWindow(span_s=20.0, minimum_calls=minimum_calls)
    for number, latency_s in enumerate(latencies_s):
        now_s = number / 10
        call(breaker, OK, now_s, latency_s)
        window.record(latency_s, now_s)
        p99_s = window.quantile_s(0.99, now_s)
        expected = "open" if p99_s is not None and p99_s > 1.2 else "closed"
        assert breaker.state(now_s) == expected
        if expected == "open":
            return


# --- open -------------------------------------------------------------------------------------------------


def test_open_fails_fast_for_exactly_its_time() -> None:
    breaker = tripped(at_s=10.0)
    assert [breaker.state(now_s) for now_s in (10.0, 11.99, 12.0)] == ["open", "open", "half-open"]
    assert [breaker.open_until_s(now_s) for now_s in (10.0, 11.99, 12.0)] == [12.0, 12.0, None]
    assert breaker.acquire(11.99) is None and not breaker.allows(11.99)


def test_stragglers_do_not_lengthen_the_open_time() -> None:
    """S9: the open time starts at the trip."""
    breaker = breaker_of(QUICK)
    crowd = [taken(breaker, 0.0) for _ in range(10)]
    for number, ticket in enumerate(crowd):
        breaker.settle(ticket, FAILED, 0.1, number / 5)
    assert breaker.open_until_s(1.0) == pytest.approx(0.4 + 2.0)


def test_late_results_decide_nothing_while_half_open_or_closed_again() -> None:
    breaker = breaker_of(QUICK)
    old = [taken(breaker, 0.0) for _ in range(6)]
    for _ in range(3):
        call(breaker, FAILED)
    probe = taken(breaker, 2.0)
    breaker.settle(old.pop(), OK, 2.0, 2.1)
    breaker.settle(old.pop(), FAILED, 2.0, 2.1)
    assert breaker.state(2.1) == "half-open" and not breaker.allows(2.1)
    breaker.settle(probe, OK, 0.2, 2.2)
    for ticket in old:
        breaker.settle(ticket, FAILED, 2.0, 2.3)
    assert breaker.state(2.3) == "closed" and breaker.tickets_out == 0


# --- half-open --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probes", [1, 2, 5])
def test_exactly_its_probes_at_a_time(probes: int) -> None:
    """S1: the first call after the open time takes one of the probe slots and no more."""
    breaker = tripped(BreakerSettings(failures=3, open_s=2.0, probes=probes, successes=9, backoff=STEADY))
    out = [breaker.acquire(2.0) for _ in range(50)]
    assert [ticket is not None and ticket.probe for ticket in out] == [True] * probes + [False] * (50 - probes)
    first = out[0]
    assert first is not None
    breaker.settle(first, OK, 0.1, 2.1)
    assert breaker.acquire(2.1) is not None and breaker.acquire(2.1) is None


def test_looking_consumes_no_probe() -> None:
    """S2: filtering candidates changes no state."""
    breaker = tripped()
    for _ in range(100):
        assert breaker.allows(2.0) and breaker.state(2.0) == "half-open" and breaker.open_until_s(2.0) is None
    assert taken(breaker, 2.0).probe and not breaker.allows(2.0)


@pytest.mark.parametrize("settled", [NEUTRAL, ABORTED])
def test_a_third_outcome_frees_the_slot_and_decides_nothing(settled: Settled) -> None:
    breaker = tripped(BreakerSettings(failures=3, open_s=2.0, successes=2, backoff=STEADY))
    call(breaker, OK, 2.0)
    call(breaker, settled, 2.1)
    assert breaker.state(2.1) == "half-open"
    call(breaker, OK, 2.2)
    assert breaker.state(2.2) == "closed"


def test_one_failed_probe_reopens_whatever_the_threshold() -> None:
    breaker = tripped(BreakerSettings(failures=3, open_s=2.0, probes=3, successes=3, backoff=STEADY))
    first, second, third = (taken(breaker, 2.0) for _ in range(3))
    breaker.settle(first, OK, 0.1, 2.1)
    breaker.settle(second, FAILED, 0.2, 2.2)
    assert breaker.open_until_s(2.2) == pytest.approx(2.2 + 4.0)
    breaker.settle(third, FAILED, 0.5, 2.5)
    assert breaker.open_until_s(2.5) == pytest.approx(2.2 + 4.0)


def test_a_probe_that_hangs_on_keeps_its_slot_in_the_next_half_open_time() -> None:
    """The backend never has more probes than claimed; the late result is ignored."""
    breaker = tripped(BreakerSettings(failures=3, open_s=2.0, probes=2, successes=1, backoff=STEADY))
    hung, failing = taken(breaker, 2.0), taken(breaker, 2.0)
    breaker.settle(failing, FAILED, 0.0, 2.0)
    assert breaker.acquire(6.0) is not None and breaker.acquire(6.0) is None
    breaker.settle(hung, OK, 5.0, 7.0)
    assert breaker.state(7.0) == "half-open" and breaker.allows(7.0)


def test_good_probes_count_anew_in_each_half_open_time() -> None:
    breaker = tripped(BreakerSettings(failures=3, open_s=2.0, successes=2, backoff=STEADY))
    call(breaker, OK, 2.0)
    call(breaker, FAILED, 2.0)
    call(breaker, OK, 6.0)
    assert breaker.state(6.0) == "half-open"


def test_closing_starts_clean() -> None:
    chosen = replace(QUICK, error_rate=0.5, minimum_calls=3)
    breaker = tripped(chosen)
    call(breaker, FAILED, 2.0)
    call(breaker, OK, 6.0)
    for settled in (FAILED, FAILED):
        call(breaker, settled, 6.1)
    assert breaker.state(6.1) == "closed"  # both the count and the window are reset
    call(breaker, FAILED, 6.1)
    assert breaker.open_until_s(6.1) == pytest.approx(6.1 + 2.0)  # and so is the backoff


def test_a_slow_probe_is_no_good_one_where_slowness_trips() -> None:
    breaker = tripped(replace(QUICK, slow_p99_s=1.0))
    call(breaker, OK, 2.0, latency_s=1.5)
    assert breaker.state(2.0) == "open"
    call(breaker, OK, 6.0, latency_s=1.0)
    assert breaker.state(6.0) == "closed"


# --- open times -------------------------------------------------------------------------------------------


def test_open_times_grow_to_the_cap() -> None:
    chosen = BreakerSettings(failures=3, open_s=2.0, backoff=Backoff(2.0, max_s=12.0))
    assert open_times_s(chosen, 6) == pytest.approx([2.0, 4.0, 8.0, 12.0, 12.0, 12.0])
    assert open_times_s(chosen, 2000)[-1] == pytest.approx(12.0)  # and no power overflows


def test_jitter_spreads_every_open_time_and_never_beyond_the_cap() -> None:
    chosen = BreakerSettings(failures=1, open_s=1.0, backoff=Backoff(2.0, max_s=4.0, jitter=0.25))
    runs = [open_times_s(chosen, 4, seed) for seed in range(300)]
    for found, (low_s, high_s) in zip(zip(*runs, strict=True), [(0.75, 1.25), (1.5, 2.5), (3, 4), (3, 4)], strict=True):
        assert low_s <= min(found) < low_s + 0.02 * (high_s - low_s)
        assert high_s - 0.02 * (high_s - low_s) < max(found) <= high_s + 1e-9
        assert len(set(found)) == len(found)  # no two reopen at the same instant, even at the cap


def test_twenty_breakers_tripped_together_do_not_return_together() -> None:
    """Statistics: at most 8 of 20 in any hundredth of the open time, except in one run of ten thousand."""
    chosen = BreakerSettings(failures=1, open_s=1.0)
    returns_s = sorted(open_times_s(chosen, 1, seed)[0] for seed in range(20))
    assert max(sum(at_s <= other <= at_s + 0.01 for other in returns_s) for at_s in returns_s) <= 8


# --- tickets ----------------------------------------------------------------------------------------------


def test_a_ticket_is_settled_once() -> None:
    breaker = breaker_of(QUICK)
    ticket = taken(breaker, 0.0)
    for _ in range(5):
        breaker.settle(ticket, FAILED, 0.1, 0.1)
    assert breaker.state(0.1) == "closed" and breaker.tickets_out == 0


def test_a_probe_settled_twice_frees_one_slot() -> None:
    breaker = tripped(replace(QUICK, probes=2))
    first = taken(breaker, 2.0)
    taken(breaker, 2.0)
    for _ in range(3):
        breaker.settle(first, NEUTRAL, 0.1, 2.1)
    assert breaker.acquire(2.1) is not None and breaker.acquire(2.1) is None


def test_tickets_of_another_breaker_mean_nothing() -> None:
    """A backend that left and returned has a new breaker, which ignores calls begun before."""
    old, new = breaker_of(BreakerSettings(failures=1)), breaker_of(BreakerSettings(failures=1))
    new_ticket = taken(new, 0.0)
    new.settle(taken(old, 0.0), FAILED, 0.1, 0.1)
    assert new.state(0.1) == "closed" and new.tickets_out == 1
    new.settle(new_ticket, FAILED, 0.1, 0.1)
    assert new.state(0.1) == "open"


def test_open_times_fill_the_claimed_bands() -> None:
    """Both ends of every band are reached within a hundredth of it."""
    chosen = BreakerSettings(failures=1, open_s=1.0, backoff=Backoff(multiplier=2.0, max_s=3.0, jitter=0.2))
    claimed = claim_of(Breaker, chosen)
    drawn = [open_times_s(chosen, trips=4, seed=seed) for seed in range(500)]
    for turn, times_s in enumerate(zip(*drawn, strict=True)):
        low_s, high_s = claimed.open_band_s(turn)
        margin_s = (high_s - low_s) / 100
        assert low_s - 1e-9 <= min(times_s) <= low_s + margin_s
        assert high_s - margin_s <= max(times_s) <= high_s + 1e-9
        assert max(times_s) <= claimed.longest_open_s + 1e-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failures": None, "error_rate": None}, "needs a reason"),
        ({"failures": 0}, "failures 0"),
        ({"probes": 0}, "probes 0"),
        ({"successes": 0}, "successes 0"),
        ({"minimum_calls": 0}, "minimum_calls 0"),
        ({"error_rate": 0.0}, "error_rate 0.0"),
        ({"error_rate": 1.1}, "error_rate 1.1"),
        ({"window_s": 0.0}, "window_s 0.0"),
        ({"slow_p99_s": 0.0}, "slow_p99_s 0.0"),
        ({"open_s": 0.0}, "open_s 0.0"),
        ({"backoff": Backoff(0.9)}, "multiplier 0.9"),
        ({"backoff": Backoff(max_s=1.0)}, "max_s 1.0"),
        ({"backoff": Backoff(jitter=1.0)}, "jitter 1.0"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BreakerSettings(**changes)  # type: ignore[arg-type]
