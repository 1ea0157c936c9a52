"""Probes of process and transport faults: each is one exchange through the fault proxy.

A probe sends `GET /mock/ping`, which a backend does not log, on its own connection. It waits about `LOOK_S` at most,
plus the delay other transport faults may add; a fault with a longer delay counts as effective after that time.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence

from harness.live.process.http import accepts
from harness.scenario.faults import ProcessFault, TransportFault
from harness.scenario.link import CONNECT_S, LOOK_S, Depth, LinkEffect, ProbeResult, extra_s, least_s

PROBE_S = 3.0
"""A fault is probed repeatedly for this long until it takes effect."""
Listener = tuple[str, int]


def exchange(listener: Listener, body_bytes: int = 0, look_s: float = LOOK_S) -> ProbeResult:
    """Request a body of `body_bytes`, and observe the answer for `look_s` or until the connection is closed."""
    result = ProbeResult()
    request = f"GET /mock/ping?bytes={body_bytes} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection(listener, timeout=CONNECT_S) as probe:
            result.accepted = True
            began_s = time.monotonic()
            probe.sendall(request.encode())
            _receive(probe, result, began_s, look_s)
    except ConnectionResetError:
        result.closed = result.reset = True
    except OSError:
        result.closed = True
    return result


def _receive(probe: socket.socket, result: ProbeResult, began_s: float, look_s: float) -> None:
    while (left_s := began_s + look_s - time.monotonic()) > 0:
        probe.settimeout(left_s)
        try:
            block = probe.recv(1 << 16)
        except TimeoutError:
            break
        now_s = time.monotonic() - began_s
        if not block:
            result.closed, result.closed_s = True, now_s
            return
        result.first_s = now_s if not result.reads else result.first_s
        result.reads += 1
        result.length += len(block)
        result.last_s = now_s
    result.closed_s = look_s
    if not result.reads:
        result.first_s = result.last_s = look_s


def answers(listener: Listener, patience_s: float) -> bool:
    """Whether a backend answers a ping through the fault proxy within `patience_s`."""
    return exchange(listener, look_s=patience_s).length > 0


def time_when(condition: Callable[[], bool], over: threading.Event) -> float | None:
    """When (CLOCK_MONOTONIC) a condition was first observed to hold, None if it did not within `PROBE_S`.

    It is evaluated at least once, and not again once `over` is set.
    """
    deadline_s = time.monotonic() + PROBE_S
    while True:
        if condition():
            return time.monotonic()
        if over.wait(0.005) or time.monotonic() > deadline_s:
            return None


def is_effective(fault: ProcessFault | TransportFault, listener: Listener, others: Sequence[LinkEffect] = ()) -> bool:
    """Whether one probe through its backend's fault proxy, which listens at `listener`, observes the fault.

    `others` are the effects in force on this link: delays they cause are not attributed to this fault.
    """
    if fault.sees is Depth.CONNECT:
        return fault.shows(ProbeResult(accepted=accepts(*listener)), 0.0)
    probe = fault.probe()
    result = exchange(listener, probe.body_bytes, probe.look_s + extra_s(others, probe.body_bytes))
    return fault.shows(result, least_s(others))
