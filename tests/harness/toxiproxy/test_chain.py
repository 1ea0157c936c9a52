"""Chains of toxics, and the effect of changes on held data."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.toxiproxy.chain import Chain
from harness.toxiproxy.connection_log import CloseCause
from harness.toxiproxy.stage import Toxic
from tests.harness.toxiproxy.rig import Sink


def latency(latency_ms: int, name: str = "latency", toxicity: float = 1.0) -> Toxic:
    return Toxic(name, "latency", "upstream", toxicity, {"latency": latency_ms, "jitter": 0})


def noop(name: str = "noop") -> Toxic:
    return Toxic(name, "noop", "upstream")


def chain_of(*toxics: Toxic, seed: int = 1) -> tuple[Chain, Sink]:
    sink = Sink()
    return Chain(toxics, sink, Random(seed), 0.0), sink


def test_an_empty_chain_leads_straight_to_the_sink() -> None:
    chain, sink = chain_of()
    assert chain.entrance is sink
    chain.feed(b"a", 0.0)
    assert chain.run(0.0) is None
    assert sink.chunks == [b"a"]


def test_toxics_apply_in_their_order() -> None:
    limit = Toxic("limit", "limit_data", "upstream", 1.0, {"bytes": 10})
    for toxics in ((limit, latency(200)), (latency(200), limit)):
        chain, sink = chain_of(*toxics)
        chain.feed(b"x" * 20, 0.0)
        chain.run(0.0)
        assert sink.state() == ([], None)
        chain.run(0.2)
        assert sink.state() == ([b"x" * 10], CloseCause.TOXIC)


def test_a_sink_without_room_holds_data_back_stage_by_stage() -> None:
    chain, sink = chain_of(noop("first"), noop("second"))
    sink.room = False
    while chain.entrance.has_room():
        chain.feed(b"a", 0.0)
        chain.run(0.0)
    assert sink.chunks == []
    assert sum(len(stage.inbox) for stage in chain.stages) == 16
    sink.room = True
    chain.run(0.0)
    assert b"".join(sink.chunks) == b"a" * 16
    assert chain.entrance.has_room()


def test_an_update_releases_held_data_and_the_rest_gets_the_new_value() -> None:
    slow = latency(1000)
    chain, sink = chain_of(slow)
    chain.feed(b"a", 0.0)
    chain.feed(b"bb", 0.05)
    chain.run(0.05)
    slow.attributes["latency"] = 400
    chain.update(slow, 0.2)
    assert chain.run(0.2) == pytest.approx(0.45)
    assert sink.take() == [b"a"]
    chain.run(0.45)
    assert sink.take() == [b"bb"]


def test_a_removal_flushes_in_order_and_loses_nothing() -> None:
    first, second = latency(1000, "first"), latency(1000, "second")
    chain, sink = chain_of(first, second)
    for number in range(3):
        chain.feed(bytes([number]), 0.0)
    chain.end(CloseCause.CLIENT)
    chain.run(1.0)
    chain.remove(second, 1.5)
    chain.remove(first, 1.5)
    chain.run(1.5)
    assert (b"".join(sink.chunks), sink.ending) == (b"\0\1\2", CloseCause.CLIENT)


def test_a_removal_flushes_even_into_a_sink_without_room() -> None:
    slow = latency(1000)
    chain, sink = chain_of(slow)
    sink.room = False
    chain.feed(b"a", 0.0)
    chain.remove(slow, 0.5)
    assert sink.chunks == [b"a"]


def test_appending_releases_data_held_by_the_stage_before() -> None:
    chain, sink = chain_of(latency(1000))
    chain.feed(b"a", 0.0)
    chain.run(0.0)
    chain.append(noop(), 0.2)
    chain.run(0.2)
    assert sink.chunks == [b"a"]


def test_an_appended_toxic_applies_to_later_data() -> None:
    chain, sink = chain_of(noop())
    chain.append(latency(100), 1.0)
    chain.feed(b"a", 1.0)
    chain.run(1.05)
    assert sink.chunks == []
    chain.run(1.1)
    assert sink.chunks == [b"a"]


# Toxicity.


@pytest.mark.parametrize(("toxicity", "applies"), [(0.0, False), (-1.0, False), (1.0, True), (2.5, True)])
def test_toxicity_at_and_beyond_its_ends(toxicity: float, applies: bool) -> None:
    drawn = {chain_of(latency(1, toxicity=toxicity), seed=seed)[0].stages[0].applies for seed in range(50)}
    assert drawn == {applies}


def test_toxicity_is_the_share_of_links() -> None:
    random, toxic = Random(7), latency(1, toxicity=0.3)
    drawn = [Chain([toxic], Sink(), random, 0.0).stages[0].applies for _ in range(10_000)]
    assert 0.27 < sum(drawn) / len(drawn) < 0.33  # 6.5 standard deviations to either side


def test_the_same_seed_draws_the_same() -> None:
    def draws(seed: int) -> list[bool]:
        random, toxic = Random(seed), latency(1, toxicity=0.5)
        return [Chain([toxic], Sink(), random, 0.0).stages[0].applies for _ in range(64)]

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)


def test_toxicity_is_drawn_again_at_an_update_and_for_the_stage_before_a_change() -> None:
    def redrawn(*changes: str) -> bool:
        toxic = latency(1, toxicity=0.5)
        chain, _ = chain_of(toxic)
        observed = set()
        for number in range(40):
            other = noop(f"other-{number}")
            observed.add(chain.stages[0].applies)
            if "update" in changes:
                chain.update(toxic, 0.0)
            if "append" in changes:
                chain.append(other, 0.0)
            if "remove" in changes:
                chain.remove(other, 0.0)
        return len(observed) == 2

    assert redrawn("update")
    assert redrawn("append", "remove")


def test_a_link_to_which_no_toxic_applies_passes_data_at_once() -> None:
    chain, sink = chain_of(latency(1000, toxicity=0.0))
    chain.feed(b"a", 0.0)
    assert chain.run(0.0) is None
    assert sink.chunks == [b"a"]


# After any sequence of changes all bytes arrive, in order.

HARMLESS = {
    "noop": {},
    "latency": {"latency": 30, "jitter": 20},
    "bandwidth": {"rate": 1},
    "slow_close": {"delay": 50},
    "slicer": {"average_size": 3, "size_variation": 2, "delay": 5000},
}
steps = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 40)),
        st.tuples(st.just("append"), st.sampled_from(sorted(HARMLESS))),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("update"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.integers(1, 60)),
        st.tuples(st.just("room"), st.booleans()),
    ),
    max_size=30,
)


@given(steps=steps, seed=st.integers(0, 2**32))
def test_nothing_is_lost_or_reordered(steps: list[tuple[str, object]], seed: int) -> None:
    chain, sink = chain_of(seed=seed)
    toxics: list[Toxic] = []
    fed = b""
    now_s = 0.0
    for number, (step, value) in enumerate(steps):
        if step == "feed" and isinstance(value, int):
            data = bytes((len(fed) + index) % 256 for index in range(value))
            fed += data
            chain.feed(data, now_s)
        elif step == "append" and isinstance(value, str):
            toxics.append(Toxic(f"t{number}", value, "upstream", 0.7, dict(HARMLESS[value])))
            chain.append(toxics[-1], now_s)
        elif step == "remove" and isinstance(value, int) and value < len(toxics):
            chain.remove(toxics.pop(value), now_s)
        elif step == "update" and isinstance(value, int) and value < len(toxics):
            chain.update(toxics[value], now_s)
        elif step == "wait" and isinstance(value, int):
            now_s += value / 1000
        elif step == "room":
            sink.room = bool(value)
        chain.run(now_s)
    chain.end(CloseCause.CLIENT)
    sink.room = True
    wake_s = chain.run(now_s)
    for _ in range(10_000):
        if wake_s is None:
            break
        now_s = max(now_s, wake_s)
        wake_s = chain.run(now_s)
    assert b"".join(sink.chunks) == fed
    assert sink.ending is CloseCause.CLIENT
