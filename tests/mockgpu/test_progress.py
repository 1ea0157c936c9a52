"""Token counters while requests are served and when clients abort, in the model and in the metrics."""

from __future__ import annotations

import asyncio
import json
import math
import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mockgpu.gpu.catalogue import Gpu, Model, Pools, Setup
from mockgpu.gpu.model import GpuServer
from tests.mockgpu.boxes import box, drain, free, inference

PLAIN, SLOPED = free(), free(slope_s=0.5)


@pytest.mark.parametrize("model", [PLAIN, free(slope_s=1e-12)])
def test_tokens_count_when_they_are_due(model: Model) -> None:
    server = box(model)
    server.submit(0.0, inference(1, prompt_tokens=10, output_tokens=4))  # prefill to 1.0, tokens at 2, 3, 4 and 5
    observed = []
    for at_s in (0.5, 1.5, 2.0, 2.9, 3.1, 4.5):
        server.advance(at_s)
        observed.append((server.state().prompt_tokens_done, server.progress()[0]))
    assert observed == [(0, 0), (0, 0), (10, 1), (10, 1), (10, 2), (10, 3)]
    assert server.state().output_tokens_done == 0
    server.advance(5.1)
    assert (server.state().output_tokens_done, server.progress()) == (4, (0, 0.0))
    assert server.state().prompt_tokens_done == 10, "counted once"


@pytest.mark.parametrize(("model", "produced"), [(PLAIN, 3), (free(slope_s=1.0), 2)])
def test_what_was_made_counts_when_a_client_leaves_or_the_engine_dies(model: Model, produced: int) -> None:
    for end in ("cancel", "die"):
        server = box(model)
        for number in (1, 2):  # with the slope a step at batch size 2 takes 2 s
            server.submit(0.0, inference(number, prompt_tokens=0, output_tokens=10, sequences=1))
        server.submit(0.0, inference(3, prompt_tokens=1_000, output_tokens=10, model="late"))
        at_s = 3.5 if model is PLAIN else 4.5
        server.advance(at_s)
        if end == "die":
            server.die(at_s)
        else:
            for number in (1, 2, 3):
                server.cancel(at_s, number)
        state = server.state()
        assert (state.output_tokens_done, state.prompt_tokens_done) == (2 * produced, 0), end
        assert server.progress() == (0, 0.0)


def test_the_speed_is_that_of_what_decodes_now() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(1, prompt_tokens=0, output_tokens=100))
    server.advance(0.5)
    assert server.progress()[1] == pytest.approx(1.0)
    server.submit(0.5, inference(2, prompt_tokens=0, output_tokens=100, sequences=2, slowness=2.0))
    server.advance(0.6)
    # Three sequences: a step takes 2 s, and 4 s for the two slow ones.
    assert server.progress()[1] == pytest.approx(1 / 2.0 + 2 / 4.0)
    server.submit(0.6, inference(3, prompt_tokens=1_000, output_tokens=1))
    server.advance(0.7)
    # A step takes 2.5 s; a job in prefill produces no tokens.
    assert server.progress()[1] == pytest.approx(1 / 2.5 + 2 / 5.0)
    plain = box(PLAIN)
    plain.submit(0.0, inference(1, prompt_tokens=0, output_tokens=5, slowness=4.0, sequences=2))
    plain.advance(4.1)
    assert plain.progress()[1] == pytest.approx(2 / 4.0)
    plain.submit(4.1, inference(2, prompt_tokens=10, output_tokens=0))
    assert plain.progress()[1] == pytest.approx(2 / 4.0), "an embedding produces none"


SERVERS = {
    "plain": lambda: box(PLAIN, max_running=3),
    "batch": lambda: box(SLOPED, max_running=3),
    "kv": lambda: box(free(slope_s=0.1, kv_bytes_per_token=500_000), kv_share=0.1, max_running=4),
    "pools": lambda: box(SLOPED, pools=Pools(1, 2, 0.3, 0.01)),
}


