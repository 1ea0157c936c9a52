import asyncio
import socket
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientPayloadError

from mockgpu.api.tags import hex_of, tag_of
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome, read_rows
from mockgpu.server.listening import PortError, http_server, listen

NONCE = 77
TAG = tag_of(NONCE, 5)
TOKEN = "t0ken"
SETUP = Setup(
    Gpu("box", 1_000, 4, None),
    Model("any", 0, 0.0, 10_000.0, 0.002),
    (Model("large", 600, 0.03, 10_000.0, 0.002), Model("slow", 0, 0.0, 10_000.0, 30.0)),
)


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": f"one two three #sy-{hex_of(TAG)}", "max_tokens": 5, "seed": TAG} | fields


def test_health_and_its_kin(serve: Any) -> None:
    async def test(it: Any) -> None:
        assert await it.health() == {
            "ready": True,
            "memory_total_mb": 1_000,
            "memory_used_mb": 0,
            "memory_evictable_mb": 0,
            "queue_depth": 0,
            "running": 0,
            "pending_tokens": 0,
            "models": [],
        }
        for path in ("/ready", "/v2/health/live", "/v2/health/ready"):
            async with it.session.get(it.url(path)) as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        async with it.session.head(it.url("/health")) as answer:
            assert answer.status == 200
        async with it.session.get(it.url("/v1/models")) as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["any", "large", "slow"]
        async with it.session.get(it.url("/metrics")) as answer:
            text = await answer.text()
        assert 'vllm:num_requests_running{model_name="any",engine="0"} 0\n' in text
        assert "vllm:num_requests_waiting" in text
        async with it.session.get(it.url("/nowhere")) as answer:
            assert answer.status == 404
            assert "error" in await answer.json()
        async with it.session.post(it.url("/health"), data=b"x") as answer:
            assert answer.status == 405
        rows = it.rows()
        assert {row.kind for row in rows} == {RowKind.HEALTH_CHECK}
        assert [row.status for row in rows] == [200] * 7 + [404, 405]
        assert all(row.outcome is RowOutcome.ANSWERED for row in rows)

    serve(test, SETUP, nonce=NONCE)


def test_reset_begins_a_run_and_lets_those_inside_finish(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with it.session.post(it.url("/v1/completions"), json=ask(model="large")):
            pass
        inside = asyncio.create_task(it.session.post(it.url("/v1/completions"), json=ask(max_tokens=100)))
        await it.until_running(1)
        async with it.session.post(it.url("/mock/reset"), json={"nonce": 78}) as answer:
            assert answer.status == 200
        state = await it.health()
        assert (state["models"], state["running"], state["memory_used_mb"]) == ([], 0, 0)
        assert (await inside).status == 200
        async with it.session.post(it.url("/v1/completions"), json=ask(seed=tag_of(78, 1), prompt="")):
            pass
        async with it.session.get(it.url("/mock/log")) as answer:
            rows = read_rows(await answer.read())
        assert [(row.kind, row.tag) for row in rows] == [
            (RowKind.HEALTH_CHECK, 0),
            (RowKind.INFERENCE, tag_of(78, 1)),
        ]

    serve(test, SETUP, nonce=NONCE)


def test_control_needs_the_token_and_is_not_logged(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with it.session.get(it.url("/mock/ping")) as answer:
            assert answer.status == 403
        headers = {"x-mock-token": TOKEN}
        async with it.session.get(it.url("/mock/ping"), headers=headers) as answer:
            assert (answer.status, await answer.read()) == (200, b"{}")
        async with it.session.get(it.url("/mock/ping?bytes=70000"), headers=headers) as answer:
            assert (answer.status, len(await answer.read())) == (200, 70_000)
        for wrong in ("-1", "many", "16000001"):
            async with it.session.get(it.url(f"/mock/ping?bytes={wrong}"), headers=headers) as answer:
                assert answer.status == 400
        for nonce in (-1, 2**31, "7", None):
            url = it.url("/mock/reset")
            async with it.session.post(url, json={"nonce": nonce}, headers=headers) as answer:
                assert answer.status == 400
        async with it.session.get(it.url("/mock/elsewhere"), headers=headers) as answer:
            assert answer.status == 404
        assert it.rows() == []

    serve(test, SETUP, token=TOKEN)


def test_a_failure_of_our_own_is_500_in_json(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    async def test(it: Any) -> None:
        monkeypatch.setattr("mockgpu.api.wire.health", broken)
        async with it.session.get(it.url("/health")) as answer:
            assert answer.status == 500
            assert (await answer.json())["error"]["type"] == "internal_error"

    serve(test, SETUP)
    assert "planted" in caplog.text


def test_a_taken_port_is_one_line() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]

            async def nothing(_: object) -> Any: ...

            runner = http_server(nothing)
            await runner.setup()
            with pytest.raises(PortError, match=f"port {port} on 127.0.0.1 is taken"):
                await listen(runner, "127.0.0.1", port)
            await runner.cleanup()

    asyncio.run(main())


def test_closing_cuts_those_inside(serve: Any) -> None:
    async def test(it: Any) -> None:
        request = asyncio.create_task(it.session.post(it.url("/v1/completions"), json=ask(model="slow")))
        await it.until_running(1)
        await it.backend.close()
        with pytest.raises((ClientConnectionError, ClientPayloadError)):
            await request

    serve(test, SETUP, nonce=NONCE)
