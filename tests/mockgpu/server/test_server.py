import asyncio
import json
import math
import time
from typing import Any

import pytest

from mockgpu.api.tags import Carrier, hex_of, tag_of
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome, body_hash_of

NONCE = 77
TAG = tag_of(NONCE, 5)
STEP_S = 0.002
TOKEN = "t0ken"


def setup_with(*models: Model, max_running: int = 4, queue_limit: int | None = None) -> Setup:
    return Setup(
        Gpu("box", 1_000, max_running, queue_limit, update_s=0.005),
        Model("any", 0, 0.0, 10_000.0, STEP_S),
        models,
    )


SETUP = setup_with()
LARGE = Model("large", 600, 0.03, 10_000.0, STEP_S)
WHALE = Model("whale", 5_000, 1.0, 10_000.0, STEP_S)
SLOW = Model("slow", 0, 0.0, 10_000.0, 30.0)


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": f"one two three #sy-{hex_of(TAG)}", "max_tokens": 5, "seed": TAG} | fields


HEADERS = {"x-mock-tag": hex_of(TAG), "x-request-id": f"sy-{hex_of(TAG)}"}


def test_a_completion_is_answered_and_logged_in_full(serve: Any) -> None:
    async def test(it: Any) -> None:
        body = json.dumps(ask()).encode()
        began_s = time.monotonic()
        async with it.session.post(it.url("/v1/completions"), data=body, headers=HEADERS) as answer:
            assert answer.status == 200
            assert answer.headers["x-backend-id"] == "gpu-3"
            assert answer.headers["x-mock-tag"] == hex_of(TAG)
            assert answer.headers["x-mock-cold"] == "0"
            data = await answer.json()
        took_s = time.monotonic() - began_s
        assert data["id"] == f"sy-{hex_of(TAG)}"
        assert data["backend"] == "gpu-3"
        assert data["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
        assert len(data["choices"][0]["text"].split()) == 5
        (row,) = it.rows()
        assert (row.kind, row.method, row.status, row.outcome) == (
            RowKind.INFERENCE,
            "POST",
            200,
            RowOutcome.ANSWERED,
        )
        assert (row.tag, row.carriers, row.model) == (TAG, 15, "m")
        assert row.service_asked_s == pytest.approx(4 / 10_000 + 5 * STEP_S)
        assert row.service_asked_s - 1e-9 <= row.service_actual_s <= took_s
        assert began_s <= row.arrival_s <= row.first_byte_s <= row.end_s <= began_s + took_s
        assert row.first_byte_s - row.arrival_s >= row.service_asked_s - 1e-9
        assert (row.bytes_in, row.body_hash) == (len(body), body_hash_of(body))
        assert row.bytes_out == len(json.dumps(data))
        assert row.queue_wait_s == 0.0

    serve(test, SETUP, nonce=NONCE)


def test_a_stream_has_an_event_per_token_each_no_earlier_than_its_time(serve: Any) -> None:
    async def test(it: Any) -> None:
        sent_s = time.monotonic()
        body = ask(stream=True, stream_options={"include_usage": True})
        events: list[tuple[float, str]] = []
        async with it.session.post(it.url("/v1/completions"), json=body, headers=HEADERS) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-mock-tag"] == hex_of(TAG)
            events += [
                (time.monotonic() - sent_s, line[6:].decode().strip())
                async for line in answer.content
                if line.startswith(b"data: ")
            ]
        *tokens, usage, done = events
        assert done[1] == "[DONE]"
        assert json.loads(usage[1])["usage"]["completion_tokens"] == 5
        assert json.loads(usage[1])["choices"] == []
        assert len(tokens) == 5
        for number, (at_s, text) in enumerate(tokens):
            assert at_s >= 4 / 10_000 + (number + 1) * STEP_S
            assert json.loads(text)["id"] == f"sy-{hex_of(TAG)}"
        reasons = [json.loads(text)["choices"][0]["finish_reason"] for _, text in tokens]
        assert reasons == [None] * 4 + ["length"]
        await it.until(lambda: it.rows()[0].outcome is RowOutcome.ANSWERED)
        row = it.rows()[0]
        assert row.first_byte_s < row.end_s - 2 * STEP_S
        assert row.bytes_out == sum(len(f"data: {text}\n\n") for _, text in events)

    serve(test, SETUP, nonce=NONCE)


def test_a_stream_without_tokens_ends_at_once(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with it.session.post(it.url("/v1/completions"), json=ask(stream=True, max_tokens=0)) as answer:
            first, done, _ = (await answer.text()).split("\n\n")
            (choice,) = json.loads(first.removeprefix("data: "))["choices"]
            assert (choice["text"], choice["finish_reason"], done) == ("", "length", "data: [DONE]")

    serve(test, SETUP)


def test_the_same_service_by_get(serve: Any) -> None:
    async def test(it: Any) -> None:
        headers = HEADERS | {"x-prompt-tokens": "100", "x-output-tokens": "2"}
        async with it.session.get(it.url("/v1/models/org%2Fname/answer"), headers=headers) as answer:
            data = await answer.json()
        assert (data["model"], data["usage"]["total_tokens"]) == ("org/name", 102)
        (row,) = it.rows()
        assert (row.kind, row.method, row.model) == (RowKind.INFERENCE, "GET", "org/name")
        assert row.carriers == Carrier.HEADER | Carrier.REQUEST_ID
        assert row.service_asked_s == pytest.approx(100 / 10_000 + 2 * STEP_S)

    serve(test, SETUP, nonce=NONCE)


def test_headers_win_over_the_body(serve: Any) -> None:
    async def test(it: Any) -> None:
        headers = {"x-model-id": "other", "x-prompt-tokens": "7"}
        async with it.session.post(it.url("/v1/completions"), json=ask(), headers=headers) as answer:
            data = await answer.json()
        assert (data["model"], data["usage"]["prompt_tokens"]) == ("other", 7)
        async with it.session.post(it.url("/v1/completions"), json={}) as answer:
            data = await answer.json()
        assert (data["model"], data["usage"]["completion_tokens"]) == ("any", 16)
        assert data["id"] == "sy-none"
        assert "x-mock-tag" not in answer.headers

    serve(test, SETUP)


def test_an_update_takes_its_time(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with it.session.post(it.url("/v1/updates"), json={"seed": TAG}) as answer:
            assert (await answer.json())["id"] == f"sy-{hex_of(TAG)}"
        (row,) = it.rows()
        assert (row.kind, row.tag, row.service_asked_s) == (RowKind.UPDATE, TAG, 0.005)
        assert row.service_actual_s >= 0.005 - 1e-9

    serve(test, SETUP, nonce=NONCE)


def test_the_echo_is_that_of_the_body(serve: Any) -> None:
    async def test(it: Any) -> None:
        other = tag_of(NONCE, 6)
        headers = {"x-mock-tag": hex_of(other)}
        async with it.session.post(it.url("/v1/completions"), json=ask(), headers=headers) as answer:
            assert answer.headers["x-mock-tag"] == hex_of(TAG)
        (row,) = it.rows()
        assert (row.tag, row.carriers) == (other, Carrier.HEADER)

    serve(test, SETUP, nonce=NONCE)


@pytest.mark.parametrize(("nonce", "kind"), [(0, RowKind.INFERENCE), (NONCE, RowKind.INFERENCE), (78, RowKind.FOREIGN)])
def test_tags_of_another_run_are_foreign(serve: Any, nonce: int, kind: RowKind) -> None:
    async def test(it: Any) -> None:
        async with it.session.post(it.url("/v1/completions"), json=ask()) as answer:
            assert answer.status == 200
        async with it.session.post(it.url("/v1/completions"), json=ask(seed=None, prompt="hi")) as answer:
            assert answer.status == 200
        tagged, bare = it.rows()
        assert (tagged.kind, tagged.tag) == (kind, TAG)
        assert (bare.kind, bare.tag) == (RowKind.FOREIGN if nonce else RowKind.INFERENCE, 0)

    serve(test, SETUP, nonce=nonce)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b"[1]", {}),
        (b"\xff", {}),
        (b"[" * 100_000, {}),
        (b'{"max_tokens": -1}', {}),
        (b'{"max_tokens": true}', {}),
        (b'{"model": 5}', {}),
        (b'{"prompt": {}}', {}),
        (b'{"prompt": ["a b", [1, 2, 3]]}', {}),
        (b"", {}),
        (b"{}", {"x-prompt-tokens": "many"}),
        (b"{}", {"x-prompt-tokens": "-1"}),
    ],
)
def test_bad_requests_get_400_and_json(serve: Any, body: bytes, headers: dict[str, str]) -> None:
    async def test(it: Any) -> None:
        url = it.url("/v1/completions")
        async with it.session.post(url, data=body, headers=headers | HEADERS) as answer:
            assert answer.status == 400
            assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}
            assert answer.headers["x-mock-tag"] == hex_of(TAG)
        (row,) = it.rows()
        assert (row.status, row.outcome, row.tag) == (400, RowOutcome.ANSWERED, TAG)

    serve(test, SETUP, nonce=NONCE)