@pytest.mark.parametrize("name", SERVERS)
def test_what_is_counted_never_falls_and_is_all_that_was_made(name: str) -> None:
    """Progress agrees with the due time of each token, and the sums grow to the requested totals."""
    generator = random.Random(name)
    server: GpuServer = SERVERS[name]()
    active: dict[int, tuple[int, int]] = {}
    finished = cancelled_tokens = before = 0
    at_s = 0.0
    for number in range(1, 150):
        at_s += generator.expovariate(0.4)
        for event in server.advance(at_s):
            if type(event).__name__ == "Finished":
                tokens, sequences = active.pop(event.job_id)  # type: ignore[union-attr]
                finished += tokens * sequences
        due = {
            job_id: sum((server.token_due_s(job_id, token) or math.inf) <= at_s for token in range(tokens)) * sequences
            for job_id, (tokens, sequences) in active.items()
        }
        produced = server.progress()[0]
        assert produced == sum(due.values())
        total = server.state().output_tokens_done + produced
        assert total >= before
        before = total
        assert server.state().output_tokens_done == finished + cancelled_tokens
        if active and generator.random() < 0.2:
            cancelled = generator.choice(list(active))
            server.cancel(at_s, cancelled)
            cancelled_tokens += due[cancelled]
            del active[cancelled]
        tokens, sequences = generator.randrange(1, 30), generator.choice((1, 1, 2))
        server.submit(at_s, inference(number, generator.randrange(30), tokens, sequences=sequences))
        active[number] = tokens, sequences
    finished += sum(tokens * sequences for tokens, sequences in active.values())
    drain(server)
    assert server.state().output_tokens_done == finished + cancelled_tokens
    assert cancelled_tokens > 0 and (server.state().preemptions > 0) == (name == "kv")


# -- on the page ---------------------------------------------------------------------------------------------

SETUP = Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 10_000.0, 0.002), (Model("slow", 0, 0.0, 1e9, 0.02),))


async def figures(it: Any, *names: str) -> list[float]:
    async with it.session.get(it.url("/metrics")) as answer:
        families = text_string_to_metric_families(await answer.text())
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return [found[name] for name in names]


NAMES = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_count")


def test_the_page_moves_with_a_stream_and_keeps_what_was_made(serve: Any) -> None:
    async def test(it: Any) -> None:
        body = {"model": "slow", "prompt": "one two three", "max_tokens": 5_000, "stream": True}
        answer = await it.session.post(it.url("/v1/completions"), json=body)
        observed = 0
        while observed < 5:
            observed += b'"token"' in await answer.content.readline()
        produced, prompt, first_tokens = await figures(it, *NAMES)
        assert produced >= observed and (prompt, first_tokens) == (3, 1)
        (per_s,) = await figures(it, "sglang:gen_throughput")
        assert per_s == pytest.approx(50.0)
        answer.close()
        await it.until_running(0)
        cancelled_tokens, prompt, first_tokens = await figures(it, *NAMES)
        assert cancelled_tokens >= produced and (prompt, first_tokens) == (3, 1)
        await asyncio.sleep(0.05)
        assert await figures(it, NAMES[0]) == [cancelled_tokens], "no tokens are counted for aborted requests"

    serve(test, SETUP)


def test_the_page_moves_with_an_answer_that_is_not_streamed(serve: Any) -> None:
    async def test(it: Any) -> None:
        body = {"model": "slow", "prompt": "one two", "max_tokens": 5_000, "n": 2}
        waiting = asyncio.create_task(it.session.post(it.url("/v1/completions"), json=body))
        await it.until_running(1)
        produced = 0.0
        while produced < 4:
            produced, prompt, first_tokens = await figures(it, *NAMES)
        assert produced % 2 == 0 and (prompt, first_tokens) == (2, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await it.until_running(0)
        assert (await figures(it, NAMES[0]))[0] >= produced
        _, whole = await it.post("/v1/embeddings", input="a b c")
        assert json.dumps(whole["usage"]["prompt_tokens"]) == "3"
        assert (await figures(it, *NAMES))[1:] == [5, 1], "prompts without tokens count at their end"

    serve(test, SETUP)
