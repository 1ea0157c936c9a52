"""The criterion of a good health-check answer, and reports beyond a limit."""

from __future__ import annotations

import math

import pytest

from harness.balancer.health.readiness import RotationSettings
from harness.gateway.expected_answer import ExpectedAnswer
from harness.gateway.protocol import Backend


def reported(total_mb: float = 100.0, used_mb: float = 0.0, evictable_mb: float = 0.0, queue_depth: int = 0) -> Backend:
    return Backend(
        "a",
        "",
        memory_total_mb=total_mb,
        memory_used_mb=used_mb,
        memory_evictable_mb=evictable_mb,
        queue_depth=queue_depth,
    )


@pytest.mark.parametrize(
    ("expected", "status", "body", "met"),
    [
        (ExpectedAnswer(), 200, b"", True),
        (ExpectedAnswer(), 204, b"", False),
        (ExpectedAnswer(), 503, b"ok", False),
        (ExpectedAnswer(frozenset({200, 204})), 204, b"", True),
        (ExpectedAnswer(body_part="SERVING"), 200, b'{"status": "SERVING"}', True),
        (ExpectedAnswer(body_part="SERVING"), 200, b'{"status": "LOADING"}', False),
        (ExpectedAnswer(body_part="SERVING"), 503, b"SERVING", False),
        (ExpectedAnswer(ready_field=True), 200, b'{"ready": true}', True),
        (ExpectedAnswer(ready_field=True), 200, b'{"ready": false}', False),
        (ExpectedAnswer(ready_field=True), 200, b'{"ready": "true"}', False),
        (ExpectedAnswer(ready_field=True), 200, b'{"models": []}', False),
        (ExpectedAnswer(ready_field=True), 200, b"[true]", False),
        (ExpectedAnswer(ready_field=True), 200, b"ready", False),
        (ExpectedAnswer(ready_field=True), 200, b"\xff\xfe{", False),
        (ExpectedAnswer(ready_field=True), 200, b"[" * 200_000, False),
        (ExpectedAnswer(body_part="\u00fc"), 200, b"\xff\xc3\xbc", True),
    ],
)
def test_expected_answer(expected: ExpectedAnswer, status: int, body: bytes, met: bool) -> None:
    """E12: a status alone is little evidence while an engine warms up; an unreadable body is no good answer."""
    assert expected.met(status, body) is met


@pytest.mark.parametrize(
    ("report", "overloaded"),
    [
        (reported(used_mb=95.0), False),
        (reported(used_mb=95.01), True),
        (reported(used_mb=100.0, evictable_mb=5.0), False),
        (reported(used_mb=100.0, evictable_mb=4.9), True),
        (reported(queue_depth=100), False),
        (reported(queue_depth=101), True),
        (reported(total_mb=0.0, used_mb=50.0), False),
        (reported(used_mb=math.nan), False),
        (reported(used_mb=99.0, evictable_mb=-1.0), False),
        (reported(used_mb=math.nan, queue_depth=101), True),
    ],
)
def test_limits_are_exceeded_and_not_reached_and_garbage_decides_nothing(report: Backend, overloaded: bool) -> None:
    """S12: a backend with 100 % in use stays in rotation while 5 % is evictable."""
    assert RotationSettings().overloaded(report) is overloaded


def test_limits_can_be_off() -> None:
    settings = RotationSettings(memory_share=None, queue_depth=None)
    assert not settings.overloaded(reported(used_mb=100.0, queue_depth=10_000))


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory_share", 0.0), ("memory_share", 1.1), ("queue_depth", -1), ("minimum_ready_share", 1.1), ("jitter", 1.0)],
)
def test_settings_that_make_no_sense(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} {value}"):
        RotationSettings(**{field: value})  # type: ignore[arg-type]
