"""The simulated world around a gateway: clients, connections, time limits, timers, and how a run ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    CancelTimer,
    ClientGone,
    Commit,
    Event,
    MembershipChanged,
    Reply,
    RequestArrived,
    ResponseHead,
    Send,
    SetTimer,
    TimerFired,
)
from harness.scenario.model import Connections, Echo, Ending, Failure, HarnessError, Keys, Kind, Method, Phase
from harness.sim.event_queue import NETWORK_DELAY_S
from harness.sim.world import PATIENCE_S, Simulation
from tests.harness.sim.rig import SERVICE_S, GatewayOf, Listening, bare, run, scenario, stream

WAY_S = 4 * NETWORK_DELAY_S
"""Network delay from client over balancer to backend and back."""


def silent(event: Event, now_s: float) -> list[Action]:
    """A gateway that ignores all events."""
    return []


def refusing(event: Event, now_s: float) -> list[Action]:
    """A gateway that answers all requests itself."""
    return [Reply(event.request.id, 429, "too much")] if isinstance(event, RequestArrived) else []


# --- clients and connections ------------------------------------------------------------------------------


def test_a_request_comes_and_goes() -> None:
    history = run(bare(), scenario(load=stream(keys=Keys(3, "sweep"), methods=(Method.POST, Method.GET))))
    assert history.answered().all() and len(history.attempts) == 200
    assert set(history.requests["echo"]) == {Echo.OWN}
    assert set(history.requests["answered_by"]) == {0}
    assert history.requests["key"][:4].tolist() == [0, 1, 2, 0]
    assert history.requests["method"][:2].tolist() == [Method.POST, Method.GET]
    assert history.all_requests().answered().latencies_s() == pytest.approx([SERVICE_S + WAY_S] * 200)
    assert history.attempts["start_s"] == pytest.approx(history.requests["sent_s"] + 2 * NETWORK_DELAY_S)


def test_the_gateway_is_told_what_a_balancer_could_see() -> None:
    gateway = bare()
    run(gateway, scenario(load=stream(requests=2, keys=Keys(1), methods=(Method.GET,), prompt_tokens=5)))
    first, second = (event.request for _, event in gateway.heard if isinstance(event, RequestArrived))
    assert (first.id, second.id) == (0, 1)
    assert first.model.startswith("m-") and first.model == second.model
    assert (first.kind, first.method, first.prompt_tokens) == (Kind.INFERENCE, "GET", 5)


def test_an_update_names_no_model() -> None:
    gateway = bare()
    run(gateway, scenario(load=stream(requests=1, kind=Kind.UPDATE)))
    (request,) = (event.request for _, event in gateway.heard if isinstance(event, RequestArrived))
    assert (request.kind, request.model) == (Kind.UPDATE, "")


@pytest.mark.parametrize(
    ("connections", "output_tokens", "used"),
    [(Connections.KEPT, 4, 1), (Connections.KEPT, 40, 3), (Connections.FRESH, 4, 200), (Connections.ONE, 40, 1)],
)
def test_connections(connections: Connections, output_tokens: int, used: int) -> None:
    """A request every 10 ms takes 2.9 ms or 20.9 ms: connections opened = requests open at a time."""
    gateway = bare()
    run(gateway, scenario(load=stream(connections=connections, output_tokens=output_tokens)))
    numbers = [event.request.connection for _, event in gateway.heard if isinstance(event, RequestArrived)]
    assert len(set(numbers)) == used


def test_one_connection_keeps_order_and_counts_from_the_intended_time() -> None:
    history = run(bare(), scenario(load=stream(connections=Connections.ONE, output_tokens=40)))
    requests, turn_s = history.requests, SERVICE_S + 36 * 0.0005 + WAY_S
    assert requests["sent_s"] == pytest.approx(np.arange(200) * turn_s)
    assert history.all_requests().answered().latencies_s() == pytest.approx(
        (np.arange(200) + 1) * turn_s - np.arange(200) * 0.01
    )
    assert set(requests["connection"]) == {0}
    assert np.all(np.diff(history.attempts["request"].astype(int)) == 1)


def test_a_client_that_gives_up_is_seen_by_all() -> None:
    """Service takes 1 s, the clients' timeout is 0.1 s."""
    gateway = bare()
    history = run(gateway, scenario(load=stream(requests=3, output_tokens=2000, timeout_s=0.1)))
    sent_s = history.requests["sent_s"]
    assert set(history.requests["failure"]) == {Failure.TIMEOUT} and set(history.requests["status"]) == {0}
    assert history.requests["end_s"] == pytest.approx(sent_s + 0.1)
    assert gateway.times_of(ClientGone) == pytest.approx(sent_s + 0.1 + NETWORK_DELAY_S)
    assert set(history.attempts["ending"]) == {Ending.CLIENT_GONE}
    assert history.attempts["end_s"] == pytest.approx(sent_s + 0.1 + 2 * NETWORK_DELAY_S)
    assert [event.error for _, event in gateway.heard if isinstance(event, AttemptEnded)] == ["aborted"] * 3


