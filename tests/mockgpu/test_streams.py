"""Streams follow the model: what other requests do to a running one shows in when its tokens come, not in which."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome

STEP_S = 0.002


async def tokens_of(it: Any, tokens: int, seen: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Number and time of every token of a stream, put into ``seen`` as they come; it must end as it should."""
    body = {"prompt": "w " * 16, "max_tokens": tokens, "stream": True}
    done = False
    async with it.session.post(it.url("/v1/completions"), json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                seen.append((json.loads(line[6:])["token"], time.monotonic()))
            done = done or line == b"data: [DONE]\n"
    assert done
    return seen


def test_a_request_beside_it_slows_a_stream_down(serve: Any) -> None:
    async def test(it: Any) -> None:
        seen: list[tuple[int, float]] = []
        first = asyncio.create_task(tokens_of(it, 60, seen))
        await it.until(lambda: len(seen) > 10)
        began_s = time.monotonic()
        await tokens_of(it, 10, [])
        ended_s = time.monotonic()
        await first
        assert [number for number, _ in seen] == list(range(60))
        # Ten steps of two jobs each take 22 ms instead of 2, for both of them.
        assert ended_s - began_s >= 10 * 0.022
        rows = [row for row in it.rows() if row.kind is RowKind.INFERENCE]
        assert sorted(row.batch for row in rows) == [1, 2]
        # The model's slowness is asked for: it is no lateness of the mock.
        assert rows[0].service_asked_s >= 50 * STEP_S + 10 * 0.022

    serve(test, Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 1e6, STEP_S, decode_slope_s=0.02)))


def test_a_stream_that_loses_its_place_goes_on_where_it_was(serve: Any) -> None:
    # 31 blocks of 16 tokens, of which the two would need 38 in the end.
    setup = Setup(
        Gpu("box", 1_000, 4, None, kv_share=0.5, prefix_cache=False),
        Model("any", 0, 0.0, 1e6, STEP_S / 4, kv_bytes_per_token=1_000_000),
    )

    async def test(it: Any) -> None:
        streams = await asyncio.gather(*(tokens_of(it, 290, []) for _ in range(2)))
        for seen in streams:
            assert [number for number, _ in seen] == list(range(290))
        async with it.session.get(it.url("/metrics")) as answer:
            page = await answer.text()
        assert 'vllm:num_preemptions_total{model_name="any",engine="0"} 0\n' not in page
        await it.until(lambda: all(row.outcome is RowOutcome.ANSWERED for row in it.rows()))

    serve(test, setup)
