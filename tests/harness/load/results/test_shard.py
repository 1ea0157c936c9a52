"""What the engines have in common: what was sent, what was not, and how many may be under way."""

from __future__ import annotations

import resource

import pytest

from harness.load.job import LoadJob
from harness.load.results import shard as share
from harness.load.results.answer import ExchangeResult
from harness.load.results.shard import MOST_IN_FLIGHT, SPARE_DESCRIPTORS, SPARE_S, Shard, most_in_flight
from harness.scenario.model import Chats, Failure, Load, Stream
from harness.scenario.request_mix import Content


def shared(*streams: Stream, **others: int) -> Shard:
    return Shard(LoadJob(Load(streams), 1, 5, "http://127.0.0.1:9", 100.0, ("gpu-0",), "", **others))  # type: ignore[arg-type]


OPEN = Stream("open", 0.0, 10.0, 4, timeout_s=3.0)
TALK = Stream("chats", 1.0, 10.0, 4, timeout_s=5.0, chats=Chats(3, 0.1, 2.0))


def test_it_lasts_until_the_last_can_have_ended() -> None:
    assert shared(OPEN).ends_s == pytest.approx(100.0 + 0.3 + 3.0 + SPARE_S)
    assert shared(OPEN, TALK).lasts_s == pytest.approx(3.0 + 5.0 + SPARE_S)


def test_what_was_not_sent_is_recorded_once() -> None:
    mine = shared(OPEN)
    first, second, *_ = mine.arrivals
    mine.begun(first)
    mine.ended(first, "0" * 13, ExchangeResult(Failure.NONE, 200, 100.01, 100.02, 100.03), 100.0)
    mine.begun(second)
    mine.add_unsent()
    mine.add_unsent()
    assert [(row["number"], row["failure"]) for row in mine.ledger.rows()] == [
        (0, Failure.NONE), (2, Failure.NOT_SENT), (3, Failure.NOT_SENT),
    ]  # fmt: skip
    assert mine.sent == 2
    assert mine.ledger.lateness_s == pytest.approx([0.01])


def test_who_means_to_leave_is_known_once_it_is_sent() -> None:
    mine = shared(Stream("open", 0.0, 10.0, 3, content=Content(abort_share=1.0, abort_after_s=0.1)))
    assert not mine.leaving
    mine.begun(mine.arrivals[1])
    assert mine.leaving == {1}


def test_it_is_full_while_as_many_as_may_be_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "most_in_flight", lambda: 2)
    mine = shared(OPEN)
    for arrival in mine.arrivals[:2]:
        assert not mine.full
        mine.begun(arrival)
    assert mine.full
    mine.ended(mine.arrivals[0], "0" * 13, ExchangeResult(), 100.0)
    assert not mine.full


def test_more_chats_than_connections_are_refused_but_may_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "most_in_flight", lambda: 2)
    with pytest.raises(ValueError, match="3 chats: at most 2 connections may be open here"):
        shared(TALK)
    assert len(shared(TALK, worker=0, workers=2).crowd.users) == 2


def test_files_limit_what_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((1024, 1024 - SPARE_DESCRIPTORS), (50, 1), (resource.RLIM_INFINITY, MOST_IN_FLIGHT)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_in_flight() == most
