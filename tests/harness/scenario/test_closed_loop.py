"""The closed loop without a balancer: requests of virtual users, their order and their times."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.scenario.arrival_rates import Poisson
from harness.scenario.arrivals import draw, stream_arrivals
from harness.scenario.closed_loop import BACK_OFF_S, VirtualUser, VirtualUsers, answer_failed
from harness.scenario.model import Chats, Connections, Failure, Keys, Load, Stream
from harness.scenario.request_mix import Content, Fixed, Sessions

THREE = Chats(count=3, think_s=0.5, duration_s=10.0)


def load(*others: Stream, chats: Chats = THREE, **fields: object) -> Load:
    """One closed loop, and others."""
    settings: dict[str, object] = {"requests": 6, "keys": Keys(6, "sweep"), **fields}
    return Load((Stream("chats", 1.0, 10.0, chats=chats, **settings), *others))  # type: ignore[arg-type]


def times_of(user: VirtualUser) -> list[float]:
    """When a user sends requests whose answers take no time."""
    found, at_s = [], user.due_s(user.start_s)
    while at_s is not None:
        found.append(at_s)
        at_s = user.due_s(at_s)
    return found


def test_times_to_think_are_drawn_and_exponential() -> None:
    many = Chats(count=200, think_s=0.5, duration_s=20.0)
    times = [times_of(user) for user in VirtualUsers(load(chats=many), 1, 0).users]
    assert times == [times_of(user) for user in VirtualUsers(load(chats=many), 1, 0).users]
    assert times != [times_of(user) for user in VirtualUsers(load(chats=many), 2, 0).users]
    gaps = sorted(later - at_s for one in times for at_s, later in zip([1.0, *one], one, strict=False))
    assert len(gaps) == pytest.approx(200 * 20 / 0.5, rel=0.05)
    assert sum(gaps) / len(gaps) == pytest.approx(0.5, rel=0.05)
    assert gaps[len(gaps) // 2] == pytest.approx(0.5 * 0.693, rel=0.1)
    assert all(1.0 < at_s < 21.0 for one in times for at_s in one)


def test_a_failure_is_thought_over() -> None:
    (user,) = VirtualUsers(load(chats=Chats(1, 0.0, 1.0)), 1, 0).users
    assert user.due_s(1.5) == 1.5
    assert user.due_s(1.5, failed=True) == 1.5 + BACK_OFF_S
    assert user.due_s(1.99, failed=True) is None
    assert user.due_s(2.0) is None


def test_requests_are_asked_in_turn_and_over_again() -> None:
    loop = VirtualUsers(load(), 1, first=40)
    first, second, _ = loop.users
    sent = [user.next_request(7.5) for user in (first, second, second, first, second, second, first, first)]
    assert [arrival.number for arrival in sent] == list(range(40, 48))
    assert [arrival.key for arrival in sent] == [0, 1, 2, 3, 4, 5, 0, 1]
    assert {arrival.at_s for arrival in sent} == {7.5}


def test_a_chat_keeps_to_its_session() -> None:
    """Turns follow each other, each with the history before it, and no other user sends one in between."""
    content = Content(prompt=Fixed(3), output=Fixed(5), sessions=Sessions(2, 3))
    loop = VirtualUsers(load(requests=60, content=content), 1, 0)
    sent = {number: [user.next_request(0.0) for _ in range(12)] for number, user in enumerate(loop.users[:2])}
    for arrivals in sent.values():
        for before, after in pairwise(arrivals):
            assert (after.session, after.turn) == (before.session, before.turn + 1) or after.turn == 0
    assert not {one.session for one in sent[0]} & {one.session for one in sent[1]}


def test_the_open_loop_beside_it_is_drawn_as_ever() -> None:
    alone = Stream("open", 0.0, 10.0, 5, Keys(9), arrivals="poisson")
    without = draw(Load((Stream("none", 0.0, 1.0, 0), alone)), 3)
    assert draw(load(alone), 3) == without
    assert len(without) == 5
    assert [one.at_s for one in stream_arrivals(load(), 0, 3)] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])


def test_workers_share_chats_and_numbers() -> None:
    shards = [VirtualUsers(load(), 1, 10, worker, 2) for worker in (0, 1)]
    assert [len(shard.users) for shard in shards] == [2, 1]
    assert [[user.next_request(0.0).number for user in shard.users] for shard in shards] == [[10, 12], [11]]
    times = [times_of(user) for shard in shards for user in shard.users]
    assert sorted(times) == sorted(times_of(user) for user in VirtualUsers(load(), 1, 0).users)


def test_no_two_workers_hold_the_same_conversation() -> None:
    content = Content(prompt=Fixed(3), output=Fixed(5), sessions=Sessions(4, 3))
    shards = [VirtualUsers(load(requests=60, content=content), 1, 0, worker, 2) for worker in (0, 1)]
    held = [{user.next_request(0.0).session for user in shard.users for _ in range(6)} for shard in shards]
    assert len(held[0]) > 1 and not held[0] & held[1]
    few = [VirtualUsers(load(requests=1), 1, 0, worker, 2).users[0].next_request(0.0) for worker in (0, 1)]
    assert [one.key for one in few] == [0, 0]


@pytest.mark.parametrize(
    ("failure", "status", "backs_off"),
    [(Failure.NONE, 200, False), (Failure.NONE, 399, False), (Failure.NONE, 400, True), (Failure.TIMEOUT, 0, True)],
)
def test_what_makes_a_chat_back_off(failure: Failure, status: int, backs_off: bool) -> None:
    assert answer_failed(failure, status) is backs_off


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chats": Chats(0, 0.5, 1.0)}, "0 chats"),
        ({"chats": Chats(1, -0.5, 1.0)}, "think -0.5 s"),
        ({"chats": Chats(1, float("nan"), 1.0)}, "think nan s"),
        ({"requests": 0}, "ask for 0 requests"),
        ({"connections": Connections.ONE}, "neither a shape nor a single connection"),
        ({"shape": Poisson(10.0, 1.0)}, "neither a shape nor a single connection"),
    ],
)
def test_what_cannot_be_played(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VirtualUsers(load(**changes), 1, 0)  # type: ignore[arg-type]


def test_a_closed_loop_lasts_as_long_as_it_says() -> None:
    (stream,) = load().streams
    assert stream.end_s == 11.0