def test_a_request_that_gave_up_frees_the_only_connection() -> None:
    history = run(
        bare(), scenario(load=stream(requests=3, output_tokens=2000, timeout_s=0.1, connections=Connections.ONE))
    )
    assert history.requests["sent_s"] == pytest.approx([0.0, 0.1, 0.2])


def test_replies_of_the_gateway_are_nobodys_answer() -> None:
    history = run(Listening(refusing), scenario())
    assert set(history.requests["status"]) == {429} and set(history.requests["failure"]) == {Failure.NONE}
    assert set(history.requests["echo"]) == {Echo.NONE} and set(history.requests["answered_by"]) == {-1}
    assert not len(history.attempts) and not history.answered().any()


def test_an_answer_given_to_another_request_shows() -> None:
    heads: list[int] = []

    def crossing(event: Event, now_s: float) -> list[Action]:
        if isinstance(event, RequestArrived):
            return [Send(event.request.id, event.request.id, "gpu-0", 1.0)]
        if isinstance(event, ResponseHead):
            heads.append(event.attempt_id)
            return [Commit(0, 1), Commit(1, 0)] if len(heads) == 2 else []
        return []

    history = run(Listening(crossing), scenario(load=stream(requests=2)))
    assert history.requests["echo"].tolist() == [Echo.OTHER, Echo.OTHER]


# --- the gateway's actions --------------------------------------------------------------------------------


def test_timers_fire_once_can_be_moved_and_forgotten() -> None:
    def setting(event: Event, now_s: float) -> list[Action]:
        if not isinstance(event, MembershipChanged):
            return []
        moved: list[Action] = [SetTimer(1, 0.5), SetTimer(2, 0.1), SetTimer(2, 0.7)]
        return [*moved, SetTimer(3, 0.2), CancelTimer(3), SetTimer(4, -1.0), CancelTimer(99)]

    gateway = Listening(setting)
    run(gateway, scenario())
    fired = [(at_s, event.timer_id) for at_s, event in gateway.heard if isinstance(event, TimerFired)]
    assert fired == [(0.0, 4), (0.5, 1), (0.7, 2)]


def test_stale_ids_are_ignored() -> None:
    def stale(event: Event, now_s: float) -> list[Action]:
        return [Commit(0, 77), *refusing(event, now_s)]

    history = run(Listening(stale), scenario())
    assert set(history.requests["status"]) == {429}


def test_an_attempt_at_an_unknown_backend_is_reset() -> None:
    """As in the live world, where the backend has no address."""

    def lost(event: Event, now_s: float) -> list[Action]:
        if isinstance(event, RequestArrived):
            return [Send(event.request.id, event.request.id, "gpu-9", 1.0)]
        return [Reply(event.attempt_id, 502, str(event.error))] if isinstance(event, AttemptEnded) else []

    gateway = Listening(lost)
    history = run(gateway, scenario())
    assert {event.error for _, event in gateway.heard if isinstance(event, AttemptEnded)} == {"reset"}
    assert set(history.requests["status"]) == {502}


