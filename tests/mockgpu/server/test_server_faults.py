"""Faults over HTTP: set and cleared, their effect on raw clients, their rows in the log."""

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import ClientError

from mockgpu.api.tags import hex_of
from mockgpu.faults.kinds import KINDS
from mockgpu.server.attempt_log import RowOutcome
from tests.mockgpu.fault_calls import SETUP, STEP_S, TAG, ask, change, complete, raw


def test_control_sets_shows_and_clears(serve: Any) -> None:
    async def test(it: Any) -> None:
        shown = await change(it, {"kind": "status", "status": 500, "first": 2}, {"kind": "slow", "factor": 2.0})
        assert shown == [
            {"kind": "status", "status": 500, "first": 2, "seed": 0, "hits": 0},
            {"kind": "slow", "factor": 2.0, "seed": 0, "hits": 0},
        ]
        assert [(await complete(it))[0] for _ in range(3)] == [500, 500, 200]
        async with it.session.get(it.url("/mock/faults")) as answer:
            assert [(each["kind"], each["hits"]) for each in (await answer.json())["faults"]] == [
                ("status", 2),
                ("slow", 1),
            ]
        assert [each["kind"] for each in await change(it, clear=["status"])] == ["slow"]
        assert await change(it, clear="all") == []
        assert len(it.rows()) == 3, "control is not logged"

    serve(test, SETUP)


def test_bad_input_changes_nothing_and_names_the_kinds(serve: Any) -> None:
    async def test(it: Any) -> None:
        for body in ('{"set": [{"kind": "slow", "factor": 2}, {"kind": "melt"}]}', "[]", "{"):
            async with it.session.post(it.url("/mock/faults"), data=body) as answer:
                assert answer.status == 400
                text = await answer.text()
                assert "\n" not in text
                if "melt" in body:
                    message = json.loads(text)["error"]["message"]
                    assert message == f"unknown fault 'melt', expected one of: {', '.join(KINDS)}"
        assert await change(it) == []

    serve(test, SETUP)


def test_a_reset_clears_them(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "status", "status": 500}, {"kind": "not-ready"})
        async with it.session.post(it.url("/mock/reset"), json={"nonce": 1}) as answer:
            assert answer.status == 200
        assert await change(it) == []
        assert (await complete(it))[0] == 200

    serve(test, SETUP)


def test_a_status_is_answered_at_once_and_logged(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "status", "status": 429, "retry_after_s": 1.2})
        status, body, headers = await complete(it, max_tokens=10_000)
        assert (status, headers["Retry-After"], headers["x-backend-id"]) == (429, "2", "gpu-3")
        assert headers["x-mock-tag"] == hex_of(TAG)
        assert json.loads(body)["error"]["code"] == "fault"
        async with it.session.get(it.url("/v1/models/m/answer")) as answer:
            assert answer.status == 429
        async with it.session.post(it.url("/v1/updates"), json={"seed": TAG}) as answer:
            assert answer.status == 429
        await it.until(lambda: all(row.outcome is RowOutcome.ANSWERED for row in it.rows()))
        assert [row.status for row in it.rows()] == [429] * 3
        assert it.rows()[0].tag == TAG

    serve(test, SETUP)


def test_what_exceeds_the_capacity_is_refused(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "capacity", "rate_per_s": 0, "burst": 2})
        assert [(await complete(it))[0] for _ in range(4)] == [200, 200, 503, 503]
        await it.until(lambda: it.rows()[-1].outcome is not RowOutcome.OPEN)
        assert [row.outcome for row in it.rows()] == [RowOutcome.ANSWERED] * 2 + [RowOutcome.REFUSED] * 2

    serve(test, SETUP)


def test_slow_service_is_asked_for_and_takes_its_time(serve: Any) -> None:
    async def test(it: Any) -> None:
        await complete(it)
        await change(it, {"kind": "slow", "factor": 10.0})
        began_s = time.monotonic()
        await complete(it)
        assert time.monotonic() - began_s >= 10 * 5 * STEP_S
        async with it.session.post(it.url("/v1/completions"), json=ask(stream=True)) as answer:
            first_s = time.monotonic()
            await answer.read()
            assert time.monotonic() - first_s >= 10 * 4 * STEP_S * 0.9
        async with it.session.post(it.url("/v1/updates"), json={}):
            pass
        await it.until(lambda: it.rows()[-1].outcome is not RowOutcome.OPEN)
        plain, slow, stream, update = it.rows()
        assert slow.service_asked_s == pytest.approx(10 * plain.service_asked_s)
        assert stream.service_asked_s == slow.service_asked_s
        assert update.service_asked_s == pytest.approx(10 * 0.005)
        assert all(row.service_actual_s >= row.service_asked_s - 1e-9 for row in it.rows())

    serve(test, SETUP)


