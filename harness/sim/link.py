"""The network link between the balancer and one backend: its faults and their effect on answers."""

from __future__ import annotations

import math
from random import Random
from typing import assert_never

from harness.scenario.faults import (
    Bandwidth,
    Blackhole,
    Down,
    Latency,
    LimitData,
    Reset,
    Slicer,
    SlowClose,
    Timeout,
    TransportFault,
)
from harness.scenario.model import Kind

HEAD_BYTES = 192
"""Size of status line and headers of a mock server's answer; measured: 191 to 193."""

UPDATE_BYTES = 257
ERROR_BYTES = 324
"""Sizes of answers without generated text, measured. Errors have 319 to 328, depending on the message."""

WHOLE_BYTES = HEAD_BYTES + 281
TOKEN_BYTES = 4
"""Bytes per token of an answer with text. Measured totals: 477 for 1 token, 490 for 4, 635 for 40, 2,078 for 400."""

REPORT_BYTES = 319
"""Size of a health check's answer with a load report, measured with no model in memory; each model adds its name."""


def answer_bytes(kind: Kind, status: int, output_tokens: int) -> int:
    """Approximate size in bytes of a mock server's answer without streaming, head included."""
    if status != 200:
        return ERROR_BYTES
    if kind is Kind.UPDATE:
        return UPDATE_BYTES
    return WHOLE_BYTES + TOKEN_BYTES * output_tokens


class Link:
    """A link with at most one fault of each kind at a time.

    The delays of several faults add up. `generator` draws the jitter.
    """

    def __init__(self, generator: Random) -> None:
        self.up = True
        self.silent = False
        """Whether data is dropped in both directions."""
        self.resetting = False
        self.plain = True
        """Whether answers pass unchanged and without delay."""
        self.close_delay_s = 0.0
        self.closes_after_s: float | None = None
        """Seconds from the last data sent on a silent connection to its close; None: never closed."""
        self._generator = generator
        self._blackhole = False
        self._latency: Latency | None = None
        self._bandwidth: Bandwidth | None = None
        self._slicer: Slicer | None = None
        self._limit: LimitData | None = None

    def change(self, fault: TransportFault, on: bool) -> None:
        """Begin (`on`) or heal a fault."""
        match fault:
            case Down():
                self.up = not on
            case Latency():
                self._latency = fault if on else None
            case Blackhole():
                self._blackhole = on
            case Reset():
                self.resetting = on
            case Bandwidth():
                self._bandwidth = fault if on else None
            case SlowClose():
                self.close_delay_s = fault.delay_s if on else 0.0
            case Timeout():
                self.closes_after_s = fault.after_s if on else None
            case Slicer():
                self._slicer = fault if on else None
            case LimitData():
                self._limit = fault if on else None
            case _:
                assert_never(fault)
        self.silent = self._blackhole or self.closes_after_s is not None
        self.plain = not (self._latency or self._bandwidth or self._slicer or self._limit)

    def passing(self, size_bytes: int) -> int:
        """Bytes of an answer of this size that pass before the connection is closed."""
        return size_bytes if self._limit is None else min(size_bytes, self._limit.limit_bytes)

    def delay_s(self, size_bytes: int) -> float:
        """Added delay of an answer's last byte in seconds; infinite if it never comes. Draws the jitter."""
        if self.plain:
            return 0.0
        delay_s = 0.0
        if self._latency is not None:
            jitter_s = self._latency.jitter_s
            drawn_s = self._generator.uniform(-jitter_s, jitter_s) if jitter_s else 0.0
            delay_s = max(0.0, self._latency.latency_s + drawn_s)
        if self._bandwidth is not None:
            rate = self._bandwidth.kb_per_s * 1000
            delay_s += size_bytes / rate if rate > 0 else math.inf
        if self._slicer is not None:
            delay_s += (slices(size_bytes, self._slicer.slice_bytes) - 1) * self._slicer.gap_s
        return delay_s


def slices(size_bytes: int, slice_bytes: int) -> int:
    """Number of slices when an answer is halved until no slice exceeds `slice_bytes`."""
    count = 1
    while size_bytes > max(1, slice_bytes):
        size_bytes = -(-size_bytes // 2)
        count *= 2
    return count
