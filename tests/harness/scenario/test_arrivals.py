"""Arrivals are a function of load and seed, and follow the stated distributions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.scenario.arrival_rates import Constant, OnOff, Poisson, Recorded, Spike
from harness.scenario.arrivals import Arrival, draw, key_name, session_name, shard_of
from harness.scenario.model import Connections, Keys, Kind, Load, Method, Stream
from harness.scenario.request_mix import Content, Fixed, LongTail, Replay, Sessions


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
    observed = {(a.stream, a.connection, a.fresh) for a in draw(load(*streams), 1)}
    assert [form.value for form in Connections] == ["kept", "fresh", "one"]
    assert observed == {(0, -1, False), (1, -1, True), (2, 2, False)}


def test_keys_have_names_of_their_own_in_every_run() -> None:
    names = {key_name(seed, key) for seed in range(20) for key in range(50)}
    assert len(names) == 1000
    assert key_name(1, 2) == key_name(1, 2)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (Stream("x", 0.0, 1.0, 1, arrivals="bursty"), "expected constant or poisson"),
        (Stream("x", 0.0, 1.0, 1, keys=Keys(2, "cold")), "expected sweep, uniform, zipf or hot"),
    ],
)
def test_unknown_words_are_errors(stream: Stream, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(load(stream), 1)


# --- shapes -----------------------------------------------------------------------------------------------


def test_a_shape_takes_the_place_of_arrivals_rate_and_number() -> None:
    stream = Stream("shaped", 3.0, 1.0, 1, shape=OnOff(100.0, 1.0, 1.0, 10.0))
    times_s = np.array([arrival.at_s for arrival in draw(load(stream), 1)])
    assert 400 < len(times_s) < 600
    assert stream.end_s == 13.0
    assert ((times_s - 3.0) % 2.0 <= 1.0).all() and times_s.min() >= 3.0
    # Within the time that is on they are uniform.
    on_s = (times_s - 3.0) // 2.0 + (times_s - 3.0) % 2.0
    assert stats.kstest(on_s / 5.0, "uniform").pvalue > 1e-4


def test_plain_shapes_are_the_plain_words() -> None:
    even = draw(load(Stream("even", 1.0, 20.0, 100, keys=Keys(9))), 4)
    assert even == draw(load(Stream("even", 1.0, 1.0, 1, keys=Keys(9), shape=Constant(20.0, 5.0))), 4)
    free = [arrival.at_s for arrival in draw(load(replace(POISSON, requests=400)), 4)]
    shaped = [arrival.at_s for arrival in draw(load(replace(POISSON, shape=Poisson(100.0, 20.0))), 4)][:400]
    assert shaped == pytest.approx(free)


# --- keys -------------------------------------------------------------------------------------------------


def test_the_hot_key_moves() -> None:
    keys = Keys(8, "hot", hot_share=0.6, moves_every_s=10.0)
    arrivals = draw(load(Stream("hot", 5.0, 200.0, 6000, keys=keys)), 1)
    for number, hot in enumerate((0, 1, 2)):
        counts = Counter(a.key for a in arrivals if number * 10.0 <= a.at_s - 5.0 < (number + 1) * 10.0)
        total = sum(counts.values())
        assert stats.binomtest(counts[hot], total, 0.6).pvalue > 1e-4
        assert stats.chisquare([counts[key] for key in range(8) if key != hot]).pvalue > 1e-4
    alone = Stream("alone", 0.0, 100.0, 10, keys=Keys(1, "hot"))
    assert {a.key for a in draw(load(alone), 1)} == {0}
    still = Counter(a.key for a in draw(load(Stream("still", 0.0, 10.0, 900, keys=Keys(3, "hot", hot_share=0.8))), 1))
    assert still[0] > 0.7 * 900


def test_keys_can_have_names_of_their_own() -> None:
    named = Stream("named", 0.0, 100.0, 40, keys=Keys(2, names=("llama", "qwen")))
    assert {(a.key, a.key_text) for a in draw(load(named), 1)} == {(0, "llama"), (1, "qwen")}
    assert {a.key_text for a in draw(load(POISSON), 1)} == {""}
    for keys, message in [
        (Keys(2, names=("llama",)), "1 names for 2 keys"),
        (Keys(2, "hot", hot_share=1.5), "hot_share 1.5 or moves_every_s None: expected"),
        (Keys(2, "hot", moves_every_s=0.0), "hot_share 0.5 or moves_every_s 0.0: expected"),
    ]:
        with pytest.raises(ValueError, match=message):
            draw(load(replace(named, keys=keys)), 1)


# --- content ----------------------------------------------------------------------------------------------

TALK = Content(prompt=LongTail(20), output=LongTail(30), sessions=Sessions(6, 5), streaming_share=0.5)
CHAT = Stream("chat", 0.0, 100.0, 600, keys=Keys(5), content=TALK)


def test_content_changes_neither_times_nor_keys() -> None:
    content = Content(prompt=LongTail(90), high_share=0.5, streaming_share=0.5, payload_bytes=Fixed(9))
    bare, full = draw(load(POISSON), 1), draw(load(replace(POISSON, content=content)), 1)
    assert [(a.number, a.at_s, a.key) for a in bare] == [(a.number, a.at_s, a.key) for a in full]
    assert bare != full


def test_what_is_asked_reaches_the_arrival() -> None:
    content = Content(Fixed(70), Fixed(30), critical_share=1.0, streaming_share=1.0, payload_bytes=Fixed(5000),
                      abort_share=1.0, abort_after_s=0.5, fresh_share=1.0)  # fmt: skip
    first = draw(load(replace(POISSON, content=content)), 1)[0]
    assert (first.prompt_tokens, first.output_tokens, first.urgency) == (70, 30, "critical")
    assert (first.streams, first.payload_bytes, first.fresh) == (True, 5000, True)
    assert (first.abort_after_s, first.patience_s) == (0.5, 0.5)
    assert draw(load(POISSON), 1)[0].patience_s == POISSON.timeout_s
    assert replace(first, timeout_s=0.2).patience_s == 0.2


def test_a_get_has_no_body_to_pad_and_no_stream() -> None:
    content = Content(streaming_share=1.0, payload_bytes=Fixed(5000))
    arrivals = draw(load(Stream("both", 0.0, 10.0, 4, methods=(Method.POST, Method.GET), content=content)), 1)
    assert [(a.streams, a.payload_bytes) for a in arrivals] == [(True, 5000), (False, 0)] * 2


def test_an_update_has_no_key_and_is_posted() -> None:
    stream = replace(POISSON, methods=(Method.GET,), content=Content(update_share=0.5))
    observed = {(a.kind, a.method, a.key >= 0) for a in draw(load(stream), 1)}
    assert observed == {(Kind.UPDATE, Method.POST, False), (Kind.INFERENCE, Method.GET, True)}


def test_a_single_connection_is_never_fresh() -> None:
    stream = replace(POISSON, connections=Connections.ONE, content=Content(fresh_share=1.0))
    assert not any(a.fresh for a in draw(load(stream), 1))


def test_a_session_keeps_its_model_and_its_number_apart_from_other_streams() -> None:
    arrivals = draw(load(CHAT, replace(CHAT, name="again")), 1)
    models: dict[int, set[int]] = {}
    for arrival in arrivals:
        models.setdefault(arrival.session, set()).add(arrival.key)
    assert all(len(keys) == 1 for keys in models.values())
    assert len({key for keys in models.values() for key in keys}) == 5
    of_one, of_other = ({a.session for a in arrivals if a.stream == stream} for stream in (0, 1))
    assert not of_one & of_other
    assert len({session_name(1, session) for session in of_one | of_other}) == len(of_one) + len(of_other)
    assert session_name(1, 0) != session_name(2, 0)
    late = max(arrivals, key=lambda arrival: arrival.turn)
    assert late.turn == 4 and late.shared_tokens == sum(late.history) > 0


def test_a_replay_brings_its_own_keys() -> None:
    replay = Replay(prompt_tokens=(5, 6, 7), keys=(1, -1, 0))
    stream = Stream(
        "trace",
        0.0,
        1.0,
        3,
        keys=Keys(2, names=("a", "b")),
        shape=Recorded((0.0, 0.1, 0.1)),
        content=Content(replay=replay),
    )
    arrivals = draw(load(stream), 1)
    assert [(a.at_s, a.prompt_tokens, a.key, a.key_text) for a in arrivals] == [
        (0.0, 5, 1, "b"), (0.1, 6, -1, ""), (0.1, 7, 0, "a"),
    ]  # fmt: skip


# --- shares of workers ------------------------------------------------------------------------------------

CROWD = load(
    replace(POISSON, shape=Spike(20.0, 200.0, 1.0, 1.0, 5.0)),
    CHAT,
    Stream("lane", 0.0, 20.0, 100, connections=Connections.ONE),
)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 9), st.integers(0, 5))
def test_all_shares_together_are_the_whole(workers: int, seed: int) -> None:
    whole = draw(CROWD, seed)
    shares = [shard_of(draw(CROWD, seed), worker, workers) for worker in range(workers)]
    together = [arrival for share in shares for arrival in share]
    assert len(together) == len(whole)
    assert tuple(sorted(together, key=lambda arrival: arrival.number)) == whole
    homes: dict[tuple[int, int], set[int]] = {}
    for worker, share in enumerate(shares):
        assert [a.number for a in share] == sorted(a.number for a in share)
        for arrival in share:
            if arrival.session >= 0 or arrival.connection >= 0:
                homes.setdefault((arrival.session, arrival.connection), set()).add(worker)
    assert all(len(workers_of) == 1 for workers_of in homes.values())


def test_shares_are_about_equal_all_along() -> None:
    for one in (POISSON, CHAT):
        parts: list[tuple[Arrival, ...]] = [shard_of(draw(load(one), 1), worker, 4) for worker in range(4)]
        sizes = [len(part) for part in parts]
        assert max(sizes) < 1.2 * min(sizes)
    for worker in (-1, 4):
        with pytest.raises(ValueError, match=f"worker {worker} of 4: expected 0 to 3"):
            shard_of((), worker, 4)
