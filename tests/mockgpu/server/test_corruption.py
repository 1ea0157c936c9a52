"""Corrupted answers and reports as raw clients receive them, and their rows in the log."""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import ClientError, ClientPayloadError

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome
from mockgpu.server.corruption import noise
from tests.mockgpu.fault_calls import SETUP, ask, change, complete, last_row, part_of, raw

GAP_S = 0.05


def split(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def test_noise_is_the_same_each_time_and_no_json() -> None:
    assert noise("a", 100) == noise("a", 100) != noise("b", 100)
    assert len(noise("a", 0)) == 0
    with pytest.raises(ValueError):
        json.loads(noise("a", 100))


# --- answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_stall_falls_silent_until_its_client_leaves_or_it_is_freed(serve: Any, stream: bool) -> None:
    async def test(it: Any) -> None:
        whole = (await complete(it))[1]
        await change(it, {"kind": "stall", "after_tokens": 2})

        def enough(got: bytes) -> bool:
            if stream:
                return got.count(b'data: {"id"') >= 2
            return len(split(got)[1]) >= len(whole) * 2 // 5

        got, reader, writer = await part_of(it, ask(stream=stream), enough)
        assert it.rows()[-1].outcome is RowOutcome.OPEN
        state = await it.health()
        assert (state["ready"], state["queue_depth"]) == (True, 0)
        silent = asyncio.create_task(reader.read(1))
        await asyncio.wait([silent], timeout=10 * 5 * 0.004)
        assert not silent.done(), "nothing more is sent although all tokens are generated"
        if not stream:
            assert split(got)[1] == whole[: len(whole) * 2 // 5]
            assert f"Content-Length: {len(whole)}".encode() in got
        freed = asyncio.create_task(raw(it, ask(stream=stream)))
        await it.until(lambda: [row.kind for row in it.rows()].count(RowKind.INFERENCE) == 3)
        silent.cancel()
        writer.close()
        await it.until(lambda: any(row.outcome is RowOutcome.CLIENT_GONE for row in it.rows()))
        assert await change(it, clear=["stall"]) == []
        assert (await freed)[1], "it ends by a reset"
        await it.until(lambda: any(row.outcome is RowOutcome.CUT for row in it.rows()))
        assert (await it.health())["running"] == 0

    serve(test, SETUP)


@pytest.mark.parametrize("stream", [True, False])
def test_a_drip_takes_a_gap_between_tokens(serve: Any, stream: bool) -> None:
    async def test(it: Any) -> None:
        _, plain, _ = await complete(it, stream=stream)
        await change(it, {"kind": "drip", "gap_s": GAP_S})
        began_s = time.monotonic()
        status, body, _ = await complete(it, stream=stream)
        assert (status, body) == (200, plain)
        gaps = 5 if stream else 4  # a stream's end is paced, too
        assert time.monotonic() - began_s >= gaps * GAP_S
        row = await last_row(it, RowOutcome.ANSWERED)
        assert (row.tokens_out, row.bytes_out) == (5, len(plain))
        assert row.end_s - row.first_byte_s >= gaps * GAP_S

    serve(test, SETUP)


@pytest.mark.parametrize("after", [0, 2, 5, 99])
def test_a_truncated_body_is_well_framed(serve: Any, after: int) -> None:
    async def test(it: Any) -> None:
        whole = (await complete(it))[1]
        await change(it, {"kind": "truncated", "after_tokens": after})
        status, body, headers = await complete(it)
        assert (status, headers["Content-Length"]) == (200, str(len(body)))
        assert body == whole[: min(len(whole) * after // 5, len(whole) - 1)]
        row = await last_row(it, RowOutcome.CUT)
        assert (row.status, row.tokens_out, row.bytes_out) == (200, min(after, 5), len(body))

    serve(test, SETUP)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "cut", "after_tokens": 2},
        {"kind": "truncated", "after_tokens": 2},
        {"kind": "wrong-length", "by": 40},
        {"kind": "stream-error", "after_tokens": 2},
    ],
    ids=lambda fault: str(fault["kind"]),
)
def test_a_broken_answer_counts_once(serve: Any, fault: dict[str, Any], stream: bool) -> None:
    """The client gets a failure, not an answer."""

    async def test(it: Any) -> None:
        await change(it, fault)
        with suppress(ClientError, ConnectionError):
            await complete(it, stream=stream)
        await it.until(lambda: it.rows()[-1].outcome is not RowOutcome.OPEN)
        async with it.session.get(it.url("/metrics")) as answer:
            text = await answer.text()
        counted = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("nv_inference_request_"))
        assert [float(value) for name, value in counted.items() if "_success" in name] == [0.0]
        assert [float(value) for name, value in counted.items() if "_failure" in name] == [1.0]

    serve(test, SETUP)


