"""Each toxic on hand-fed chunks, with time as a number."""

from __future__ import annotations

from random import Random

import pytest

from harness.toxiproxy.chain import CHUNK_BYTES, Chain
from harness.toxiproxy.connection_log import CloseCause
from harness.toxiproxy.stage import Toxic
from harness.toxiproxy.toxics import TOXIC_TYPES
from tests.harness.toxiproxy.rig import Sink


def toxic(kind: str, toxicity: float = 1.0, **attributes: int) -> Toxic:
    complete = {**dict.fromkeys(TOXIC_TYPES[kind].attribute_names, 0), **attributes}
    return Toxic(f"{kind}_downstream", kind, "downstream", toxicity, complete)


def chain_of(*toxics: Toxic, seed: int = 1, now_s: float = 0.0) -> tuple[Chain, Sink]:
    sink = Sink()
    return Chain(toxics, sink, Random(seed), now_s), sink


def arrivals(chain: Chain, sink: Sink, until_s: float) -> list[tuple[float, bytes]]:
    """Run a chain at its wake times up to `until_s`; returns time and data of each arrival, rounded to 1 µs."""
    observed = []
    now_s = 0.0
    while now_s <= until_s:
        wake_s = chain.run(now_s)
        observed += [(round(now_s, 6), data) for data in sink.take()]
        if wake_s is None:
            break
        assert wake_s > now_s, "would spin"
        now_s = wake_s
    return observed


def test_noop_passes_data_and_end() -> None:
    chain, sink = chain_of(toxic("noop"))
    chain.feed(b"abc", 0.0)
    chain.end(CloseCause.CLIENT)
    assert chain.run(0.0) is None
    assert sink.state() == ([b"abc"], CloseCause.CLIENT)


def test_data_is_cut_into_chunks_before_the_toxics() -> None:
    chain, sink = chain_of(toxic("noop"))
    chain.feed(b"x" * (2 * CHUNK_BYTES + 1), 0.0)
    chain.run(0.0)
    assert [len(data) for data in sink.chunks] == [CHUNK_BYTES, CHUNK_BYTES, 1]


# Latency.


def test_latency_counts_from_the_stamp_of_each_chunk() -> None:
    chain, sink = chain_of(toxic("latency", latency=200))
    chain.feed(b"a", 0.0)
    chain.feed(b"b", 0.03)
    assert arrivals(chain, sink, 1.0) == [(0.2, b"a"), (0.23, b"b")]


def test_latency_never_lets_a_chunk_go_early() -> None:
    chain, sink = chain_of(toxic("latency", latency=200))
    chain.feed(b"a", 0.0)
    assert chain.run(0.1999999) == 0.2
    assert sink.chunks == []


def test_latency_delays_an_end_only_behind_data() -> None:
    chain, sink = chain_of(toxic("latency", latency=200))
    chain.end(CloseCause.CLIENT)
    chain.run(0.0)
    assert sink.ending is CloseCause.CLIENT

    chain, sink = chain_of(toxic("latency", latency=200))
    chain.feed(b"a", 0.0)
    chain.end(CloseCause.CLIENT)
    chain.run(0.1)
    assert sink.ending is None
    chain.run(0.2)
    assert sink.state() == ([b"a"], CloseCause.CLIENT)


def test_latencies_in_a_row_add_up_for_queued_chunks_too() -> None:
    first, second = toxic("latency", latency=100), toxic("latency", latency=100)
    chain, sink = chain_of(first, second)
    for number in range(3):
        chain.feed(bytes([number]), number * 0.03)
    assert arrivals(chain, sink, 1.0) == [(0.2, b"\0"), (0.23, b"\1"), (0.26, b"\2")]


