"""Requests that fail after admission: by an error event in their stream, or when the engine dies."""

import asyncio
import json
from typing import Any

import pytest

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome
from tests.mockgpu.fault_calls import SETUP, ask, change, complete, last_row, part_of, raw


@pytest.mark.parametrize("after", [0, 2, 5, 99])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_ends_by_an_error_event(serve: Any, after: int, path: str) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "stream-error", "after_tokens": after})
        messages = [{"role": "user", "content": "one two"}]
        async with it.session.post(it.url(path), json=ask(stream=True, messages=messages)) as answer:
            body = await answer.read()
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
        *events, error, done, nothing = body.split(b"\n\n")
        assert sum(b'"token": ' in event for event in events) == min(after, 5)
        assert json.loads(error.removeprefix(b"data: ")) == {
            "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
        }
        assert (done, nothing) == (b"data: [DONE]", b"")
        row = await last_row(it, RowOutcome.CUT)
        assert (row.status, row.tokens_out, row.bytes_out) == (200, min(after, 5), len(body))
        assert (await it.health())["running"] == 0

    serve(test, SETUP)


@pytest.mark.parametrize("after", [0, 2])
def test_a_response_ends_by_an_error_event_of_its_own(serve: Any, after: int) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "stream-error", "after_tokens": after})
        body = {"input": "one two", "stream": True, "max_output_tokens": 5}
        async with it.session.post(it.url("/v1/responses"), json=body) as answer:
            *events, last, nothing = (await answer.text()).split("\n\n")
        kind, data = last.split("\n")
        assert (kind, nothing, len(events)) == ("event: error", "", 4 + after if after else 0)
        assert json.loads(data.removeprefix("data: ")) == {
            "type": "error",
            "sequence_number": len(events),
            "code": "500",
            "message": "Internal server error",
            "param": None,
        }

    serve(test, SETUP)


def test_what_is_not_streamed_is_answered_500_instead(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "stream-error", "after_tokens": 1})
        status, body, _ = await complete(it)
        assert (status, json.loads(body)["error"]["type"]) == (500, "InternalServerError")
        row = await last_row(it, RowOutcome.ANSWERED)
        assert (row.status, row.tokens_out) == (500, 0)
        assert row.service_actual_s >= row.service_asked_s - 1e-9, "when it would have been ready"
        fields = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a b"]}]}
        assert await it.post("/v2/models/m/infer", **fields) == (500, {"error": "Internal server error"})

    serve(test, SETUP)


@pytest.mark.parametrize("fault", [{"dead": True}, {"dead": True, "first": 1}], ids=["at once", "by a request"])
def test_a_dead_engine_fails_all_that_is_inside_and_all_that_comes(serve: Any, fault: dict[str, Any]) -> None:
    """A streamed request, a non-streamed one, a waiting one and a stalled one; the setup has two slots."""

    async def test(it: Any) -> None:
        await complete(it, max_tokens=1)
        body = ask(stream=True, max_tokens=5_000)
        got, reader, writer = await part_of(it, body, lambda got: got.count(b'data: {"id"') >= 2)
        admitted = [asyncio.create_task(complete(it, max_tokens=5_000)) for _ in range(2)]
        stalled = asyncio.create_task(raw(it, ask(mock_fault="stall;after_tokens=3")))
        await it.until(lambda: [row.kind for row in it.rows()].count(RowKind.INFERENCE) == 5)
        assert (await it.health())["running"] == 2
        await change(it, {"kind": "out-of-memory", **fault})
        if "first" in fault:
            assert json.loads((await complete(it))[1])["error"]["code"] == "out_of_memory"
        for status, text, _ in await asyncio.gather(*admitted):
            assert (status, json.loads(text)["error"]["code"]) == (500, "engine_dead")
        got += await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        assert got.count(b'data: {"error": ') == 1 and b"data: [DONE]" in got
        status, text, _ = await complete(it)
        assert (status, json.loads(text)["error"]["code"]) == (500, "engine_dead")
        assert (await it.get("/health"))[0] == 503
        assert (await it.get("/ping"))[0] == 200
        state = await it.health()
        assert (state["running"], state["queue_depth"], state["models"]) == (0, 0, [])
        assert not stalled.done()
        await change(it, clear=["out-of-memory", "stall"])
        assert await stalled == (b"", True)
        assert (await complete(it))[0] == 200
        assert (await it.get("/health"))[0] == 200
        outcomes = [row.outcome for row in it.rows() if row.kind is RowKind.INFERENCE]
        assert sorted(outcomes[1:5]) == [RowOutcome.REFUSED, RowOutcome.REFUSED, RowOutcome.CUT, RowOutcome.CUT]

    serve(test, Setup(Gpu("box", 1_000, 2, None), Model("any", 100, 0.005, 10_000.0, 0.004)))
