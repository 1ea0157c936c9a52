"""Slack by second, with hand-written arrays, and the sentinel with a backend that answers, stalls or is gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan

import numpy as np
import pytest

from harness.evidence.history import StepSeen, empty_requests
from harness.evidence.records import Rows
from harness.evidence.tables import ATTEMPT, Times
from harness.live.run_queue import CoreWait
from harness.live.slack import PINGS, SENTINEL_S, Sentinel, Slack, slack_by_second
from harness.scenario.model import Connections, Load, Phase, Scenario, Stream
from tests.harness.live.helpers import PATIENCE_S, Call, RawBackend, fine, until

SCENARIO = Scenario(
    name="three-seconds",
    backends=2,
    load=Load(
        (
            Stream("kept", 0.0, 10.0, 10),
            Stream("one", 0.0, 10.0, 10, connections=Connections.ONE),
            Stream("fresh", 0.0, 10.0, 10, connections=Connections.FRESH),
        )
    ),
    phases=(Phase("all", 0.0, 3.5),),
)


def requests_of(*rows: tuple[int, float, float]) -> Rows:
    """Requests as (stream, intended, sent)."""
    made = empty_requests(len(rows))
    for row, (stream, intended_s, sent_s) in zip(made, rows, strict=True):
        row["stream"], row["intended_s"], row["sent_s"] = stream, intended_s, sent_s
    return made


def attempts_of(*rows: tuple[float, float, float]) -> Rows:
    """Attempts as (end, service asked, service actual)."""
    made = np.zeros(len(rows), ATTEMPT)
    for row, (end_s, asked_s, actual_s) in zip(made, rows, strict=True):
        row["end_s"], row["service_asked_s"], row["service_actual_s"] = end_s, asked_s, actual_s
    return made


def slack(
    requests: Rows | None = None,
    attempts: Rows | None = None,
    sentinel: Sequence[tuple[float, float]] = (),
    calibrated_s: float = 0.0,
    steps: Sequence[StepSeen] = (),
) -> Times:
    return measured(requests, attempts, sentinel, calibrated_s, steps).by_second_s


def measured(
    requests: Rows | None = None,
    attempts: Rows | None = None,
    sentinel: Sequence[tuple[float, float]] = (),
    calibrated_s: float = 0.0,
    steps: Sequence[StepSeen] = (),
    waits: Sequence[CoreWait] = (),
) -> Slack:
    return slack_by_second(
        SCENARIO,
        requests_of() if requests is None else requests,
        attempts_of() if attempts is None else attempts,
        list(sentinel),
        calibrated_s,
        steps,
        waits,
    )


def test_waits_for_a_core_add_up_along_the_way_and_name_the_longest() -> None:
    found = measured(waits=[CoreWait(1.2, 1.3, {"the balancer": 0.03, "the load": 0.01})], calibrated_s=0.002)
    assert found.by_second_s.tolist() == pytest.approx([0.002, 0.04, 0.002, 0.002])
    assert found.causes == ["calibration", "the balancer waited for a core", "calibration", "calibration"]


def test_a_wait_delays_what_began_before_its_window_and_what_ends_after_it() -> None:
    found = measured(waits=[CoreWait(0.95, 1.95, {"a mock": 0.1})])
    assert found.by_second_s.tolist() == [0.1, 0.1, 0.1, 0.0]


def test_each_second_names_its_largest_measure() -> None:
    late = requests_of((0, 0.5, 0.52))
    slow = attempts_of((1.5, 0.01, 0.05))
    found = measured(late, slow, sentinel=[(2.5, 0.03)], calibrated_s=0.001)
    assert found.causes == ["generator delay", "service time of a mock", "ping to a mock", "calibration"]


def test_one_value_for_each_second_begun_and_none_below_calibration() -> None:
    assert slack(calibrated_s=0.003).tolist() == [0.003] * 4
    assert slack(requests_of((0, 1.0, 1.001)), calibrated_s=0.003).tolist() == [0.003] * 4


def test_lateness_counts_in_the_second_of_its_intended_time() -> None:
    late = requests_of((0, 0.5, 0.51), (0, 1.9, 2.1), (2, 1.1, 1.12), (2, 3.2, 3.25))
    assert slack(late) == pytest.approx([0.01, 0.2, 0.0, 0.05])


def test_waiting_for_the_only_connection_is_not_lateness() -> None:
    assert slack(requests_of((1, 0.5, 3.0), (0, 0.5, 0.51))) == pytest.approx([0.01, 0.0, 0.0, 0.0])


def test_what_was_never_sent_says_nothing() -> None:
    assert slack(requests_of((0, 0.5, nan))).tolist() == [0.0] * 4


def test_excess_of_service_counts_in_the_second_of_its_end() -> None:
    served = attempts_of((0.5, 0.2, 0.21), (2.5, 0.2, 0.3), (2.9, 0.2, 0.2), (nan, 0.2, 0.9), (1.5, 0.2, nan))
    assert slack(attempts=served) == pytest.approx([0.01, 0.0, 0.1, 0.0])


def test_what_was_inside_when_its_backend_was_paused_says_nothing() -> None:
    served = attempts_of((0.5, 0.2, 0.21), (2.5, 0.2, 0.5), (3.5, 0.2, 0.23), (2.6, 0.2, 0.24))
    served["start_s"] = (0.2, 1.1, 3.2, 2.2)
    served["backend"] = (1, 1, 1, 0)
    pause = StepSeen("Pause", 1, 1.0, 1.1, 2.4)
    assert slack(attempts=served, steps=[pause]) == pytest.approx([0.01, 0.0, 0.04, 0.03])
    assert slack(attempts=served, steps=[replace(pause, healed_s=nan)]) == pytest.approx([0.01, 0.0, 0.04, 0.0])
    assert slack(attempts=served, steps=[replace(pause, kind="Kill")]) == pytest.approx([0.01, 0.0, 0.3, 0.03])


def test_sentinel_samples() -> None:
    samples = [(-0.1, 0.004), (0.0, 0.002), (1.05, 0.05), (1.15, 0.02), (9.0, 0.07)]
    assert slack(sentinel=samples) == pytest.approx([0.004, 0.05, 0.0, 0.07]), "before and after: the nearest second"
    assert slack(sentinel=[(2.5, 0.01)]) == pytest.approx([0.0, 0.0, 0.01, 0.0])


def test_the_largest_counts() -> None:
    found = slack(requests_of((0, 1.0, 1.03)), attempts_of((1.5, 0.1, 0.14)), [(1.2, 0.02)], calibrated_s=0.001)
    assert found == pytest.approx([0.001, 0.04, 0.001, 0.001])


# --- the sentinel -----------------------------------------------------------------------------------------


@pytest.fixture
def backend() -> Iterator[RawBackend]:
    started = RawBackend(fine)
    yield started
    started.close()


def test_calibration_is_the_spread_of_some_pings(backend: RawBackend) -> None:
    async def slow_once(call: Call) -> None:
        if len(backend.calls) == 5:
            await asyncio.sleep(0.2)
        await call.answer()

    backend.behave = slow_once
    calibrated_s = Sentinel(backend.port).calibrate()
    assert len(backend.calls) == PINGS
    assert {call.head.split()[1] for call in backend.calls} == {"/mock/ping"}
    assert 0.1 < calibrated_s < PATIENCE_S


def test_samples_are_on_the_monotonic_clock_and_beyond_the_fastest(backend: RawBackend) -> None:
    sentinel = Sentinel(backend.port)
    before_s = time.monotonic()
    sentinel.start()
    until(lambda: len(backend.calls) >= 4)
    samples = sentinel.stop()
    times = [at_s for at_s, _ in samples]
    assert len(samples) >= 4
    assert before_s <= times[0] < time.monotonic()
    assert np.diff(times) == pytest.approx([SENTINEL_S] * (len(times) - 1)), "due times: a late one does not shift them"
    assert min(beyond_s for _, beyond_s in samples) == 0.0


def test_a_stall_shows(backend: RawBackend) -> None:
    async def stall(call: Call) -> None:
        if len(backend.calls) == 3:
            await asyncio.sleep(0.3)
        await call.answer()

    backend.behave = stall
    sentinel = Sentinel(backend.port)
    sentinel.start()
    until(lambda: len(backend.calls) >= 5)
    beyond_s = [value for _, value in sentinel.stop()]
    assert max(beyond_s) >= 0.2
    assert beyond_s[3] >= 0.1, "those that were due meanwhile were late too"


def test_no_answer_counts_as_two_seconds() -> None:
    backend = RawBackend(fine)
    sentinel = Sentinel(backend.port)
    sentinel.start()
    until(lambda: len(sentinel._samples) >= 2)
    backend.close()
    before = len(sentinel._samples)
    until(lambda: len(sentinel._samples) >= before + 2)
    samples = sentinel.stop()
    assert min(beyond_s for _, beyond_s in samples) == 0.0
    assert samples[-1][1] > 1.5


def test_an_answer_that_is_no_http_does_not_end_it(backend: RawBackend) -> None:
    async def babble(call: Call) -> None:
        await call.write(b"what is HTTP?\r\n\r\n")

    backend.behave = babble
    sentinel = Sentinel(backend.port)
    sentinel.start()
    until(lambda: len(backend.calls) >= 2)
    assert len(sentinel.stop()) >= 1


def test_stop_without_start_and_twice(backend: RawBackend) -> None:
    assert Sentinel(backend.port).stop() == []
    threads = threading.active_count()
    sentinel = Sentinel(backend.port)
    sentinel.start()
    until(lambda: backend.calls)
    sentinel.stop()
    sentinel.stop()
    assert threading.active_count() == threads
