"""Content follows its stated shares and lengths, and no aspect affects another."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import stats

from harness.scenario.request_mix import (
    MOST_PAYLOAD_BYTES,
    Content,
    Empirical,
    Fixed,
    LongTail,
    Replay,
    RequestContent,
    Sessions,
    draw,
)

ALPHA = 1e-4
MANY = 4000


def drawn(content: Content, requests: int = MANY, seed: str = "s") -> list[RequestContent]:
    return draw(content, requests, prompt_tokens=8, output_tokens=4, seed=seed)


def is_share(hits: list[bool], share: float) -> bool:
    return stats.binomtest(sum(hits), len(hits), share).pvalue > ALPHA


def test_no_content_is_what_the_stream_says() -> None:
    plain = RequestContent(False, 8, 4, "normal", -1, 0, (), (), 0, False, None, False)
    assert set(drawn(Content(), 50)) == {plain}


def test_the_same_seed_asks_the_same() -> None:
    content = Content(LongTail(50), LongTail(9), Sessions(3, 4), update_share=0.2, streaming_share=0.5)
    assert drawn(content) == drawn(content)
    assert drawn(content) != drawn(content, seed="other")


def test_shares() -> None:
    content = Content(
        update_share=0.3,
        high_share=0.2,
        critical_share=0.1,
        streaming_share=0.6,
        abort_share=0.05,
        abort_after_s=0.7,
        fresh_share=0.15,
    )
    found = drawn(content)
    inferences = [one for one in found if not one.update]
    assert is_share([one.update for one in found], 0.3)
    assert is_share([one.urgency == "high" for one in inferences], 0.2)
    assert is_share([one.urgency == "critical" for one in inferences], 0.1)
    assert is_share([one.streams for one in inferences], 0.6)
    assert is_share([one.abort_after_s == 0.7 for one in found], 0.05)
    assert is_share([one.fresh for one in found], 0.15)
    updates = [one for one in found if one.update]
    assert {(one.urgency, one.streams, one.session) for one in updates} == {("normal", False, -1)}
    # Aspects are independent of each other.
    table = np.histogram2d([one.streams for one in inferences], [one.urgency == "high" for one in inferences], 2)[0]
    assert stats.chi2_contingency(table).pvalue > ALPHA


def test_one_aspect_does_not_disturb_another() -> None:
    bare = drawn(Content(LongTail(50), LongTail(9), streaming_share=0.2))
    full = drawn(Content(LongTail(50), LongTail(9), streaming_share=0.2, update_share=0.5, abort_share=0.5))
    assert [one.prompt_tokens for one in bare] == [one.prompt_tokens for one in full]
    assert [one.output_tokens for one in bare] == [one.output_tokens for one in full]
    assert all(one.streams == other.streams for one, other in zip(bare, full, strict=True) if not other.update)


def test_long_tail_is_lognormal_up_to_its_cap() -> None:
    lengths = np.array([one.prompt_tokens for one in drawn(Content(prompt=LongTail(1000, 1.0, 20_000)))])
    logs = np.log(lengths[lengths < 20_000])
    law = stats.truncnorm(-math.inf, math.log(20.0), loc=math.log(1000.0), scale=1.0)
    assert stats.kstest(logs, law.cdf).pvalue > ALPHA
    assert lengths.max() <= 20_000
    assert drawn(Content(prompt=LongTail(1.0, 3.0, 40)))[0].prompt_tokens >= 1
    assert {one.prompt_tokens for one in drawn(Content(prompt=LongTail(1.0, 3.0, 40)))} <= set(range(1, 41))


def test_empirical_and_fixed_lengths() -> None:
    found = drawn(Content(prompt=Empirical((5, 5, 70)), output=Fixed(33)))
    assert {one.output_tokens for one in found} == {33}
    assert {one.prompt_tokens for one in found} == {5, 70}
    assert is_share([one.prompt_tokens == 5 for one in found], 2 / 3)


def test_payloads_reach_megabytes_and_end_at_the_cap() -> None:
    assert {one.payload_bytes for one in drawn(Content(payload_bytes=Fixed(3_000_000)), 5)} == {3_000_000}
    assert {one.payload_bytes for one in drawn(Content(payload_bytes=Fixed(2**40)), 5)} == {MOST_PAYLOAD_BYTES}


def of_sessions(found: list[RequestContent]) -> dict[int, list[RequestContent]]:
    sessions = defaultdict(list)
    for one in found:
        sessions[one.session].append(one)
    return sessions


def test_sessions_grow_and_end() -> None:
    content = Content(prompt=LongTail(20), output=LongTail(30), sessions=Sessions(7, 5, most_tokens=10**9))
    sessions = of_sessions(drawn(content))
    assert len(sessions) > 500
    for number, turns in sessions.items():
        assert [turn.turn for turn in turns] == list(range(len(turns)))
        assert turns[0].history == ()
        for one, following in itertools.pairwise(turns):
            added = one.prompt_tokens - sum(one.history)
            assert following.history == (*one.history, added, one.output_tokens)
            assert following.prompt_tokens > sum(following.history) == one.prompt_tokens + one.output_tokens
        assert len(turns) <= 5
        if 7 <= number < max(sessions) - 20:
            assert len(turns) == 5
    # Those of the beginning are at different distances from their end.
    assert [len(sessions[number]) for number in range(7)] == [1, 2, 3, 4, 5, 1, 2]


def test_so_many_sessions_take_turns() -> None:
    found = drawn(Content(sessions=Sessions(6, 4)), 600)
    last: dict[int, int] = {}
    for position, one in enumerate(found):
        if one.turn:
            assert position - last[one.session] == 6
        last[one.session] = position


def test_a_session_ends_before_its_prompt_grows_too_long() -> None:
    found = drawn(Content(prompt=Fixed(40), output=Fixed(10), sessions=Sessions(2, 100, most_tokens=150)), 200)
    assert max(one.prompt_tokens for one in found) == 140
    assert max(one.turn for one in found) == 2
    assert {one.prompt_tokens for one in drawn(Content(prompt=Fixed(900), sessions=Sessions(2, 3, 100)), 9)} == {100}


def test_updates_are_no_turns() -> None:
    content = Content(sessions=Sessions(3, 4), update_share=0.5)
    sessions = of_sessions([one for one in drawn(content) if not one.update])
    assert -1 not in sessions
    assert all([turn.turn for turn in turns] == list(range(len(turns))) for turns in sessions.values())


def test_a_replay_says_what_its_trace_says() -> None:
    replay = Replay((10, 30, 60, 25), (5, 6, 7, 8), sessions=(4, -1, 4, 4), blocks=((1, 2), (1,), (), (3,)))
    found = drawn(Content(replay=replay, prompt=Fixed(99), output=Fixed(99)), 4)
    assert [one.prompt_tokens for one in found] == [10, 30, 60, 25]
    assert [one.output_tokens for one in found] == [5, 6, 7, 8]
    assert [one.session for one in found] == [4, -1, 4, 4]
    assert [one.turn for one in found] == [0, 0, 1, 2]
    # The third turn is shorter than its history, so it cannot contain it.
    assert [one.history for one in found] == [(), (), (10, 5), ()]
    assert [one.blocks for one in found] == [(1, 2), (1,), (), (3,)]
    assert {one.prompt_tokens for one in drawn(Content(replay=Replay(), prompt=Fixed(99)), 4)} == {99}
    with pytest.raises(ValueError, match="4 prompt_tokens for 5 requests"):
        drawn(Content(replay=replay), 5)


def test_content_survives_json() -> None:
    form: TypeAdapter[Content] = TypeAdapter(Content)
    for content in (
        Content(Fixed(3), LongTail(40), Sessions(2, 3), streaming_share=0.5, payload_bytes=Empirical((1, 2))),
        Content(replay=Replay((1,), (2,), (0,), (-1,), ((1, 2),))),
    ):
        assert form.validate_json(form.dump_json(content)) == content


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(-1), "length must be 0 or more"),
        (lambda: LongTail(0.5), "median must be from 1 to most"),
        (lambda: LongTail(10, 0.0), "sigma must be above 0"),
        (lambda: Empirical(()), "expected one at least"),
        (lambda: Sessions(0, 1), "count of sessions must be 1 or more, not 0"),
        (lambda: Content(update_share=1.2), "update_share must be from 0 to 1, not 1.2"),
        (lambda: Content(high_share=0.7, critical_share=0.7), "are 1.4 together"),
        (lambda: Content(abort_after_s=0.0), "abort_after_s must be above 0"),
        (lambda: Content(replay=Replay(), sessions=Sessions(1, 1)), "expected no others beside it"),
    ],
)
def test_nonsense_is_an_error(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
