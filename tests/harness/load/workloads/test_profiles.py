"""Every profile keeps its rate and length, can be sent as HTTP requests, and has its specific property."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from harness.load.wire import request_of
from harness.load.workloads.profiles import (
    LEAST_DIFFERENT,
    MOST_DIFFERENT,
    PROFILES,
    closed_loop,
    closed_loop_of,
    load_of,
    planned,
)
from harness.scenario.arrival_rates import expected
from harness.scenario.arrivals import draw, stream_arrivals
from harness.scenario.closed_loop import VirtualUsers
from harness.scenario.model import Chats, ClaimsError, Connections, Kind, Load, Method, Stream

DRAWN = sorted(set(PROFILES) - {"trace"})
RATE, LENGTH_S = 100.0, 40.0


def test_names_of_profiles() -> None:
    assert DRAWN == [
        "bursts", "chat", "diurnal", "hot-model", "long-tail", "mixed", "on-off", "payloads", "poisson", "ramp",
        "spike", "steady", "step",
    ]  # fmt: skip
    assert all(name == profile.name and len(profile.about) > 40 for name, profile in PROFILES.items())


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize(("rate_per_s", "duration_s"), [(RATE, LENGTH_S), (3.0, 7.0), (0.2, 30.0)])
def test_rate_and_length_are_as_requested(name: str, rate_per_s: float, duration_s: float) -> None:
    (stream,) = load_of(name, rate_per_s, duration_s).streams
    assert stream.shape is not None
    assert expected(stream.shape) == pytest.approx(rate_per_s * duration_s)
    assert stream.shape.duration_s == stream.end_s == duration_s
    assert stream.rate_per_s == pytest.approx(rate_per_s)
    assert stream.requests == round(rate_per_s * duration_s)


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_seed_is_the_same_load_also_through_json(name: str) -> None:
    load, form = load_of(name, 20.0, 10.0), TypeAdapter(Load)
    again = form.validate_json(form.dump_json(load))
    assert again == load
    assert draw(again, 3) == draw(load, 3)
    if name != "steady":
        assert [a.at_s for a in draw(load, 3)] != [a.at_s for a in draw(load, 4)]


@pytest.mark.parametrize("name", DRAWN)
def test_every_request_has_an_http_form(name: str) -> None:
    arrivals = draw(load_of(name, 10.0, 5.0), 1)
    protocols = ["http"] if name == "mixed" else ["http", "openai", "chat"]
    if not any(arrival.streams for arrival in arrivals):
        protocols.append("kserve")
    for protocol in protocols:
        for arrival in arrivals:
            assert request_of(arrival, "header:x-model-id", 1, 1, protocol).encoded("h:1")


def test_mixed_has_something_of_everything() -> None:
    arrivals = draw(load_of("mixed", RATE, LENGTH_S), 1)
    assert {a.kind for a in arrivals} == set(Kind)
    assert {a.method for a in arrivals} == set(Method)
    assert {a.urgency for a in arrivals} == {"normal", "high", "critical"}
    assert {a.streams for a in arrivals} == {a.fresh for a in arrivals} == {True, False}
    assert any(a.abort_after_s for a in arrivals)


def test_the_hot_model_moves_four_times() -> None:
    arrivals = draw(load_of("hot-model", RATE, LENGTH_S), 1)
    hot = [Counter(a.key for a in arrivals if n * 8 <= a.at_s < n * 8 + 8).most_common(1)[0] for n in range(5)]
    assert len({key for key, _ in hot}) == 5
    assert all(count > 0.5 * RATE * 8 for _, count in hot)


def test_turns_of_a_chat_follow_after_some_seconds() -> None:
    arrivals = draw(load_of("chat", 10.0, 60.0), 1)
    last: dict[int, float] = {}
    gaps_s = []
    for arrival in arrivals:
        if arrival.turn:
            gaps_s.append(arrival.at_s - last[arrival.session])
        last[arrival.session] = arrival.at_s
    assert 4.0 < np.mean(gaps_s) < 6.0
    assert max(a.turn for a in arrivals) == 5
    assert all(a.streams for a in arrivals)


def test_long_tails_are_long() -> None:
    prompts = np.array([a.prompt_tokens for a in draw(load_of("long-tail", RATE, LENGTH_S), 1)])
    assert np.quantile(prompts, 0.99) > 10 * np.median(prompts)
    bodies = np.array([a.payload_bytes for a in draw(load_of("payloads", RATE, LENGTH_S), 1)])
    assert bodies.max() > 2_000_000 and np.median(bodies) < 50_000


def test_a_trace_has_the_requested_rate(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:{n // 60:02}:{n % 60:02}.6805900,{100 + n},{n + 1}" for n in range(600)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    arrivals = draw(load_of(f"trace:{path}", 20.0, 15.0), 1)
    assert [a.prompt_tokens for a in arrivals] == [100 + n for n in range(300)]
    assert arrivals[-1].at_s == pytest.approx(15.0)
    assert np.allclose(np.diff([a.at_s for a in arrivals]), 15.0 / 299)
    fewer = draw(load_of(f"trace:{path}", 20.0, 300.0), 1)
    assert len(fewer) == 600
    assert fewer[-1].at_s == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("name", "rate_per_s", "duration_s", "message"),
    [
        ("stedy", 1.0, 1.0, "load profile 'stedy' is unknown; did you mean steady"),
        ("trace", 1.0, 1.0, "write trace:FILE"),
        ("trace:nowhere.csv", 1.0, 1.0, "nowhere.csv: cannot read the trace"),
        ("steady", 0.0, 1.0, "rate 0 of the load: expected a number above 0"),
        ("steady", 1.0, float("nan"), "duration nan of the load"),
    ],
)
def test_invalid_profiles_rates_and_lengths(name: str, rate_per_s: float, duration_s: float, message: str) -> None:
    with pytest.raises(ClaimsError, match=message):
        load_of(name, rate_per_s, duration_s)


# --- closed loops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_virtual_users_send_the_requests_of_their_load(name: str) -> None:
    load = load_of(name, 20.0, 10.0)
    (open_loop,), (stream,) = load.streams, closed_loop(load, 7, 0.5).streams
    assert stream.chats == Chats(7, 0.5, 10.0) and stream.shape is None
    assert stream.end_s == open_loop.end_s == 10.0
    same = ("name", "keys", "kind", "methods", "connections", "prompt_tokens", "output_tokens", "timeout_s", "requests")
    assert all(getattr(stream, field) == getattr(open_loop, field) for field in same)
    if name == "chat":
        assert open_loop.content and open_loop.content.sessions and stream.content
        seven = replace(open_loop.content.sessions, count=7)
        assert stream.content == replace(open_loop.content, sessions=seven), "as many conversations as virtual users"
    else:
        assert stream.content == open_loop.content
    assert draw(closed_loop(load, 7, 0.5), 1) == () and len(VirtualUsers(closed_loop(load, 7, 0.5), 1, 0).users) == 7
    assert planned(closed_loop(load, 7, 0.5)) == 200


def test_virtual_users_have_whole_conversations_in_a_short_load() -> None:
    turns = Counter(arrival.session for arrival in stream_arrivals(closed_loop_of("chat", 10, 0.1, 2.0), 0, 1))
    assert sum(count == 6 for count in turns.values()) > 0.8 * len(turns)


def test_number_of_different_requests_of_virtual_users() -> None:
    found = {
        case: planned(closed_loop_of("poisson", *case)) for case in [(1, 1.0, 10.0), (50, 0.4, 30.0), (500, 0.0, 60.0)]
    }
    assert list(found.values()) == [LEAST_DIFFERENT, pytest.approx(50 * 61, abs=2), MOST_DIFFERENT]
    assert closed_loop_of("poisson", 3, 0.0, 12.0).streams[0].chats == Chats(3, 0.0, 12.0)


def test_virtual_users_send_the_requests_of_a_trace_for_the_requested_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,input,output\n" + "".join(f"{n},{100 + n},1\n" for n in range(5)))
    load = closed_loop_of(f"trace:{path}", 3, 0.0, 12.0)
    assert load.streams[0].chats == Chats(3, 0.0, 12.0)
    assert [arrival.prompt_tokens for arrival in stream_arrivals(load, 0, 1)] == [100, 101, 102, 103, 104]


ONE = Stream("one", 0.0, 1.0, 1)


@pytest.mark.parametrize(
    ("streams", "count", "think_s", "message"),
    [
        ((ONE, ONE), 1, 1.0, "only a load of one stream"),
        ((), 1, 1.0, "only a load of one stream"),
        ((replace(ONE, connections=Connections.ONE),), 1, 1.0, "on many connections"),
        ((replace(ONE, requests=0),), 1, 1.0, "a load without requests"),
        ((ONE,), 0, 1.0, "0 virtual users, think time 1 s: expected at least 1 user"),
        ((ONE,), 1, -1.0, "expected at least 1 user and a time of at least 0"),
        ((ONE,), 1, math.inf, "a time of at least 0"),
    ],
)
def test_loads_without_a_closed_loop(streams: tuple[Stream, ...], count: int, think_s: float, message: str) -> None:
    with pytest.raises(ClaimsError, match=message):
        closed_loop(Load(streams), count, think_s)


def test_invalid_closed_loops() -> None:
    with pytest.raises(ClaimsError, match="'spike' as a closed loop: expected one of constant rate"):
        closed_loop_of("spike", 3, 1.0, 10.0)
    with pytest.raises(ClaimsError, match="200 virtual users for 1200 s may send 2400200 requests"):
        closed_loop_of("poisson", 200, 0.0, 1200.0)
    for count, think_s, message in ((0, 1.0, "0 virtual users"), (1, -1.0, "1 virtual users, think time -1 s")):
        with pytest.raises(ClaimsError, match=message):
            closed_loop_of("poisson", count, think_s, 10.0)
