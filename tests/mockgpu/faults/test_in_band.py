"""In-band faults: read from headers and body, and applied over HTTP."""

import asyncio
import json
from typing import Any

import pytest

from mockgpu.api.wire import BadRequestError
from mockgpu.faults.in_band import in_band_faults
from mockgpu.faults.json_form import HERE
from mockgpu.faults.kinds import CutOff, FailingStatus, Garbage, RequestFault, Slow
from mockgpu.server.attempt_log import RowOutcome
from tests.mockgpu.fault_calls import SETUP, ask, change, raw


@pytest.mark.parametrize(
    ("headers", "data", "expected"),
    [
        ({}, {}, []),
        ({}, {"mock_fault": None}, []),
        ({"X-Return-Error": "503"}, {}, [FailingStatus(*HERE, 503)]),
        ({"X-Return-Error": " 429 ; retry_after_s=2 "}, {}, [FailingStatus(*HERE, 429, 2)]),
        ({"X-Mock-Fault": '{"kind": "slow", "factor": 4}'}, {}, [Slow(*HERE, 4)]),
        ({"X-Mock-Fault": ' [{"kind": "garbage"}, {"kind": "slow", "factor": 4}]'}, {},
         [Garbage(*HERE), Slow(*HERE, 4)]),
        ({"X-Mock-Fault": "garbage"}, {}, [Garbage(*HERE)]),
        ({"X-Mock-Fault": "slow; factor=4.5, cut;after_tokens=2"}, {}, [Slow(*HERE, 4.5), CutOff(*HERE, 2)]),
        ({}, {"mock_fault": {"kind": "slow", "factor": 4}}, [Slow(*HERE, 4)]),
        ({}, {"mock_fault": [{"kind": "cut", "after_tokens": 0}]}, [CutOff(*HERE, 0)]),
        ({}, {"mock_fault": "status;status=404"}, [FailingStatus(*HERE, 404)]),
        ({"X-Mock-Fault": "garbage", "X-Return-Error": "500"}, {"mock_fault": "cut;after_tokens=1"},
         [Garbage(*HERE), FailingStatus(*HERE, 500), CutOff(*HERE, 1)]),
    ],
)  # fmt: skip
def test_all_forms_are_read(headers: dict[str, str], data: dict[str, object], expected: list[RequestFault]) -> None:
    assert in_band_faults(headers, data) == tuple(expected)


@pytest.mark.parametrize(
    ("headers", "data", "message"),
    [
        (
            {"X-Mock-Fault": "melt"},
            {},
            "X-Mock-Fault: unknown fault 'melt', expected one of: status, capacity",
        ),
        ({"X-Mock-Fault": ""}, {}, "X-Mock-Fault: unknown fault '', expected one of:"),
        ({"X-Mock-Fault": "{"}, {}, "X-Mock-Fault: invalid JSON: "),
        ({"X-Mock-Fault": "[" * 100_000}, {}, "X-Mock-Fault: invalid JSON: "),
        ({"X-Mock-Fault": "[3]"}, {}, "X-Mock-Fault: a fault is 3, expected an object with a kind"),
        ({"X-Mock-Fault": "slow;4"}, {}, "X-Mock-Fault: '4' in 'slow;4', expected name=value"),
        ({"X-Mock-Fault": "slow;factor=fast"}, {}, "factor is 'fast', expected a number above 0"),
        ({"X-Mock-Fault": "slow;factor=1e999"}, {}, "factor is inf, expected a number above 0"),
        (
            {"X-Mock-Fault": "cut;after_tokens=1;share=0.5"},
            {},
            "fault cut is selective, expected no first, every, share",
        ),
        (
            {"X-Mock-Fault": "capacity;rate_per_s=1;burst=1"},
            {},
            "fault capacity does not apply to a single request; set it",
        ),
        ({"X-Mock-Fault": "not-ready"}, {}, "fault not-ready does not apply to a single request"),
        (
            {"X-Mock-Fault": "out-of-memory;dead=true"},
            {},
            "fault out-of-memory is dead, which does not apply to a single",
        ),
        ({"X-Return-Error": "nine"}, {}, "X-Return-Error: fault status: status is 'nine', expected a status from"),
        ({"X-Return-Error": "200"}, {}, "X-Return-Error: fault status: status is 200, expected a status from"),
        ({"X-Return-Error": "500"}, {"mock_fault": "status;status=501"}, "mock_fault: two faults of one kind"),
        ({}, {"mock_fault": 7}, "mock_fault: a fault is 7, expected an object with a kind"),
    ],
)
def test_nonsense_is_told_in_one_line(headers: dict[str, str], data: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        in_band_faults(headers, data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_request_brings_its_own_fault(serve: Any) -> None:
    async def test(it: Any) -> None:
        async def call(headers: dict[str, str], **fields: Any) -> tuple[int, bytes, Any]:
            async with it.session.post(it.url("/v1/completions"), json=ask(**fields), headers=headers) as answer:
                return answer.status, await answer.read(), answer.headers

        status, body, headers = await call({"X-Return-Error": "503;retry_after_s=1"})
        assert (status, headers["Retry-After"], json.loads(body)["error"]["code"]) == (503, "1", "fault")
        assert (await call({"x-mock-fault": '{"kind": "queue-full"}'}))[0] == 503
        assert (await call({}, mock_fault={"kind": "status", "status": 418}))[0] == 418
        assert (await call({}))[0] == 200
        status, body, _ = await call({"X-Mock-Fault": "melt"})
        error = json.loads(body)["error"]
        assert (status, error["param"]) == (400, "X-Mock-Fault")
        async with it.session.get(it.url("/v1/models/m/answer"), headers={"X-Return-Error": "500"}) as answer:
            assert answer.status == 500
        async with it.session.post(it.url("/v1/updates"), json={"mock_fault": "status;status=500"}) as answer:
            assert answer.status == 500
        got, reset = await raw(it, ask(stream=True, mock_fault="cut;after_tokens=2"))
        assert (got.count(b'data: {"id"'), reset) == (2, True)
        got, reset = await raw(it, ask(stream=True, mock_fault="stream-error;after_tokens=2"), close=True)
        assert (got.count(b'data: {"id"'), got.count(b'data: {"error"'), reset) == (2, 1, False)
        assert await change(it) == [], "none is set"
        await it.until(lambda: it.rows()[-1].outcome is RowOutcome.CUT)
        assert [row.status for row in it.rows()] == [503, 503, 418, 200, 400, 500, 500, 200, 200]

    serve(test, SETUP)


def test_an_in_band_hang_is_released_like_any(serve: Any) -> None:
    async def test(it: Any) -> None:
        held = asyncio.create_task(raw(it, ask(mock_fault="hang")))
        await it.until(lambda: len(it.rows()) == 1)
        assert (await it.health())["queue_depth"] == 1
        assert await change(it) == []
        await change(it, clear="all")
        assert await held == (b"", True)

    serve(test, SETUP)
