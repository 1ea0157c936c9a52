"""Streams follow the model: other requests change the times of a stream's tokens, not the tokens."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome

STEP_S = 0.002


async def tokens_of(it: Any, tokens: int, received: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Number and time of every token of a stream, appended to ``received``; the stream must end correctly."""
    body = {"prompt": "w " * 16, "max_tokens": tokens, "stream": True}
    done = False
    async with it.session.post(it.url("/v1/completions"), json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                received.append((json.loads(line[6:])["token"], time.monotonic()))
            done = done or line == b"data: [DONE]\n"
    assert done
    return received


def test_a_request_beside_it_slows_a_stream_down(serve: Any) -> None:
    async def test(it: Any) -> None:
        received: list[tuple[int, float]] = []
        first = asyncio.create_task(tokens_of(it, 60, received))
        await it.until(lambda: len(received) > 10)
        began_s = time.monotonic()
        await tokens_of(it, 10, [])
        ended_s = time.monotonic()
        await first
        assert [number for number, _ in received] == list(range(60))
        # Ten steps at batch size 2 take 22 ms each instead of 2, for both jobs.
        assert ended_s - began_s >= 10 * 0.022
        rows = [row for row in it.rows() if row.kind is RowKind.INFERENCE]
        assert sorted(row.batch for row in rows) == [1, 2]
        # The slowness is part of the model, not a delay of the mock.
        assert rows[0].service_asked_s >= 50 * STEP_S + 10 * 0.022

    serve(test, Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 1e6, STEP_S, decode_slope_s=0.02)))


def test_a_stream_that_loses_its_place_goes_on_where_it_was(serve: Any) -> None:
    # 31 blocks of 16 tokens; both together would need 38 at their end.
    setup = Setup(
        Gpu("box", 1_000, 4, None, kv_share=0.5, prefix_cache=False),
        Model("any", 0, 0.0, 1e6, STEP_S / 4, kv_bytes_per_token=1_000_000),
    )

    async def test(it: Any) -> None:
        streams = await asyncio.gather(*(tokens_of(it, 290, []) for _ in range(2)))
        for received in streams:
            assert [number for number, _ in received] == list(range(290))
        async with it.session.get(it.url("/metrics")) as answer:
            page = await answer.text()
        assert 'vllm:num_preemptions_total{model_name="any",engine="0"} 0\n' not in page
        await it.until(lambda: all(row.outcome is RowOutcome.ANSWERED for row in it.rows()))

    serve(test, setup)
