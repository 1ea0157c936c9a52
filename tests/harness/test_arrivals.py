"""Arrivals are a function of load and seed, and follow the laws they claim."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from harness.arrivals import draw, key_name
from harness.model import Connections, Keys, Kind, Load, Method, Stream


def load(*streams: Stream) -> Load:
    return Load(streams)


POISSON = Stream("poisson", 0.0, 100.0, 5000, keys=Keys(50), arrivals="poisson")


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert draw(load(POISSON), 1) == draw(load(POISSON), 1)


def test_another_seed_gives_another_schedule() -> None:
    one, two = draw(load(POISSON), 1), draw(load(POISSON), 2)
    assert [arrival.at_s for arrival in one] != [arrival.at_s for arrival in two]
    assert [arrival.key for arrival in one] != [arrival.key for arrival in two]


def test_one_stream_does_not_disturb_another() -> None:
    alone = draw(load(POISSON), 1)
    company = draw(load(POISSON, Stream("more", 0.0, 300.0, 900, arrivals="poisson")), 1)
    assert [a.at_s for a in company if a.stream == 0] == [a.at_s for a in alone]
    assert [a.key for a in company if a.stream == 0] == [a.key for a in alone]


def test_sweep_takes_all_keys_in_order() -> None:
    arrivals = draw(load(Stream("sweep", 0.0, 100.0, 10, keys=Keys(4, "sweep"))), 1)
    assert [arrival.key for arrival in arrivals] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_no_keys_is_minus_one() -> None:
    assert {arrival.key for arrival in draw(load(Stream("plain", 0.0, 100.0, 10)), 1)} == {-1}


def test_constant_spacing() -> None:
    arrivals = draw(load(Stream("constant", 2.0, 50.0, 100)), 1)
    times_s = np.array([arrival.at_s for arrival in arrivals])
    assert times_s[0] == 2.0
    assert np.allclose(np.diff(times_s), 0.02)


def test_poisson_gaps_are_exponential() -> None:
    times_s = np.array([0.0, *(arrival.at_s for arrival in draw(load(POISSON), 1))])
    gaps_s = np.diff(times_s)
    assert (gaps_s > 0).all()
    assert stats.kstest(gaps_s, "expon", args=(0, 1 / 100.0)).pvalue > 0.01
    # Neighbouring gaps are independent: their correlation is normal with deviation 1/sqrt(n).
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 4 / np.sqrt(len(gaps_s))


def test_numbered_by_time_across_streams() -> None:
    late = Stream("late", 0.5, 100.0, 100, arrivals="poisson")
    arrivals = draw(load(late, Stream("early", 0.0, 30.0, 40)), 3)
    assert [arrival.number for arrival in arrivals] == list(range(140))
    times_s = [arrival.at_s for arrival in arrivals]
    assert times_s == sorted(times_s)
    assert {arrival.stream for arrival in arrivals} == {0, 1}


def test_at_equal_times_the_earlier_stream_goes_first() -> None:
    twins = load(Stream("first", 0.0, 10.0, 3), Stream("second", 0.0, 10.0, 3))
    assert [arrival.stream for arrival in draw(twins, 1)] == [0, 1, 0, 1, 0, 1]


def test_uniform_keys_are_even() -> None:
    counts = Counter(arrival.key for arrival in draw(load(POISSON), 1))
    assert stats.chisquare([counts[key] for key in range(50)]).pvalue > 0.01


def test_zipf_follows_its_law_and_is_more_skewed_than_uniform() -> None:
    zipf = Stream("zipf", 0.0, 100.0, 5000, keys=Keys(50, "zipf", 1.2), arrivals="poisson")
    counts = Counter(arrival.key for arrival in draw(load(zipf), 1))
    even = Counter(arrival.key for arrival in draw(load(POISSON), 1))
    assert counts[0] > 3 * max(even.values())
    weights = np.arange(1, 51, dtype=float) ** -1.2
    assert stats.chisquare([counts[key] for key in range(50)], 5000 * weights / weights.sum()).pvalue > 0.01


def test_fields_come_from_the_stream() -> None:
    stream = Stream(
        "all",
        0.0,
        10.0,
        4,
        kind=Kind.INFERENCE,
        methods=(Method.POST, Method.GET),
        prompt_tokens=9,
        output_tokens=5,
        timeout_s=3.0,
    )
    arrivals = draw(load(stream), 1)
    assert [arrival.method for arrival in arrivals] == [Method.POST, Method.GET] * 2
    assert {(a.kind, a.prompt_tokens, a.output_tokens, a.timeout_s) for a in arrivals} == {(Kind.INFERENCE, 9, 5, 3.0)}


def test_connections() -> None:
    streams = [Stream(form.value, 0.0, 10.0, 2, connections=form) for form in Connections]
    seen = {(a.stream, a.connection, a.fresh) for a in draw(load(*streams), 1)}
    assert [form.value for form in Connections] == ["kept", "fresh", "one"]
    assert seen == {(0, -1, False), (1, -1, True), (2, 2, False)}


def test_keys_have_names_of_their_own_in_every_run() -> None:
    names = {key_name(seed, key) for seed in range(20) for key in range(50)}
    assert len(names) == 1000
    assert key_name(1, 2) == key_name(1, 2)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (Stream("x", 0.0, 1.0, 1, arrivals="bursty"), "expected constant or poisson"),
        (Stream("x", 0.0, 1.0, 1, keys=Keys(2, "hot")), "expected sweep, uniform or zipf"),
    ],
)
def test_unknown_words_are_errors(stream: Stream, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(load(stream), 1)
