"""The state of a shard: sent and unsent requests, and the cap of requests in flight."""

from __future__ import annotations

import resource

import pytest

from harness.load.job import LoadJob
from harness.load.results import shard
from harness.load.results.answer import ExchangeResult
from harness.load.results.shard import MOST_IN_FLIGHT, SPARE_DESCRIPTORS, SPARE_S, Shard, most_in_flight
from harness.scenario.model import Chats, Failure, Load, Stream
from harness.scenario.request_mix import Content


def shard_of_job(*streams: Stream, **others: int) -> Shard:
    return Shard(LoadJob(Load(streams), 1, 5, "http://127.0.0.1:9", 100.0, ("gpu-0",), "", **others))  # type: ignore[arg-type]


OPEN = Stream("open", 0.0, 10.0, 4, timeout_s=3.0)
CLOSED = Stream("closed", 1.0, 10.0, 4, timeout_s=5.0, chats=Chats(3, 0.1, 2.0))


def test_it_lasts_until_the_last_possible_timeout() -> None:
    assert shard_of_job(OPEN).ends_s == pytest.approx(100.0 + 0.3 + 3.0 + SPARE_S)
    assert shard_of_job(OPEN, CLOSED).lasts_s == pytest.approx(3.0 + 5.0 + SPARE_S)


def test_unsent_requests_are_recorded_once() -> None:
    state = shard_of_job(OPEN)
    first, second, *_ = state.arrivals
    state.request_sent(first)
    state.request_ended(first, "0" * 13, ExchangeResult(Failure.NONE, 200, 100.01, 100.02, 100.03), 100.0)
    state.request_sent(second)
    state.add_unsent()
    state.add_unsent()
    assert [(row["number"], row["failure"]) for row in state.ledger.rows()] == [
        (0, Failure.NONE), (2, Failure.NOT_SENT), (3, Failure.NOT_SENT),
    ]  # fmt: skip
    assert state.sent == 2
    assert state.ledger.delays_s == pytest.approx([0.01])


def test_a_client_that_aborts_is_known_once_its_request_is_sent() -> None:
    state = shard_of_job(Stream("open", 0.0, 10.0, 3, content=Content(abort_share=1.0, abort_after_s=0.1)))
    assert not state.leaving
    state.request_sent(state.arrivals[1])
    assert state.leaving == {1}


def test_it_is_full_while_the_cap_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "most_in_flight", lambda: 2)
    state = shard_of_job(OPEN)
    for arrival in state.arrivals[:2]:
        assert not state.full
        state.request_sent(arrival)
    assert state.full
    state.request_ended(state.arrivals[0], "0" * 13, ExchangeResult(), 100.0)
    assert not state.full


def test_more_virtual_users_than_connections_are_refused_but_may_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "most_in_flight", lambda: 2)
    with pytest.raises(ValueError, match="3 virtual users: this process can open at most 2 connections"):
        shard_of_job(CLOSED)
    assert len(shard_of_job(CLOSED, worker=0, workers=2).virtual_users.users) == 2


def test_the_limit_of_open_files_lowers_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((1024, 1024 - SPARE_DESCRIPTORS), (50, 1), (resource.RLIM_INFINITY, MOST_IN_FLIGHT)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_in_flight() == most
