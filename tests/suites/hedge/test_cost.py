"""Cost of hedging on hand-written histories: number of hedges, periods without hedges, latency saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Backoff, Breaker, Claims, Hedge
from harness.evidence.history import History
from harness.property.findings import Held
from harness.property.verdict import Outcome
from harness.scenario.faults import FailingStatus, Hang, Slow
from harness.scenario.model import Kind, UnsupportedError
from suites.hedge.cost import breaker_off, overhead_within_share, overload_off, tail_cut, update_never
from suites.hedge.evidence import outlasted, probes
from suites.hedge.scenarios import half_open, overload, stalls
from tests.suites.hedge_histories import CLAIMS, Leg, Story, left
from tests.suites.histories import on_time, only, outcome

BREAKER = Breaker(failures=2, open_s=1.0)
BOTH = Claims((*CLAIMS.features, BREAKER))


# --- how many -----------------------------------------------------------------------------------------------


def slow(story: Story, at_s: float, hedged: bool) -> None:
    """A request of half a second, longer than the earlier 0.1 s, hedged or not."""
    if hedged:
        story.ask(at_s, left(0, at_s, at_s + 0.51), Leg(1, at_s + 0.2, at_s + 0.5), got=1)
    else:
        story.ask(at_s, Leg(0, at_s, at_s + 0.5))


def busy(hedged: list[bool], quick: int = 4) -> History:
    """`quick` fast requests, then slow ones, some of them hedged; then four unanswered, slow requests."""
    story = Story().quick([0.1] * quick)
    for turn, hedge in enumerate(hedged):
        slow(story, 20.0 + turn, hedge)
    for turn in range(4):
        story.ask(90.0 + turn, left(2, 90.0 + turn, 99.0), got=-1, end_s=99.0, status=504)
    return story.history()


@pytest.mark.parametrize(
    ("hedged", "ok", "made", "allowed"),
    [
        ([True], True, 1, 1),  # one of five
        ([True, True], False, 2, 1),  # two of six
        ([True, False, False, True], True, 2, 2),  # two of eight, a quarter
        ([True, False, True, False, False, False, False], False, 2, 1),  # in the end within, but not at seven
    ],
)
def test_hedges_within_the_share_of_every_prefix(hedged: list[bool], ok: bool, made: int, allowed: int) -> None:
    found = only(overhead_within_share, busy(hedged), CLAIMS)
    assert (found.ok, found.observed, found.bound, found.exact) == (ok, made, allowed, True)


BURSTS = replace(CLAIMS, features=(replace(CLAIMS[Hedge], burst=2),))


@pytest.mark.parametrize(
    ("quick", "together", "ok", "made", "bound"),
    [
        (12, 2, True, 2, 2.25),  # the second one's own request has earned a quarter of a hedge
        (12, 3, False, 3, 2.5),
        (4, 2, True, 2, 2.25),
    ],
)
def test_a_quiet_spell_saves_up_no_more_than_the_burst(
    quick: int, together: int, ok: bool, made: int, bound: float
) -> None:
    """A quarter of twelve requests would be three hedges; at most two of them may be saved up."""
    history = busy([True] * together, quick)
    everything, run = overhead_within_share(history, BURSTS)
    assert isinstance(everything, Held) and isinstance(run, Held) and everything.ok is (quick == 12)
    assert (run.ok, run.observed, run.bound) == (ok, made, bound) and not run.exact


def test_extra_work_is_told_beside_it() -> None:
    """0.51 s of 0.4 + 0.51 + 0.3 + 9 + 8 + 7 + 6 s was spent on the loser."""
    assert "1.6% of the backends' time" in only(overhead_within_share, busy([True]), CLAIMS).note


def test_little_demand_proves_no_budget() -> None:
    """One of 21 called for a hedge; a quarter of them could have had one."""
    story = Story().quick([0.1] * 20)
    slow(story, 30.0, hedged=True)
    assert overhead_within_share(story.history(), CLAIMS) == []
    assert overhead_within_share(busy([False]), CLAIMS) == []


def test_slow_is_who_outlasts_the_delay_that_was_known_when_it_came() -> None:
    story = Story().quick([0.1, 0.1, 9.0, 0.1, 0.2, 0.1])
    assert outlasted(story.history(), CLAIMS, Kind.INFERENCE)["number"].tolist() == [4]  # too few were known before


# --- what they save -----------------------------------------------------------------------------------------


def timed(latencies_s: list[float]) -> History:
    """Answered requests with these latencies."""
    return Story().quick(latencies_s).history()


@pytest.mark.parametrize(("slowest_s", "ok"), [(0.79, True), (0.81, False)])
def test_the_tail_is_cut(slowest_s: float, ok: bool) -> None:
    """Two of four lie beyond the median: their geometric mean without hedging is 1 s."""
    without = timed([0.1, 0.1, 0.5, 2.0])
    history = timed([0.1, 0.1, slowest_s / 2, slowest_s * 2]).with_baselines({"ring": without})
    found = only(tail_cut, history, CLAIMS)
    assert found.ok is ok and found.observed == pytest.approx(slowest_s) and found.bound == pytest.approx(0.8)
    assert found.sample == 2 and tail_cut.baselines == ("ring",)


def test_a_request_without_an_answer_took_as_long_as_its_client_waits() -> None:
    story = Story().quick([0.1]).ask(5.0, Leg(0, 5.0, 5.1, 500), status=500)
    history = story.history().with_baselines({"ring": timed([0.1, 9.0])})
    assert only(tail_cut, history, CLAIMS).observed == pytest.approx(9.0)


def test_only_patient_clients_and_their_stretch_count() -> None:
    story = Story().quick([0.1, 0.1]).quick([5.0, 5.0], at_s=10.0, stream=1).quick([5.0, 5.0], at_s=20.0, stream=2)
    story.quick([5.0], at_s=100.5)
    history = story.history()
    found = only(tail_cut, history.with_baselines({"ring": history}), CLAIMS)
    assert found.observed == pytest.approx(0.1) and found.sample == 1
    late = Story().quick([5.0], at_s=100.5).history()
    assert tail_cut(late.with_baselines({"ring": late}), CLAIMS) == []


# --- when there are none ------------------------------------------------------------------------------------


def updates(*legs: Leg) -> History:
    """Three fast updates, then one with these legs."""
    return Story().quick([0.1, 0.1, 0.1], stream=2).ask(10.0, *legs, stream=2).history()


def test_an_update_is_never_hedged() -> None:
    found = only(update_never, updates(Leg(0, 10.0, 10.5)), CLAIMS)
    assert (found.ok, found.observed, found.sample, found.exact) == (True, 0, 1, True)
    found = only(update_never, updates(Leg(0, 10.0, 10.5), left(1, 10.2, 10.51)), CLAIMS)
    assert (found.ok, found.observed, found.at_s) == (False, 1, 10.2)


def test_without_a_slow_update_nothing_is_proven() -> None:
    assert update_never(updates(Leg(0, 10.0, 10.1)), CLAIMS) == []
    hedged_inference = Story().quick([0.1] * 3).ask(10.0, Leg(0, 10.0, 10.5), left(1, 10.2, 10.51))
    assert update_never(hedged_inference.history(), CLAIMS) == []


def threshold(load: float) -> Claims:
    """The same claims, without hedges above this many requests in flight per backend."""
    return replace(CLAIMS, features=(replace(CLAIMS[Hedge], load_threshold=load),))


def crowded(hedged: bool, inside: int) -> History:
    """`inside` unanswered requests are in flight when a slow one arrives; it may be hedged 0.2 s later."""
    story = Story().quick([0.1] * 4)
    for turn in range(inside):
        story.ask(20.0 + turn / 1000, left(2, 20.0 + turn / 1000, 60.0), got=-1, end_s=60.0, status=504)
    slow(story, 30.0, hedged)
    return story.history()


@pytest.mark.parametrize(("hedged", "ok"), [(False, True), (True, False)])
def test_nothing_is_hedged_under_overload(hedged: bool, ok: bool) -> None:
    """1.25 times 3.2 for each of three backends: the twelfth is the first request in an overloaded fleet."""
    found = only(overload_off, crowded(hedged, inside=12), threshold(3.2))
    assert (found.ok, found.observed, found.bound, found.sample) == (ok, int(hedged), 0, 2)
    assert found.at_s == pytest.approx(20.011) and found.until_s == 30.0


def test_below_overload_nothing_is_proven() -> None:
    assert overload_off(crowded(hedged=True, inside=10), threshold(3.2)) == []


def test_overload_is_64_inside_each_or_a_quarter_more_than_claimed() -> None:
    """Ten for each of three backends, including the slow one."""
    assert overload_off(crowded(hedged=True, inside=28), threshold(8.0)) == []
    assert not only(overload_off, crowded(hedged=True, inside=29), threshold(8.0)).ok
    with pytest.raises(UnsupportedError, match="hedges with up to 52 requests"):
        overload(threshold(52.0))
    assert overload_off(crowded(hedged=True, inside=190), CLAIMS) == []
    assert not only(overload_off, crowded(hedged=True, inside=191), CLAIMS).ok


# --- breakers -----------------------------------------------------------------------------------------------


def reopened(*others: Leg, silence_s: float = 1.0, failures: int = 2, takes_s: float = 0.5) -> History:
    """A backend fails until its breaker opens, gets nothing, and then gets one request, which may have other legs."""
    story = Story().quick([0.1, 0.1, 0.1])
    for turn in range(failures):
        story.ask(10.0 + turn / 10, Leg(1, 10.0 + turn / 10, 10.01 + turn / 10, 500), got=1, status=500)
    at_s = 10.0 + (failures - 1) / 10 + silence_s
    return story.ask(at_s, Leg(1, at_s, at_s + takes_s), *others, got=1).history()


def test_a_probe_is_not_hedged() -> None:
    found = only(breaker_off, reopened(), BOTH)
    assert (found.ok, found.observed, found.bound) == (True, 0, 0) and found.at_s == pytest.approx(11.1)
    found = only(breaker_off, reopened(left(0, 11.3, 11.6)), BOTH)
    assert (found.ok, found.observed) == (False, 1)


def test_a_hedge_is_no_probe() -> None:
    found = only(breaker_off, reopened(left(0, 10.9, 11.2), takes_s=0.05), BOTH)
    assert (found.ok, found.observed) == (False, 1)


def test_a_quick_probe_proves_nothing() -> None:
    assert breaker_off(reopened(takes_s=0.05), BOTH) == []


@pytest.mark.parametrize(("silence_s", "failures", "count"), [(0.91, 2, 1), (0.89, 2, 0), (1.0, 1, 0), (1.0, 3, 1)])
def test_a_probe_follows_failures_and_a_silence(silence_s: float, failures: int, count: int) -> None:
    assert len(probes(reopened(silence_s=silence_s, failures=failures), BREAKER)) == count


def test_other_breakers_leave_no_such_mark() -> None:
    assert probes(reopened(), replace(BREAKER, failures=None, error_rate=0.5)) == []


def test_noise_leaves_a_hedged_probe_undecided() -> None:
    history = replace(reopened(left(0, 11.3, 11.6)), slack_s=np.full(101, 0.05))
    assert outcome(breaker_off, history, BOTH) is Outcome.INCONCLUSIVE


# --- scenarios ----------------------------------------------------------------------------------------------


def test_every_backend_stalls_equally_often_and_others_fail_beside() -> None:
    scenario = stalls(Claims((Hedge(),)))
    slowed = [step.backend for step in scenario.timeline if isinstance(step, Slow) and step.at_s < 5.2]
    assert slowed == [f"gpu-{number}" for number in (0, 1, 2, 3, 0, 1, 2, 3)]
    assert {step.backend for step in scenario.timeline if isinstance(step, FailingStatus)} == set(scenario.backend_ids)
    assert 7.0 < scenario.end_s < 7.5 and len(on_time(scenario)) == len(scenario.timeline)


@pytest.mark.parametrize(("threshold", "flood_per_s"), [(None, 340.0), (32.0, 115.6), (8.0, 1.4), (51.0, 340.0)])
def test_the_flood_is_as_large_as_overload_needs(threshold: float | None, flood_per_s: float) -> None:
    """Four times 1.25 x 32 requests in flight within 55 % of 0.7 s, 300/s of them from the usual load."""
    scenario = overload(Claims((Hedge(load_threshold=threshold),)))
    flood = scenario.load.streams[scenario.load.index("flood")]
    assert flood.rate_per_s == pytest.approx(flood_per_s, abs=0.1)


def test_what_hangs_is_let_go_in_a_second_of_its_own() -> None:
    """Hundreds of resets at once add noise, and slack is recorded per second."""
    scenario = overload(Claims((Hedge(),)))
    assert [step.backend for step in scenario.timeline if isinstance(step, Hang)] == list(scenario.backend_ids)
    hang = scenario.timeline[0]
    assert isinstance(hang, Hang)
    last_s = max(stream.end_s for stream in scenario.load.streams)
    assert int(last_s) < int(hang.at_s + (hang.for_s or 0.0)) == int(scenario.end_s)


def test_a_higher_quantile_stalls_more_rarely_and_openai_has_no_updates() -> None:
    """Four backends stall for 80 ms in 10 s, in turn: 0.8 % of each backend's requests."""
    scenario = stalls(Claims((Hedge(quantile=0.99, minimum=100),), protocol="openai"))
    first, second = (step.at_s for step in scenario.timeline[:2])
    assert second - first == pytest.approx(2.5)
    assert "updates" not in [stream.name for stream in scenario.load.streams]
    assert first == pytest.approx(100 * 8 / 300 + 0.2)


def test_all_but_one_breaker_opens() -> None:
    scenario = half_open(Claims((Hedge(), Breaker(open_s=0.5, backoff=Backoff(2.0, 4.0, jitter=0.2)))))
    assert [step.backend for step in scenario.timeline] == ["gpu-1", "gpu-2", "gpu-3"] * 2
    assert scenario.intervals_s == (0.4,) and scenario.end_s < 3.0
    with pytest.raises(UnsupportedError, match="failures in a row"):
        half_open(Claims((Hedge(), Breaker(failures=None, error_rate=0.5))))