def test_jitter_is_a_whole_number_of_ms_and_keeps_the_order() -> None:
    chain, sink = chain_of(toxic("latency", latency=30, jitter=30))
    for number in range(200):
        chain.feed(bytes([number]), number / 1000)
    observed = arrivals(chain, sink, 10.0)
    assert b"".join(data for _, data in observed) == bytes(range(200))
    assert observed == sorted(observed, key=lambda arrival: arrival[0])

    delays_ms = set()
    for seed in range(300):
        chain, sink = chain_of(toxic("latency", latency=10, jitter=3), seed=seed)
        chain.feed(b"a", 0.0)
        delays_ms.add(arrivals(chain, sink, 1.0)[0][0] * 1000)
    assert delays_ms == {7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize(("latency", "jitter"), [(-5, 0), (0, 0), (0, -20)])
def test_a_delay_of_nothing_or_less_is_none(latency: int, jitter: int) -> None:
    chain, sink = chain_of(toxic("latency", latency=latency, jitter=jitter))
    chain.feed(b"a", 0.0)
    assert arrivals(chain, sink, 0.0) == [(0.0, b"a")]


def test_latency_bounds_its_queue() -> None:
    chain, _ = chain_of(toxic("latency", latency=1000))
    for _ in range(1023):
        chain.feed(b"a", 0.0)
    assert chain.entrance.has_room()
    chain.feed(b"a", 0.0)
    assert not chain.entrance.has_room()


# Bandwidth.


def test_bandwidth_holds_small_chunks_for_their_length_before_passing_them() -> None:
    chain, sink = chain_of(toxic("bandwidth", rate=1))
    chain.feed(b"x" * 50, 0.0)
    assert arrivals(chain, sink, 1.0) == [(0.05, b"x" * 50)]


def test_bandwidth_cuts_large_chunks_into_pieces_of_100_ms() -> None:
    chain, sink = chain_of(toxic("bandwidth", rate=10))
    chain.feed(b"x" * 2500, 0.0)
    assert [(at_s, len(data)) for at_s, data in arrivals(chain, sink, 1.0)] == [(0.1, 1000), (0.2, 1000), (0.25, 500)]


def test_bandwidth_gives_no_credit_for_idle_time() -> None:
    chain, sink = chain_of(toxic("bandwidth", rate=1))
    chain.feed(b"x" * 50, 5.0)
    assert chain.run(5.0) == pytest.approx(5.05)
    chain.run(5.05)
    assert len(sink.take()) == 1
    chain.feed(b"x" * 50, 9.0)
    assert chain.run(9.0) == pytest.approx(9.05)


def test_bandwidth_makes_up_for_late_timers() -> None:
    chain, sink = chain_of(toxic("bandwidth", rate=10))
    chain.feed(b"x" * 10_000, 0.0)
    now_s = 0.0
    while sum(map(len, sink.chunks)) < 10_000:
        wake_s = chain.run(now_s)
        now_s = (wake_s or now_s) + 0.005
    assert now_s == pytest.approx(1.0, abs=0.011)


def test_bandwidth_0_stalls_everything_behind_the_first_chunk() -> None:
    stalled = toxic("bandwidth", rate=0)
    chain, sink = chain_of(stalled)
    chain.feed(b"abc", 0.0)
    chain.end(CloseCause.CLIENT)
    assert chain.run(100.0) is None
    assert sink.state() == ([], None)
    chain.remove(stalled, 100.0)
    assert sink.state() == ([b"abc"], CloseCause.CLIENT)


# Slow close.


def test_slow_close_delays_only_the_end() -> None:
    chain, sink = chain_of(toxic("slow_close", delay=300))
    chain.feed(b"a", 0.0)
    chain.end(CloseCause.UPSTREAM)
    assert chain.run(0.0) == pytest.approx(0.3)
    assert sink.state() == ([b"a"], None)
    chain.run(0.3)
    assert sink.ending is CloseCause.UPSTREAM


def test_an_update_starts_the_slow_close_afresh_and_a_removal_ends_it() -> None:
    slow = toxic("slow_close", delay=3000)
    chain, sink = chain_of(slow)
    chain.end(CloseCause.UPSTREAM)
    chain.run(0.0)
    slow.attributes["delay"] = 200
    chain.update(slow, 1.0)
    assert chain.run(1.0) == pytest.approx(1.2)
    chain.remove(slow, 1.1)
    assert sink.ending is CloseCause.UPSTREAM


# Timeout.


def test_timeout_drops_data_and_ends_after_a_quiet_time() -> None:
    chain, sink = chain_of(toxic("timeout", timeout=300))
    assert chain.run(0.0) == pytest.approx(0.3)
    chain.feed(b"a", 0.2)  # each chunk restarts the timeout
    assert chain.run(0.2) == pytest.approx(0.5)
    assert chain.run(0.4) == pytest.approx(0.5)
    chain.run(0.5)
    assert sink.state() == ([], CloseCause.TOXIC)


@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_of_nothing_drops_for_ever(timeout: int) -> None:
    chain, sink = chain_of(toxic("timeout", timeout=timeout))
    chain.feed(b"a", 0.0)
    assert chain.run(0.0) is None
    assert sink.state() == ([], None)
    assert chain.entrance.has_room()


def test_timeout_passes_the_end_at_once() -> None:
    chain, sink = chain_of(toxic("timeout", timeout=300))
    chain.end(CloseCause.CLIENT)
    chain.run(0.0)
    assert sink.ending is CloseCause.CLIENT


@pytest.mark.parametrize("toxicity", [1.0, 0.0])
def test_removing_a_timeout_ends_even_links_it_did_not_apply_to(toxicity: float) -> None:
    silent = toxic("timeout", toxicity, timeout=0)
    chain, sink = chain_of(silent)
    chain.remove(silent, 1.0)
    assert sink.ending is CloseCause.TOXIC


# Reset peer.


def test_reset_peer_waits_for_the_first_chunk_and_drops_it() -> None:
    chain, sink = chain_of(toxic("reset_peer", timeout=200))
    assert chain.run(5.0) is None
    chain.feed(b"a", 6.0)
    assert chain.run(6.0) == pytest.approx(6.2)
    chain.run(6.2)
    assert sink.state() == ([], CloseCause.RESET)


def test_reset_peer_is_also_set_off_by_the_end() -> None:
    chain, sink = chain_of(toxic("reset_peer", timeout=0))
    chain.end(CloseCause.CLIENT)
    chain.run(0.0)
    assert sink.ending is CloseCause.RESET


def test_the_wait_of_a_reset_is_not_interrupted_by_an_update() -> None:
    reset = toxic("reset_peer", timeout=200)
    chain, sink = chain_of(reset)
    chain.feed(b"a", 0.0)
    chain.run(0.0)
    reset.attributes["timeout"] = 5000
    chain.update(reset, 0.1)
    assert chain.run(0.1) == pytest.approx(0.2)
    chain.run(0.2)
    assert sink.ending is CloseCause.RESET


def test_removing_a_reset_in_its_wait_closes_at_once() -> None:
    reset = toxic("reset_peer", timeout=200)
    chain, sink = chain_of(reset)
    chain.feed(b"a", 0.0)
    chain.run(0.0)
    chain.remove(reset, 0.1)
    assert sink.state() == ([], CloseCause.RESET)


# Slicer.


def test_slicer_halves_until_the_pieces_are_near_the_average() -> None:
    chain, sink = chain_of(toxic("slicer", average_size=100, delay=10_000))
    chain.feed(b"x" * 1000, 0.0)
    chain.end(CloseCause.CLIENT)
    observed = arrivals(chain, sink, 1.0)
    assert [len(data) for _, data in observed] == [62, 63] * 8
    assert [at_s for at_s, _ in observed] == [round(number * 0.01, 6) for number in range(16)]
    assert sink.ending is CloseCause.CLIENT
    assert chain.stages[0].ended


def test_slicer_waits_after_the_last_piece_too() -> None:
    chain, sink = chain_of(toxic("slicer", average_size=100, delay=10_000))
    chain.feed(b"x" * 50, 0.0)
    chain.end(CloseCause.CLIENT)
    assert chain.run(0.0) == pytest.approx(0.01)
    assert sink.state() == ([sink.chunks[0]], None)


def test_slicer_varies_its_pieces_and_loses_nothing() -> None:
    data = Random(1).randbytes(20_000)
    chain, sink = chain_of(toxic("slicer", average_size=1000, size_variation=100))
    chain.feed(data, 0.0)
    chain.run(0.0)
    assert b"".join(sink.chunks) == data
    assert len(set(map(len, sink.chunks))) > 3
    assert all(len(piece) <= 1100 for piece in sink.chunks)


def test_a_change_flushes_the_rest_of_a_slice_in_one_piece() -> None:
    slicer = toxic("slicer", average_size=100, delay=10_000)
    chain, sink = chain_of(slicer)
    chain.feed(b"x" * 1000, 0.0)
    chain.run(0.0)
    chain.update(slicer, 0.001)
    assert [len(data) for data in sink.chunks] == [62, 938]


@pytest.mark.parametrize(("average", "variation"), [(1, -5), (1, 1), (2, 2), (7, 7), (5, -100)])
def test_slicer_copes_with_every_value_that_is_accepted(average: int, variation: int) -> None:
    chain, sink = chain_of(toxic("slicer", average_size=average, size_variation=variation))
    chain.feed(bytes(range(256)), 0.0)
    chain.run(0.0)
    assert b"".join(sink.chunks) == bytes(range(256))


# Limit data.


def test_limit_data_passes_exactly_its_number_of_bytes() -> None:
    chain, sink = chain_of(toxic("limit_data", bytes=25))
    for _ in range(3):
        chain.feed(b"x" * 10, 0.0)
        chain.run(0.0)
    assert [len(data) for data in sink.chunks] == [10, 10, 5]
    assert sink.ending is CloseCause.TOXIC


def test_limit_data_ends_with_the_chunk_that_reaches_it() -> None:
    chain, sink = chain_of(toxic("limit_data", bytes=20))
    chain.feed(b"x" * 20, 0.0)
    chain.run(0.0)
    assert sink.state() == ([sink.chunks[0]], CloseCause.TOXIC)


def test_limit_data_0_ends_at_the_first_chunk() -> None:
    chain, sink = chain_of(toxic("limit_data", bytes=0))
    chain.run(0.0)
    assert sink.ending is None
    chain.feed(b"x", 0.0)
    chain.run(0.0)
    assert sink.state() == ([], CloseCause.TOXIC)


def test_the_count_of_limit_data_survives_updates_and_not_removal() -> None:
    limit = toxic("limit_data", bytes=100)
    chain, sink = chain_of(limit)
    chain.feed(b"x" * 30, 0.0)
    chain.run(0.0)
    limit.attributes["bytes"] = 40
    chain.update(limit, 0.0)
    chain.remove(limit, 0.0)
    chain.append(limit, 0.0)
    chain.feed(b"y" * 30, 0.0)
    chain.run(0.0)
    assert sink.ending is None
    chain.update(limit, 0.0)
    chain.feed(b"z" * 30, 0.0)
    chain.run(0.0)
    assert [len(data) for data in sink.chunks] == [30, 30, 10]


def test_a_limit_lowered_below_the_count_applies_at_the_next_chunk() -> None:
    limit = toxic("limit_data", bytes=100)
    chain, sink = chain_of(limit)
    chain.feed(b"x" * 50, 0.0)
    chain.run(0.0)
    limit.attributes["bytes"] = 20
    chain.update(limit, 0.0)
    chain.run(0.0)
    assert sink.ending is None
    chain.feed(b"x", 0.0)
    chain.run(0.0)
    assert sink.state() == ([sink.chunks[0]], CloseCause.TOXIC)


# Refused values.


@pytest.mark.parametrize("kind", sorted(set(TOXIC_TYPES) - {"slicer"}))
def test_all_other_toxics_are_valid_without_attributes(kind: str) -> None:
    assert TOXIC_TYPES[kind].refusal(dict.fromkeys(TOXIC_TYPES[kind].attribute_names, 0)) is None
