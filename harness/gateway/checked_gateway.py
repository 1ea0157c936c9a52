"""A stranger's gateway, with what it returns checked before a driver carries it out.

Only types and impossible numbers; an unknown backend or a request that is answered twice is for the properties to
find. Costs about 2 µs per request, so the gateways of harness.balancer, which mypy checks, do without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from harness.gateway.protocol import (
    Action,
    BackendDrained,
    Cancel,
    CancelTimer,
    Commit,
    Event,
    Exit,
    MemberReport,
    Reply,
    ReportsMembers,
    Send,
    SendHealthCheck,
    SetTimer,
)
from harness.scenario.model import AdapterError


def _number(value: object, least: float = 0.0) -> bool:
    """Whether `value` is a number from `least` up; not-a-number is none."""
    return isinstance(value, float | int) and value >= least


def _reply(action: Reply) -> bool:
    return (
        isinstance(action.request_id, int)
        and isinstance(action.status, int)
        and 200 <= action.status <= 599
        and isinstance(action.reason, str)
        and (action.retry_after_s is None or _number(action.retry_after_s))
    )


def _send(action: Send) -> bool:
    return (
        isinstance(action.attempt_id, int)
        and isinstance(action.request_id, int)
        and isinstance(action.backend_id, str)
        and _number(action.timeout_s)
    )


def _health_check(action: SendHealthCheck) -> bool:
    return isinstance(action.check_id, int) and isinstance(action.backend_id, str) and _number(action.timeout_s)


def _timer(action: SetTimer) -> bool:
    return isinstance(action.timer_id, int) and _number(action.at_s, -math.inf)


_VALID: dict[type, tuple[Callable[[Any], bool], str]] = {
    Send: (_send, "numbers as ids, a text as backend_id, timeout_s from 0 up"),
    Commit: (
        lambda action: isinstance(action.request_id, int) and isinstance(action.attempt_id, int),
        "numbers as ids",
    ),
    Cancel: (lambda action: isinstance(action.attempt_id, int), "a number as id"),
    Reply: (_reply, "a number as id, a status from 200 to 599, a text as reason, retry_after_s None or from 0 up"),
    SetTimer: (_timer, "a number as id, at_s in seconds"),
    CancelTimer: (lambda action: isinstance(action.timer_id, int), "a number as id"),
    SendHealthCheck: (_health_check, "a number as id, a text as backend_id, timeout_s from 0 up"),
    BackendDrained: (lambda action: isinstance(action.backend_id, str), "a text as backend_id"),
    Exit: (lambda action: True, ""),
}


class CheckedGateway:
    """`gateway`, an object with `handle`; AdapterError from `handle` if it returns anything but valid actions."""

    def __init__(self, gateway: Any) -> None:
        self._handle = gateway.handle
        self._reporter = gateway if isinstance(gateway, ReportsMembers) else None

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """The gateway's actions, checked."""
        return checked_actions(self._handle(event, now_s))

    def condition(self, backend_id: str, now_s: float) -> MemberReport | None:
        """State of a member, if the gateway reports any."""
        return None if self._reporter is None else self._reporter.condition(backend_id, now_s)


def checked_actions(actions: object) -> list[Action]:
    """`actions`, as returned by a gateway's `handle`. AdapterError, one line, unless they are actions, and valid.

    >>> checked_actions([Cancel(7)])
    [Cancel(attempt_id=7)]
    >>> checked_actions([Cancel("7")])
    Traceback (most recent call last):
        ...
    harness.scenario.model.AdapterError: handle() returned Cancel(attempt_id='7'); expected a number as id
    """
    if not isinstance(actions, list | tuple):
        raise AdapterError(f"handle() returned {_shown(actions)}; expected a list of actions")
    for action in actions:
        known = _VALID.get(type(action))
        if known is None:
            names = ", ".join(kind.__name__ for kind in _VALID)
            raise AdapterError(f"handle() returned the action {_shown(action)}; expected one of {names}")
        if not known[0](action):
            raise AdapterError(f"handle() returned {_shown(action)}; expected {known[1]}")
    return list(actions)


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:120]}..."
