"""Every profile keeps its rate and length, can be put on the wire, and shows what it is for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from harness.arrivals import draw
from harness.load.profiles import PROFILES, load_of
from harness.load.wire import request_of
from harness.model import ClaimsError, Kind, Load, Method
from harness.shapes import expected

DRAWN = sorted(set(PROFILES) - {"trace"})
RATE, LENGTH_S = 100.0, 40.0


def test_the_profiles_there_are() -> None:
    assert DRAWN == [
        "bursts", "chat", "diurnal", "hot-model", "long-tail", "mixed", "on-off", "payloads", "poisson", "ramp",
        "spike", "steady", "step",
    ]  # fmt: skip
    assert all(name == profile.name and len(profile.about) > 40 for name, profile in PROFILES.items())


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize(("rate_per_s", "duration_s"), [(RATE, LENGTH_S), (3.0, 7.0), (0.2, 30.0)])
def test_rate_and_length_are_the_asked_ones(name: str, rate_per_s: float, duration_s: float) -> None:
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
def test_every_request_can_be_put(name: str) -> None:
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


def test_a_chat_comes_back_after_some_seconds() -> None:
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


def test_a_trace_is_played_at_the_asked_rate(tmp_path: Path) -> None:
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
    ("name", "rate_per_s", "duration_s", "told"),
    [
        ("stedy", 1.0, 1.0, "load profile 'stedy' is unknown; did you mean steady"),
        ("trace", 1.0, 1.0, "write trace:FILE"),
        ("trace:nowhere.csv", 1.0, 1.0, "nowhere.csv: cannot read the trace"),
        ("steady", 0.0, 1.0, "rate 0 of the load: expected a number above 0"),
        ("steady", 1.0, float("nan"), "duration nan of the load"),
    ],
)
def test_what_cannot_be_loaded(name: str, rate_per_s: float, duration_s: float, told: str) -> None:
    with pytest.raises(ClaimsError, match=told):
        load_of(name, rate_per_s, duration_s)
