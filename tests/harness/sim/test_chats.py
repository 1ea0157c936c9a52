"""The closed loop in virtual time: the response time law, waiting for answers, and backing off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.evidence.history import History
from harness.gateway.protocol import Action, Event, Reply, RequestArrived
from harness.scenario.closed_loop import BACK_OFF_S
from harness.scenario.model import Chats, Failure, Keys, ModelServer, Scenario, Stream
from harness.sim.event_queue import NETWORK_DELAY_S
from tests.harness.sim.rig import SERVICE_S, Listening, bare, run, scenario, stream

WAY_S = 4 * NETWORK_DELAY_S


def chats(count: int, think_s: float, duration_s: float, **changes: object) -> Stream:
    return stream(requests=50, chats=Chats(count, think_s, duration_s), **changes)


def at_once(history: History) -> int:
    """Maximum number of requests open at the same time."""
    rows = history.requests
    changes = np.concatenate([np.ones(len(rows)), -np.ones(len(rows))])
    order = np.lexsort((changes, np.concatenate([rows["sent_s"], rows["end_s"]])))
    return int(np.cumsum(changes[order]).max())


@pytest.mark.slow
@pytest.mark.parametrize(("count", "running"), [(3, 64), (40, 4)])
def test_the_response_time_law(count: int, running: int) -> None:
    """X = N / (R + Z) for any closed loop (Little's law over thinking and waiting), with or without a queue."""
    what = scenario(load=chats(count, 0.02, 40.0), server=ModelServer(max_running=running))
    history = run(bare(), what)
    assert history.answered().all()
    assert at_once(history) <= count
    throughput_per_s, response_s = (
        len(history.requests) / 40.0,
        float(history.all_requests().answered().latencies_s().mean()),
    )
    assert throughput_per_s == pytest.approx(count / (response_s + 0.02), rel=0.05)
    if running == 64:
        assert history.all_requests().answered().latencies_s() == pytest.approx(
            [SERVICE_S + WAY_S] * len(history.requests)
        )
    else:  # all four slots are always taken
        assert throughput_per_s == pytest.approx(4 / SERVICE_S, rel=0.05)


def test_every_request_follows_an_answer() -> None:
    history = run(bare(), scenario(load=chats(1, 0.0, 1.0)))
    rows = history.requests
    assert rows["intended_s"][1:] == pytest.approx(rows["end_s"][:-1])
    assert rows["number"].tolist() == list(range(len(rows)))
    assert len(rows) == pytest.approx(1.0 / (SERVICE_S + WAY_S), abs=1)
    assert history.digest() == run(bare(), scenario(load=chats(1, 0.0, 1.0))).digest()


def test_after_a_refusal_or_a_time_limit_a_chat_waits() -> None:
    def refusing(event: Event, now_s: float) -> list[Action]:
        return [Reply(event.request.id, 503, "no")] if isinstance(event, RequestArrived) else []

    history = run(Listening(refusing), scenario(load=chats(1, 0.0, 1.0)))
    assert np.diff(history.requests["intended_s"]) == pytest.approx(
        [2 * NETWORK_DELAY_S + BACK_OFF_S] * (len(history.requests) - 1)
    )
    silent = run(Listening(lambda event, now_s: []), scenario(load=chats(1, 0.0, 1.0, timeout_s=0.2)))
    assert set(silent.requests["failure"]) == {Failure.TIMEOUT}
    assert np.diff(silent.requests["intended_s"]) == pytest.approx([0.2 + BACK_OFF_S] * (len(silent.requests) - 1))


def test_beside_an_open_loop() -> None:
    what = scenario(load=stream(keys=Keys(1)), backends=1)
    both = what.load.streams[0], chats(2, 0.05, 1.0, name="chats", keys=Keys(4))
    history = run(bare(), scenario_of(what, both))
    mine = history.in_stream("chats")
    assert (~mine[:200]).all() and mine[200:].all()
    assert len(history.requests) > 220
    assert history.requests["intended_s"][:200] == pytest.approx(np.arange(200) / 100)


def scenario_of(what: Scenario, streams: tuple[Stream, ...]) -> Scenario:
    return replace(what, load=replace(what.load, streams=streams))