@pytest.mark.parametrize("after", [0, 2, 5, 99])
def test_a_truncated_stream_ends_well_inside_an_event(serve: Any, after: int) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "truncated", "after_tokens": after})
        status, body, _ = await complete(it, stream=True)
        assert status == 200
        assert body.count(b"\n\n") == min(after, 5)
        assert not body.endswith(b"\n\n") and b"[DONE]" not in body
        row = await last_row(it, RowOutcome.CUT)
        assert (row.tokens_out, row.bytes_out) == (min(after, 5), len(body))
        assert (await it.health())["running"] == 0

    serve(test, SETUP)


@pytest.mark.parametrize("stream", [True, False])
def test_garbage_looks_good_from_outside(serve: Any, stream: bool) -> None:
    async def test(it: Any) -> None:
        _, plain, good = await complete(it, stream=stream)
        await change(it, {"kind": "garbage"})
        status, body, headers = await complete(it, stream=stream)
        assert (status, headers["Content-Type"], len(body)) == (200, good["Content-Type"], len(plain))
        assert body != plain and b"sy-" not in body
        assert (await complete(it, stream=stream))[1] == body
        row = await last_row(it, RowOutcome.ANSWERED)
        assert (row.tokens_out, row.bytes_out) == (0, len(plain))

    serve(test, SETUP)


@pytest.mark.parametrize("stream", [True, False])
def test_a_length_too_long_breaks_the_connection(serve: Any, stream: bool) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "wrong-length", "by": 10})
        with pytest.raises(ClientPayloadError):
            await complete(it, stream=stream)
        got, reset = await raw(it, ask(stream=stream))
        assert got.startswith(b"HTTP/1.1 200 ") and not reset, "it is closed, not reset"
        if not stream:
            head, body = split(got)
            assert f"Content-Length: {len(body) + 10}".encode() in head
            json.loads(body)
        await last_row(it, RowOutcome.CUT)

    serve(test, SETUP)


def test_a_length_too_short_hides_the_rest(serve: Any) -> None:
    async def test(it: Any) -> None:
        whole = (await complete(it))[1]
        await change(it, {"kind": "wrong-length", "by": -10})
        with pytest.raises(ClientError):
            await complete(it)
        got, _ = await raw(it, ask())
        head, body = split(got)
        assert f"Content-Length: {len(whole) - 10}".encode() in head
        assert body == whole, "all of it is sent"
        await last_row(it, RowOutcome.CUT)
        got, reset = await raw(it, ask(stream=True))
        assert got.startswith(b"HTTP/1.1 200 ") and got.endswith(b"[DONE]\n\n\r\n0\r\n\r\n") and not reset
        size = got.rpartition(b"\r\ndata: [DONE]")[0].rpartition(b"\r\n")[2]
        assert int(size, 16) == len(b"data: [DONE]\n\n") - 10

    serve(test, SETUP)


def test_updates_are_corrupted_too(serve: Any) -> None:
    async def test(it: Any) -> None:
        for fault in ({"kind": "truncated", "after_tokens": 1}, {"kind": "garbage"}):
            await change(it, fault, clear="all")
            async with it.session.post(it.url("/v1/updates"), json={}) as answer:
                assert answer.status == 200
                body = await answer.read()
                with pytest.raises(ValueError):
                    json.loads(body)

    serve(test, SETUP)


# --- answered and held immediately ----------------------------------------------------------------------------


def test_a_full_queue_says_so(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "queue-full", "every": 2})
        first, second = [await complete(it) for _ in range(2)]
        assert (first[0], second[0]) == (200, 503)
        assert json.loads(second[1])["error"]["code"] == "queue_full"
        assert "Retry-After" not in second[2]
        await last_row(it, RowOutcome.REFUSED)
        await change(it, {"kind": "queue-full", "retry_after_s": 1.5})
        assert (await complete(it))[2]["Retry-After"] == "2"

    serve(test, SETUP)


