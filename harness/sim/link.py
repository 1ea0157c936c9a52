"""The network link between the balancer and one backend: its faults and their effect on answers."""

from __future__ import annotations

import math
from random import Random

from harness.scenario.faults import TransportFault
from harness.scenario.link import LinkEffect
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
    """A link with at most one fault of each kind at a time; their effects combine, their delays add up.

    `generator` draws the jitter.
    """

    def __init__(self, generator: Random) -> None:
        self._generator = generator
        self._effects: dict[type[TransportFault], LinkEffect] = {}
        self._combine()

    def change(self, fault: TransportFault, on: bool) -> None:
        """Begin (`on`) or heal a fault."""
        if on:
            self._effects[type(fault)] = fault.effect
        else:
            self._effects.pop(type(fault), None)
        self._combine()

    def _combine(self) -> None:
        effects = self._effects.values()
        self.up = all(effect.up for effect in effects)
        self.silent = any(effect.silent for effect in effects)
        """Whether data is dropped in both directions."""
        self.resetting = any(effect.resetting for effect in effects)
        self.plain = all(effect.plain for effect in effects)
        """Whether answers pass unchanged and without delay."""
        self.close_delay_s = sum(effect.close_delay_s for effect in effects)
        closes_s = [effect.closes_after_s for effect in effects if effect.closes_after_s is not None]
        self.closes_after_s = min(closes_s, default=None)
        """Seconds from the last data sent on a silent connection to its close; None: never closed."""

        limits = [effect.limit_bytes for effect in effects if effect.limit_bytes is not None]
        self._limit_bytes = min(limits, default=None)

    def passing(self, size_bytes: int) -> int:
        """Bytes of an answer of this size that pass before the connection is closed."""
        return size_bytes if self._limit_bytes is None else min(size_bytes, self._limit_bytes)

    def delay_s(self, size_bytes: int) -> float:
        """Added delay of an answer's last byte in seconds; infinite if it never comes. Draws the jitter."""
        if self.plain:
            return 0.0
        delay_s = 0.0
        for effect in self._effects.values():
            drawn_s = self._generator.uniform(-effect.jitter_s, effect.jitter_s) if effect.jitter_s else 0.0
            delay_s += max(0.0, effect.latency_s + drawn_s)
            delay_s += size_bytes / effect.bytes_per_s if effect.bytes_per_s > 0 else math.inf
            if effect.slice_bytes is not None:
                delay_s += (slices(size_bytes, effect.slice_bytes) - 1) * effect.gap_s
        return delay_s


def slices(size_bytes: int, slice_bytes: int) -> int:
    """Number of slices when an answer is halved until no slice exceeds `slice_bytes`."""
    count = 1
    while size_bytes > max(1, slice_bytes):
        size_bytes = -(-size_bytes // 2)
        count *= 2
    return count
