"""Probes of process and transport faults: each is one exchange through the fault proxy.

A probe sends `GET /mock/ping`, which a backend does not log, on its own connection. It waits about `LOOK_S` at most,
plus the delay other transport faults may add; a fault with a longer delay counts as effective after that time.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from harness.live.process.http import accepts
from harness.scenario.faults import (
    Bandwidth,
    Blackhole,
    Down,
    Kill,
    Latency,
    LimitData,
    Pause,
    ProcessFault,
    Reset,
    Restart,
    Slicer,
    SlowClose,
    Timeout,
    TransportFault,
)

PROBE_S = 3.0
"""A fault is probed repeatedly for this long until it takes effect."""
LOOK_S = 0.5
SILENT_S = 0.1
"""A connection without a byte of an answer for this long counts as silent."""
CONNECT_S = 1.0
ANSWER_S = 0.2
"""Allowance for the answer itself on a busy machine, in addition to the delay of the fault."""
PACED_S = 0.05
"""Transfer time, at the limited bandwidth, of the body that a bandwidth probe requests; the head adds to it."""
MIN_DELAY_S = 0.05
"""Shortest delay attributed to a fault."""
SLICES = 4
HEAD_BYTES = 300
"""Upper bound of the size of an answer's head."""
LONGEST_S = 2.0
"""Longest extra wait for delays of other faults: a heal waits for the probe."""
NEARLY = 0.99
"""Tolerance factor: the fault proxy counts whole milliseconds."""

Listener = tuple[str, int]


@dataclass(slots=True)
class ProbeResult:
    """One exchange. Times are seconds since its request was written; those of missing events are the time waited.

    `length` is the number of bytes received, head and body, in `reads` reads.
    """

    accepted: bool = False
    length: int = 0
    reads: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    closed: bool = False
    reset: bool = False
    closed_s: float = 0.0


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


def is_effective(
    fault: ProcessFault | TransportFault, listener: Listener, others: Sequence[TransportFault] = ()
) -> bool:
    """Whether one probe through its backend's fault proxy, which listens at `listener`, observes the fault.

    `others` are the transport faults already in force on this link: delays they cause are not attributed to this one.
    """
    extra_s = _longest_s(others, 0)
    match fault:
        case Kill() | Restart() | Down():
            return not accepts(*listener)
        case Pause() | Blackhole():
            result = exchange(listener, look_s=SILENT_S + extra_s)
            return result.accepted and not result.closed and not result.length
        case Reset():
            return exchange(listener, look_s=CONNECT_S + extra_s).reset
        case Latency(latency_s=latency_s, jitter_s=jitter_s):
            # Every answer takes `least_s` or more. If that is too short to measure, half of them exceed `latency_s`.
            least_s = latency_s - jitter_s
            wait_s = min(least_s if least_s >= MIN_DELAY_S else latency_s, LOOK_S)
            return exchange(listener, look_s=wait_s).first_s >= wait_s * NEARLY
        case Bandwidth():
            return _is_narrow(listener, fault.kb_per_s * 1000, others)
        case SlowClose(delay_s=delay_s):
            wait_s = min(delay_s, LOOK_S)
            result = exchange(listener, look_s=ANSWER_S + wait_s + extra_s)
            return result.length > 0 and result.closed_s - result.last_s >= wait_s * NEARLY
        case Timeout(after_s=after_s):
            wait_s, shows = min(after_s, LOOK_S), after_s < LOOK_S
            result = exchange(listener, look_s=wait_s + extra_s + (ANSWER_S if shows else 0.0))
            over = result.closed or not shows
            return result.accepted and not result.length and over and result.closed_s >= wait_s * NEARLY
        case Slicer():
            return _is_sliced(listener, fault, others)
        case LimitData(limit_bytes=limit_bytes):
            result = exchange(listener, limit_bytes + 1, look_s=CONNECT_S + _longest_s(others, limit_bytes))
            return result.accepted and result.closed and not result.reset and result.length == limit_bytes
        case _:
            assert_never(fault)


def _is_narrow(listener: Listener, bytes_per_s: float, others: Sequence[TransportFault]) -> bool:
    """Whether an answer of known length takes as long as this bandwidth implies, at least `PACED_S`."""
    body_bytes = round(bytes_per_s * PACED_S)
    result = exchange(listener, body_bytes, look_s=LOOK_S + _longest_s(others, body_bytes))
    wait_s = max(result.length / bytes_per_s, PACED_S) + _latency_s(others)
    return result.length > 0 and result.last_s >= wait_s * 0.95


def _is_sliced(listener: Listener, fault: Slicer, others: Sequence[TransportFault]) -> bool:
    """Whether an answer of `SLICES` slices arrives in several reads, and takes at least the gaps between them."""
    body_bytes = SLICES * fault.slice_bytes
    result = exchange(listener, body_bytes, look_s=LOOK_S + _longest_s(others, body_bytes))
    gaps = math.ceil(result.length / max(1, fault.slice_bytes)) - 1
    return result.reads > 1 and result.last_s >= (gaps * fault.gap_s + _latency_s(others)) * 0.95


def _latency_s(faults: Sequence[TransportFault]) -> float:
    """Shortest delay of an answer's first byte under these faults."""
    return sum(max(0.0, fault.latency_s - fault.jitter_s) for fault in faults if isinstance(fault, Latency))


def _longest_s(faults: Sequence[TransportFault], body_bytes: int) -> float:
    """Longest extra time of an answer with this body, and of the close after it, under these faults."""
    size_bytes, extra_s = HEAD_BYTES + body_bytes, 0.0
    for fault in faults:
        match fault:
            case Latency():
                extra_s += fault.latency_s + fault.jitter_s
            case Bandwidth():
                extra_s += size_bytes / max(1.0, fault.kb_per_s * 1000)
            case Slicer():
                extra_s += size_bytes / max(1, fault.slice_bytes) * fault.gap_s
            case SlowClose():
                extra_s += fault.delay_s
            case _:
                continue
    return min(extra_s, LONGEST_S)