def test_out_of_memory_is_told_as_vllm_and_triton_do(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "out-of-memory"})
        status, body, _ = await complete(it)
        error = json.loads(body)["error"]
        assert (status, error["message"], error["type"]) == (500, "CUDA out of memory", "InternalServerError")
        assert (await last_row(it, RowOutcome.REFUSED)).status == 500
        fields = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a b"]}]}
        status, body = await it.post("/v2/models/m/infer", **fields)
        assert status == 400
        assert body["error"].startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: Internal:")
        assert (await it.health())["ready"]

    serve(test, SETUP)


def test_a_vllm_zombie(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "zombie"})
        held = asyncio.create_task(raw(it, ask()))
        await it.until(lambda: len(it.rows()) == 1)
        for path in ("/version", "/health", "/ping", "/v2/health/live", "/v2/health/ready", "/v1/models"):
            assert (await it.get(path))[0] == 200
        async with it.session.get(it.url("/metrics")) as answer:
            page = await answer.text()
        for line in ("num_requests_waiting{L} 1", "num_requests_running{L} 0", "kv_cache_usage_perc{L} 0"):
            assert "vllm:" + line.replace("L", 'model_name="any",engine="0"') + "\n" in page
        assert not held.done()
        await change(it, clear=["zombie"])
        assert await held == (b"", True)

    serve(test, SETUP)


# --- reports ----------------------------------------------------------------------------------------------


def test_dead_liveness_leaves_readiness_alone(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "not-alive"})
        for path, status in (("/ping", 503), ("/v2/health/live", 503), ("/health", 200), ("/v2/health/ready", 200)):
            assert (await it.get(path))[0] == status, path
        async with it.session.post(it.url("/ping")) as answer:
            assert answer.status == 503
        assert (await complete(it))[0] == 200
        async with it.session.get(it.url("/mock/faults")) as answer:
            assert (await answer.json())["faults"] == [{"kind": "not-alive", "hits": 3}]

    serve(test, SETUP)


def test_garbage_for_metrics(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "metrics", "how": "garbage"})
        for path in ("/health", "/metrics", "/loads", "/v1/loads/", "/get_load"):
            async with it.session.get(it.url(path)) as answer:
                body = await answer.read()
                assert (answer.status, len(body) >= 64) == (200, True), path
                with pytest.raises(UnicodeDecodeError):
                    body.decode()
        assert (await it.get("/ready"))[0] == 200
        assert (await change(it))[0]["hits"] == 5

    serve(test, SETUP)


def test_missing_metrics(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "metrics", "how": "missing"}, {"kind": "not-ready"})
        assert await it.get("/health") == (503, None), "the status of /health is still true"
        await change(it, clear=["not-ready"])
        assert await it.get("/health") == (200, None)
        for path in ("/metrics", "/loads", "/get_load"):
            assert (await it.get(path))[0] == 404
        async with it.session.post(it.url("/metrics")) as answer:
            assert answer.status == 405

    serve(test, SETUP)


def test_frozen_metrics(serve: Any) -> None:
    async def test(it: Any) -> None:
        async def page() -> str:
            async with it.session.get(it.url("/metrics")) as answer:
                text: str = await answer.text()
                return text

        await complete(it)
        before = await page()
        await change(it, {"kind": "metrics", "how": "frozen"}, {"kind": "hang", "after": 1})
        assert await page() == before
        assert (await complete(it))[0] == 200
        held = asyncio.create_task(raw(it, ask()))
        await it.until(lambda: [row.kind for row in it.rows()].count(RowKind.INFERENCE) == 3)
        assert await page() == before
        assert (await it.health())["queue_depth"] == 0
        await change(it, clear=["metrics"])
        assert await page() != before
        assert (await it.health())["queue_depth"] == 1
        await change(it, clear=["hang"])
        await held

    serve(test, SETUP)


def test_an_eviction_is_done_once(serve: Any) -> None:
    cold = Setup(Gpu("box", 1_000, 4, None), Model("any", 100, 0.005, 10_000.0, 0.0))

    async def test(it: Any) -> None:
        await complete(it)
        assert (await it.health())["models"] == ["m"]
        assert await change(it, {"kind": "evict"}) == [{"kind": "evict", "hits": 1}]
        assert (await it.health())["models"] == []
        assert it.rows()[-2].kind is RowKind.RESIDENCY_EVICTED
        await complete(it)
        assert (await it.health())["models"] == ["m"], "it stays loaded afterwards"
        await change(it, {"kind": "evict"})
        assert (await it.health())["models"] == []

    serve(test, cold)