def test_events_are_never_nested() -> None:
    """The event of an attempt that an action ends at once is dispatched after the current event is handled."""
    depth = itertools.count()
    inside = [0]

    def careful(event: Event, now_s: float) -> list[Action]:
        assert not inside[0], "called again from within"
        inside[0] = 1
        next(depth)
        actions: list[Action] = []
        if isinstance(event, RequestArrived):
            actions = [Send(event.request.id, event.request.id, "gpu-0", 1.0)]
        elif isinstance(event, ResponseHead):
            actions = [Commit(event.attempt_id, event.attempt_id)]
        inside[0] = 0
        return actions

    history = run(Listening(careful), scenario())
    assert history.died is None and next(depth) == 1 + 3 * 200


# --- how a run ends ---------------------------------------------------------------------------------------


def dying_on(number: int, error: BaseException) -> Callable[[Event, float], list[Action]]:
    """A gateway that answers requests until the given one arrives."""

    def react(event: Event, now_s: float) -> list[Action]:
        if isinstance(event, RequestArrived) and event.request.id == number:
            raise error
        return refusing(event, now_s)

    return react


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("out of ideas"), "ValueError: out of ideas"),
        (SystemExit("enough\nof it"), "SystemExit: enough of it"),
        (GeneratorExit(), "GeneratorExit"),
    ],
)
def test_a_gateway_that_raises_has_died(error: BaseException, message: str) -> None:
    react = dying_on(7, error)
    history = run(Listening(react), scenario())
    line = react.__code__.co_firstlineno + 2
    assert history.died == f"{message} (test_world.py:{line}, on RequestArrived)"
    failures = history.requests["failure"].tolist()
    assert failures[:7] == [Failure.NONE] * 7
    assert failures[7:] == [Failure.OTHER] + [Failure.NOT_SENT] * 192


def test_a_gateway_that_returns_no_list_has_died() -> None:
    history = run(Listening(lambda event, now_s: None), scenario())  # type: ignore[arg-type, return-value]
    assert history.died == "AdapterError: handle() returned None; expected a list of actions (on MembershipChanged)"


def test_ctrl_c_is_not_the_gateways_death() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Listening(dying_on(7, KeyboardInterrupt())), scenario())


def test_a_gateway_that_never_answers_costs_every_client_its_patience() -> None:
    history = run(Listening(silent), scenario(load=stream(timeout_s=3.0)))
    assert history.died is None and not len(history.attempts)
    assert set(history.requests["failure"]) == {Failure.TIMEOUT}
    assert history.requests["end_s"] == pytest.approx(history.requests["sent_s"] + 3.0)


def test_behind_one_connection_most_are_never_sent() -> None:
    """The run ends 2 s after the last client's time limit: at 7 s, when two have timed out and a third is open."""
    history = run(Listening(silent), scenario(load=stream(timeout_s=3.0, connections=Connections.ONE)))
    failures = history.requests["failure"].tolist()
    assert failures == [Failure.TIMEOUT] * 2 + [Failure.OTHER] + [Failure.NOT_SENT] * 197
    assert np.isnan(history.requests["sent_s"][3:]).all()
    assert history.requests["sent_s"][:3].tolist() == [0.0, 3.0, 6.0] and PATIENCE_S == 2.0


def test_a_run_lasts_as_long_as_its_scenario() -> None:
    """Also without further events, as not every balancer sets timers."""
    what = scenario(load=stream(requests=1, timeout_s=0.1), phases=(Phase("after", 0.0, 5.0),))
    assert run(Listening(refusing), what).requests["status"].tolist() == [429]
    polling = bare()
    run(polling, what)
    assert polling.heard[-1][0] >= 4.5


def test_a_simulation_that_is_stuck_says_so() -> None:
    simulation = Simulation(GatewayOf(Listening(refusing)), scenario(load=stream(requests=1, timeout_s=0.1)), 1)
    simulation._clients.open += 1  # a request that nothing will ever end
    with pytest.raises(HarnessError, match=r"stuck at 0\.100 s: 1 requests and 0 attempts are open"):
        simulation.run()