def test_odd_but_valid_bodies_are_served(serve: Any) -> None:
    async def test(it: Any) -> None:
        for body in (b'{"model": "\\ud800"}', b'{"prompt": [[4], [1, 2, 3]]}', b'{"seed": -3, "stop": null}'):
            async with it.session.post(it.url("/v1/completions"), data=body) as answer:
                assert answer.status == 200

    serve(test, SETUP)


def test_a_full_queue_and_a_model_too_large_are_refused_with_503(serve: Any) -> None:
    async def test(it: Any) -> None:
        first = asyncio.create_task(it.session.post(it.url("/v1/completions"), json=ask(model="slow", stream=True)))
        await it.until_running(1)
        for model, reason in (("m", "queue_full"), ("whale", "out_of_memory")):
            async with it.session.post(it.url("/v1/completions"), json=ask(model=model)) as answer:
                assert answer.status == 503
                assert (await answer.json())["error"]["code"] == reason
            refused = [row for row in it.rows() if row.outcome is RowOutcome.REFUSED]
            assert refused[-1].status == 503
            assert math.isnan(refused[-1].service_actual_s)
        first.cancel()

    serve(test, setup_with(WHALE, SLOW, max_running=1, queue_limit=0), nonce=NONCE)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(serve: Any, stream: bool) -> None:
    async def test(it: Any) -> None:
        request = asyncio.create_task(it.session.post(it.url("/v1/completions"), json=ask(model="slow", stream=stream)))
        await it.until_running(1)
        request.cancel()
        await it.until_running(0)
        row = next(row for row in it.rows() if row.kind is RowKind.INFERENCE)
        assert row.outcome is RowOutcome.CLIENT_GONE
        assert row.end_s >= row.arrival_s
        assert (row.status, row.queue_wait_s) == (0, 0.0)

    serve(test, setup_with(SLOW), nonce=NONCE)