def test_a_zombie_holds_requests_while_health_stays_fine(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "hang"})
        leaver, stayer = (asyncio.create_task(complete(it)) for _ in range(2))
        await it.until(lambda: len(it.rows()) == 2)
        for path in ("/health", "/ready", "/v2/health/live", "/v2/health/ready", "/v1/models", "/metrics"):
            async with it.session.get(it.url(path)) as answer:
                assert answer.status == 200
        state = await it.health()
        assert (state["queue_depth"], state["running"], state["pending_tokens"]) == (2, 0, 16)
        async with it.session.get(it.url("/metrics")) as answer:
            assert 'vllm:num_requests_waiting{model_name="any",engine="0"} 2\n' in await answer.text()
        assert [row.outcome for row in it.rows()[:2]] == [RowOutcome.OPEN] * 2
        assert it.rows()[0].tag == TAG, "the row has the tag already"
        leaver.cancel()
        await it.until(lambda: RowOutcome.CLIENT_GONE in {row.outcome for row in it.rows()})
        assert (await it.health())["queue_depth"] == 1
        assert not stayer.done()
        await change(it, clear=["hang"])
        with pytest.raises((ClientError, ConnectionError)):
            await stayer
        await it.until(lambda: RowOutcome.CUT in {row.outcome for row in it.rows()})
        assert (await it.health())["queue_depth"] == 0
        assert (await complete(it))[0] == 200

    serve(test, SETUP)


def test_a_hang_ends_by_a_reset(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "hang"})
        held = asyncio.create_task(raw(it, ask()))
        await it.until(lambda: len(it.rows()) == 1)
        async with it.session.post(it.url("/mock/reset"), json={"nonce": 0}):
            pass
        assert await held == (b"", True)

    serve(test, SETUP)


@pytest.mark.parametrize("after", [0, 2, 5, 99])
def test_a_whole_answer_is_cut_in_its_body(serve: Any, after: int) -> None:
    async def test(it: Any) -> None:
        whole = (await complete(it))[1]
        await change(it, {"kind": "cut", "after_tokens": after})
        got, reset = await raw(it, ask())
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert f"Content-Length: {len(whole)}".encode() in head
        assert body == whole[: min(len(whole) * after // 5, len(whole) - 1)]
        assert reset
        await it.until(lambda: it.rows()[-1].outcome is RowOutcome.CUT)
        row = it.rows()[-1]
        assert (row.status, row.bytes_out) == (200, len(body))
        assert row.service_actual_s >= row.service_asked_s - 1e-9, "the job was served"

    serve(test, SETUP)


@pytest.mark.parametrize("after", [0, 2, 4, 5, 99])
def test_a_stream_is_cut_after_so_many_tokens(serve: Any, after: int) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "cut", "after_tokens": after})
        got, reset = await raw(it, ask(stream=True))
        assert got.startswith(b"HTTP/1.1 200 ")
        assert got.count(b'data: {"id"') == min(after, 5)
        assert b"[DONE]" not in got and not got.endswith(b"\r\n0\r\n\r\n")
        assert reset
        await it.until(lambda: it.rows()[-1].outcome is RowOutcome.CUT)
        assert (await it.health())["running"] == 0

    serve(test, SETUP)


def test_an_update_is_cut_after_it_was_done(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "cut", "after_tokens": 1})
        got, reset = await raw(it, {"seed": TAG}, "/v1/updates")
        assert got.startswith(b"HTTP/1.1 200 ") and not got.endswith(b"}") and reset
        await it.until(lambda: it.rows()[-1].outcome is RowOutcome.CUT)
        assert it.rows()[-1].service_actual_s >= 0.005

    serve(test, SETUP)


def test_not_ready_concerns_the_readiness_routes_only(serve: Any) -> None:
    async def test(it: Any) -> None:
        await change(it, {"kind": "not-ready"})
        for path, status in (("/health", 503), ("/ready", 503), ("/v2/health/ready", 503), ("/v2/health/live", 200)):
            async with it.session.get(it.url(path)) as answer:
                assert answer.status == status
        assert (await it.health())["ready"] is False
        assert (await complete(it))[0] == 200

    serve(test, SETUP)
