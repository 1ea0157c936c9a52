"""What a stranger's gateway may return, and the one line for anything else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.gateway.checked_gateway import CheckedGateway, checked_actions
from harness.gateway.protocol import (
    BackendDrained,
    Cancel,
    CancelTimer,
    Commit,
    Exit,
    MemberReport,
    Reply,
    Send,
    SendHealthCheck,
    SetTimer,
    ShutdownAsked,
)
from harness.scenario.model import AdapterError

VALID = [
    Send(1, 2, "gpu-0", 1.5),
    Send(1, 2, "nobody", 0),
    Cancel(1),
    Commit(2, 1),
    Reply(2, 503, "no backends"),
    Reply(2, 429, "later", 1),
    SetTimer(1, -1.0),
    CancelTimer(1),
    SendHealthCheck(1, "gpu-0", 1.0),
    BackendDrained("gpu-0"),
    Exit(),
]


class Returns:
    """A gateway that returns the same for every event."""

    def __init__(self, actions: Any) -> None:
        self.actions = actions

    def handle(self, event: object, now_s: float) -> Any:
        return self.actions


class Reports(Returns):
    """One that reports its members, too."""

    def condition(self, backend_id: str, now_s: float) -> MemberReport | None:
        return MemberReport(ready=backend_id == "gpu-0")


def test_valid_actions_pass() -> None:
    assert CheckedGateway(Returns(VALID)).handle(ShutdownAsked(), 0.0) == VALID
    assert CheckedGateway(Returns(tuple(VALID))).handle(ShutdownAsked(), 0.0) == VALID
    assert checked_actions([]) == []


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (None, "handle() returned None; expected a list of actions"),
        ("send", "handle() returned 'send'; expected a list of actions"),
        (["send"], "handle() returned the action 'send'; expected one of Send, Commit, Cancel, Reply"),
        ([ShutdownAsked()], "handle() returned the action ShutdownAsked(); expected one of Send"),
        ([Exit(), Send("1", 2, "gpu-0", 1.0)], "handle() returned Send(attempt_id='1', request_id=2"),  # type: ignore[arg-type]
        ([Send(1, 2, None, 1.0)], "backend_id=None, timeout_s=1.0); expected numbers as ids, a text as backend_id"),  # type: ignore[arg-type]
        ([Send(1, 2, "gpu-0", math.nan)], "timeout_s=nan); expected numbers as ids"),
        ([Send(1, 2, "gpu-0", -0.1)], "timeout_s from 0 up"),
        ([Send(1, 2, "gpu-0", None)], "timeout_s from 0 up"),  # type: ignore[arg-type]
        ([Cancel("1")], "expected a number as id"),  # type: ignore[arg-type]
        ([Commit(1, "1")], "expected numbers as ids"),  # type: ignore[arg-type]
        ([Reply(1, 99, "low")], "a status from 200 to 599"),
        ([Reply(1, "503", "text")], "a status from 200 to 599"),  # type: ignore[arg-type]
        ([Reply(1, 503, None)], "a text as reason"),  # type: ignore[arg-type]
        ([Reply(1, 503, "no", -1.0)], "retry_after_s None or from 0 up"),
        ([SetTimer(1, math.nan)], "expected a number as id, at_s in seconds"),
        ([CancelTimer("1")], "expected a number as id"),  # type: ignore[arg-type]
        ([SendHealthCheck(1, "gpu-0", math.nan)], "timeout_s from 0 up"),
        ([BackendDrained(0)], "a text as backend_id"),  # type: ignore[arg-type]
    ],
)
def test_anything_else_is_one_line(actions: object, message: str) -> None:
    with pytest.raises(AdapterError) as caught:
        CheckedGateway(Returns(actions)).handle(ShutdownAsked(), 0.0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(AdapterError) as caught:
        checked_actions("x\n" * 1000)
    assert len(str(caught.value)) < 200


def test_reports_of_members_pass_through() -> None:
    assert CheckedGateway(Reports([])).condition("gpu-0", 0.0) == MemberReport(ready=True)
    assert CheckedGateway(Returns([])).condition("gpu-0", 0.0) is None
