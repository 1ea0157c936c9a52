"""Probes of a fault on a backend's process or on the way to it: one exchange through the fault proxy, from outside.

They ask `GET /mock/ping`, which a backend keeps out of its log, on connections of their own. A probe looks for
about `LOOK_S` at most, and for what other faults of the way may delay: what is to take longer has bitten by then.
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
"""For so long a fault is probed again until it bites."""
LOOK_S = 0.5
SILENT_S = 0.1
"""A connection that brought no byte of an answer for this long is taken for silent."""
CONNECT_S = 1.0
ANSWER_S = 0.2
"""What an answer may take on a busy machine beside the wait that a fault is to cause."""
PACED_S = 0.05
"""The answer that is asked for through a narrow way is as long as this takes there, and its head on top."""
TELLING_S = 0.05
"""A wait that is taken for a fault's doing."""
SLICES = 4
HEAD_BYTES = 300
"""A head has fewer."""
LONGEST_S = 2.0
"""For what other faults delay a probe looks so much longer at most: a heal waits for it."""
NEARLY = 0.99
"""The fault proxy counts whole milliseconds."""

Listener = tuple[str, int]


@dataclass(slots=True)
class ProbeResult:
    """One exchange. Times are seconds since its request was written; those of what never came are how long we looked.

    `length` is the number of bytes that came, head and body, in `reads` pieces.
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
    """Ask for an answer with a body of so many bytes, and look at what comes for `look_s` or until it is closed."""
    seen = ProbeResult()
    words = f"GET /mock/ping?bytes={body_bytes} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection(listener, timeout=CONNECT_S) as probe:
            seen.accepted = True
            began_s = time.monotonic()
            probe.sendall(words.encode())
            _look(probe, seen, began_s, look_s)
    except ConnectionResetError:
        seen.closed = seen.reset = True
    except OSError:
        seen.closed = True
    return seen


def _look(probe: socket.socket, seen: ProbeResult, began_s: float, look_s: float) -> None:
    while (left_s := began_s + look_s - time.monotonic()) > 0:
        probe.settimeout(left_s)
        try:
            block = probe.recv(1 << 16)
        except TimeoutError:
            break
        now_s = time.monotonic() - began_s
        if not block:
            seen.closed, seen.closed_s = True, now_s
            return
        seen.first_s = now_s if not seen.reads else seen.first_s
        seen.reads += 1
        seen.length += len(block)
        seen.last_s = now_s
    seen.closed_s = look_s
    if not seen.reads:
        seen.first_s = seen.last_s = look_s


def answers(listener: Listener, patience_s: float) -> bool:
    """Whether a backend answers a ping that goes through the fault proxy within `patience_s`."""
    return exchange(listener, look_s=patience_s).length > 0


def awaited(condition: Callable[[], bool], over: threading.Event) -> float | None:
    """When a condition was first seen to hold (CLOCK_MONOTONIC), None if it never did within `PROBE_S`.

    It is looked at once at least, and no more once `over` is set.
    """
    deadline_s = time.monotonic() + PROBE_S
    while True:
        if condition():
            return time.monotonic()
        if over.wait(0.005) or time.monotonic() > deadline_s:
            return None


def is_effective(
    fault: ProcessFault | TransportFault, listener: Listener, beside: Sequence[TransportFault] = ()
) -> bool:
    """Whether one probe through the fault proxy of its backend, which listens at `listener`, sees the fault.

    `beside` are the faults that were in force on that way before: what they delay is no sign of this one.
    """
    late_s = _longest_s(beside, 0)
    match fault:
        case Kill() | Restart() | Down():
            return not accepts(*listener)
        case Pause() | Blackhole():
            seen = exchange(listener, look_s=SILENT_S + late_s)
            return seen.accepted and not seen.closed and not seen.length
        case Reset():
            return exchange(listener, look_s=CONNECT_S + late_s).reset
        case Latency(latency_s=latency_s, jitter_s=jitter_s):
            # Every answer takes the least, but where that is next to nothing only every second tells: those beyond it.
            least_s = latency_s - jitter_s
            wait_s = min(least_s if least_s >= TELLING_S else latency_s, LOOK_S)
            return exchange(listener, look_s=wait_s).first_s >= wait_s * NEARLY
        case Bandwidth():
            return _is_narrow(listener, fault.kb_per_s * 1000, beside)
        case SlowClose(delay_s=delay_s):
            wait_s = min(delay_s, LOOK_S)
            seen = exchange(listener, look_s=ANSWER_S + wait_s + late_s)
            return seen.length > 0 and seen.closed_s - seen.last_s >= wait_s * NEARLY
        case Timeout(after_s=after_s):
            wait_s, shows = min(after_s, LOOK_S), after_s < LOOK_S
            seen = exchange(listener, look_s=wait_s + late_s + (ANSWER_S if shows else 0.0))
            over = seen.closed or not shows
            return seen.accepted and not seen.length and over and seen.closed_s >= wait_s * NEARLY
        case Slicer():
            return _is_sliced(listener, fault, beside)
        case LimitData(limit_bytes=limit_bytes):
            seen = exchange(listener, limit_bytes + 1, look_s=CONNECT_S + _longest_s(beside, limit_bytes))
            return seen.accepted and seen.closed and not seen.reset and seen.length == limit_bytes
        case _:
            assert_never(fault)


def _is_narrow(listener: Listener, bytes_per_s: float, beside: Sequence[TransportFault]) -> bool:
    """Whether an answer of a known length takes as long as such a way makes it take, and that is not too short."""
    body_bytes = round(bytes_per_s * PACED_S)
    seen = exchange(listener, body_bytes, look_s=LOOK_S + _longest_s(beside, body_bytes))
    wait_s = max(seen.length / bytes_per_s, PACED_S) + _latency_s(beside)
    return seen.length > 0 and seen.last_s >= wait_s * 0.95


def _is_sliced(listener: Listener, fault: Slicer, beside: Sequence[TransportFault]) -> bool:
    """Whether an answer of some slices comes in pieces, with all the gaps that lie between so many."""
    body_bytes = SLICES * fault.slice_bytes
    seen = exchange(listener, body_bytes, look_s=LOOK_S + _longest_s(beside, body_bytes))
    gaps = math.ceil(seen.length / max(1, fault.slice_bytes)) - 1
    return seen.reads > 1 and seen.last_s >= (gaps * fault.gap_s + _latency_s(beside)) * 0.95


def _latency_s(faults: Sequence[TransportFault]) -> float:
    """How late the first byte of an answer is under these faults at least."""
    return sum(max(0.0, fault.latency_s - fault.jitter_s) for fault in faults if isinstance(fault, Latency))


def _longest_s(faults: Sequence[TransportFault], body_bytes: int) -> float:
    """How much longer than else an answer with such a body, and the close after it, may take under these faults."""
    size_bytes, late_s = HEAD_BYTES + body_bytes, 0.0
    for fault in faults:
        match fault:
            case Latency():
                late_s += fault.latency_s + fault.jitter_s
            case Bandwidth():
                late_s += size_bytes / max(1.0, fault.kb_per_s * 1000)
            case Slicer():
                late_s += size_bytes / max(1, fault.slice_bytes) * fault.gap_s
            case SlowClose():
                late_s += fault.delay_s
            case _:
                continue
    return min(late_s, LONGEST_S)
