"""The way between the balancer and one backend: its faults, and what they do to an answer that takes it."""

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
"""Status line and headers of an answer of the mock servers, measured: 191 to 193."""

UPDATE_BYTES = 257
ERROR_BYTES = 324
"""Answers without text, measured. Errors have 319 to 328, by their message."""

WHOLE_BYTES = HEAD_BYTES + 281
TOKEN_BYTES = 4
"""An answer with text, measured: 477 bytes for 1 token, 490 for 4, 635 for 40, 2,078 for 400."""

REPORT_BYTES = 319
"""The answer to a health check with a report of the load, measured with no model in memory; each adds its name."""


def answer_bytes(kind: Kind, status: int, output_tokens: int) -> int:
    """About how many bytes a mock server's answer has that is not streamed, with its head."""
    if status != 200:
        return ERROR_BYTES
    if kind is Kind.UPDATE:
        return UPDATE_BYTES
    return WHOLE_BYTES + TOKEN_BYTES * output_tokens


class Link:
    """One fault of each kind at a time.

    Where several delay an answer their delays add up. `generator` draws the jitter.
    """

    def __init__(self, generator: Random) -> None:
        self.up = True
        self.silent = False
        """Whether nothing arrives, in either direction."""
        self.resetting = False
        self.plain = True
        """Whether answers come as they are and without delay."""
        self.close_delay_s = 0.0
        self.closes_after_s: float | None = None
        """When a connection that is silent is closed, from the last that was sent on it; None: never."""
        self._generator = generator
        self._blackhole = False
        self._latency: Latency | None = None
        self._bandwidth: Bandwidth | None = None
        self._slicer: Slicer | None = None
        self._limit: LimitData | None = None

    def change(self, fault: TransportFault, on: bool) -> None:
        """Begin or heal a fault."""
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
        """How many bytes of an answer of this size get through before its connection is closed."""
        return size_bytes if self._limit is None else min(size_bytes, self._limit.limit_bytes)

    def delay_s(self, size_bytes: int) -> float:
        """How much later the last byte of an answer of this size comes; infinite if it never does. Draws the jitter."""
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
    """Into how many slices of at most that size an answer is cut: in halves until they are small enough."""
    count = 1
    while size_bytes > max(1, slice_bytes):
        size_bytes = -(-size_bytes // 2)
        count *= 2
    return count