def test_a_client_that_leaves_a_running_stream_is_noted(serve: Any) -> None:
    async def test(it: Any) -> None:
        answer = await it.session.post(it.url("/v1/completions"), json=ask(stream=True, max_tokens=100_000))
        await answer.content.readline()
        answer.close()
        await it.until_running(0)
        row = next(row for row in it.rows() if row.kind is RowKind.INFERENCE)
        assert (row.outcome, row.status) == (RowOutcome.CLIENT_GONE, 200)
        assert row.bytes_out > 0

    serve(test, SETUP, nonce=NONCE)


def test_a_client_that_breaks_off_its_body_is_noted(serve: Any) -> None:
    async def test(it: Any) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", it.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-mock-tag: {hex_of(TAG)}\r\ncontent-length: 50\r\n"
        writer.write(head.encode() + b"\r\n{")
        await it.until(lambda: len(it.rows()) == 1)
        (row,) = it.rows()
        assert (row.outcome, row.kind, row.tag) == (RowOutcome.OPEN, RowKind.INFERENCE, TAG)
        writer.close()
        await it.until(lambda: it.rows()[0].outcome is RowOutcome.CLIENT_GONE)

    serve(test, SETUP, nonce=NONCE)


def test_a_client_that_waits_to_be_told_to_continue_is_told(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with it.session.post(it.url("/v1/completions"), json=ask(), expect100=True) as answer:
            assert answer.status == 200

    serve(test, SETUP)


def test_a_cold_model_is_loaded_and_said_to_be_cold(serve: Any) -> None:
    async def test(it: Any) -> None:
        colds = []
        for model in ("large", "large", "other-large"):
            async with it.session.post(it.url("/v1/completions"), json=ask(model=model)) as answer:
                assert answer.status == 200
                colds.append(answer.headers["x-mock-cold"])
        assert colds == ["1", "0", "1"]
        assert (await it.health())["models"] == ["other-large"]
        rows = it.rows()
        kinds = [(row.kind, row.model) for row in rows if row.kind not in (RowKind.INFERENCE, RowKind.HEALTH_CHECK)]
        assert kinds == [
            (RowKind.RESIDENCY_LOADING, "large"),
            (RowKind.RESIDENCY_LOADED, "large"),
            (RowKind.RESIDENCY_EVICTED, "large"),
            (RowKind.RESIDENCY_LOADING, "other-large"),
            (RowKind.RESIDENCY_LOADED, "other-large"),
        ]
        first = next(row for row in rows if row.kind is RowKind.INFERENCE)
        assert (first.cold, first.queue_wait_s) == (1, pytest.approx(LARGE.load_s))

    other = Model("other-large", 600, 0.03, 10_000.0, STEP_S)
    serve(test, setup_with(LARGE, other), nonce=NONCE)


def test_a_thousand_requests_at_once_each_get_their_own_answer(serve: Any) -> None:
    async def test(it: Any) -> None:
        async def one(number: int) -> float:
            tag = tag_of(NONCE, number)
            body = ask(seed=tag, prompt=f"x #sy-{hex_of(tag)}", max_tokens=number % 3, stream=number % 2 == 0)
            async with it.session.post(it.url("/v1/completions"), json=body) as answer:
                assert answer.headers["x-mock-tag"] == hex_of(tag)
                await answer.read()
            return number

        await asyncio.gather(*(one(number) for number in range(1, 1_000)))
        await it.until(lambda: all(row.outcome is RowOutcome.ANSWERED for row in it.rows()))
        rows = it.rows()
        assert sorted(row.tag for row in rows) == [tag_of(NONCE, number) for number in range(1, 1_000)]
        assert all(row.service_actual_s >= row.service_asked_s - 1e-9 for row in rows)

    serve(test, setup_with(max_running=64), nonce=NONCE)
