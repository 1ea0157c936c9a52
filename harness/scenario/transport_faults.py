"""Faults of the link between balancer and backend: each declares everything about itself. Pure, standard library only.

A kind has its settings, its effect on a link, its toxics in the fault proxy, what a probe of it must observe, and how
it is drawn for random fault plans (`harness.scenario.link` has the values). Nothing else knows the kinds one by one.

Toxics affect open connections too, except that `reset_peer` closes them without a reset. Values with another meaning
in Toxiproxy are replaced by the smallest valid ones: a timeout of 0 (never), a rate of 0 (stalls), slices of 0 bytes
(crash).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from harness.scenario.link import (
    ANSWER_S,
    CONNECT_S,
    LOOK_S,
    NEARLY,
    SILENT_S,
    Depth,
    LinkEffect,
    LinkFault,
    Probe,
    ProbeResult,
    ToxicSpec,
)
from mockgpu.faults.kinds import Draws

__all__ = [
    "Bandwidth",
    "Blackhole",
    "Down",
    "Latency",
    "LimitData",
    "Reset",
    "Slicer",
    "SlowClose",
    "Timeout",
    "TransportFault",
]
"""What `harness.scenario.faults` passes on."""

PACED_S = 0.05
"""Transfer time, at the limited bandwidth, of the body that a bandwidth probe requests; the head adds to it."""
MIN_DELAY_S = 0.05
"""Shortest delay attributed to a latency fault."""
SLICES = 4
"""Slices of the answer that a slicer's probe requests."""


@dataclass(frozen=True, slots=True)
class Down(LinkFault):
    """The link to a backend is closed: open connections end, connects are refused. The backend keeps running."""

    sees: ClassVar[Depth] = Depth.CONNECT
    leaves: ClassVar[Depth] = Depth.NOTHING

    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(up=False)

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        return not seen.accepted

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class Latency(LinkFault):
    """All data from a backend arrives `latency_s` ± `jitter_s` (uniform) later."""

    latency_s: float
    for_s: float | None = None
    jitter_s: float = 0.0

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(latency_s=self.latency_s, jitter_s=self.jitter_s)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        delay = {"latency": _milliseconds(self.latency_s), "jitter": _milliseconds(self.jitter_s)}
        return (ToxicSpec("latency", "downstream", delay),)

    def probe(self) -> Probe:
        # Every answer takes `least_s` or more. If that is too short to measure, half of them exceed `latency_s`.
        least_s = self.latency_s - self.jitter_s
        return Probe(min(least_s if least_s >= MIN_DELAY_S else self.latency_s, LOOK_S))

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        return seen.first_s >= self.probe().look_s * NEARLY

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        latency_s = random.log_uniform(0.01, 0.5)
        return cls(backend, at_s, latency_s, for_s, jitter_s=round(latency_s * random.choice((0.0, 0.5)), 3))


@dataclass(frozen=True, slots=True)
class Blackhole(LinkFault):
    """Connections to a backend are accepted, then no data passes in either direction."""

    sees: ClassVar[Depth] = Depth.SILENCE
    leaves: ClassVar[Depth] = Depth.CONNECT

    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(silent=True)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        return tuple(ToxicSpec("timeout", stream, {"timeout": 0}) for stream in ("downstream", "upstream"))

    def probe(self) -> Probe:
        return Probe(SILENT_S)

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        return seen.silent

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class Reset(LinkFault):
    """Connections to a backend are reset as soon as a request is written to them."""

    sees: ClassVar[Depth] = Depth.WRITE
    leaves: ClassVar[Depth] = Depth.CONNECT

    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(resetting=True)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        return (ToxicSpec("reset_peer", "upstream", {"timeout": 0}),)

    def probe(self) -> Probe:
        return Probe(CONNECT_S)

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        return seen.reset

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class Bandwidth(LinkFault):
    """The link from a backend carries `kb_per_s` kilobytes (1,000 bytes) a second on each connection."""

    kb_per_s: float
    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(bytes_per_s=self.kb_per_s * 1000)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        return (ToxicSpec("bandwidth", "downstream", {"rate": max(1, round(self.kb_per_s))}),)

    def probe(self) -> Probe:
        return Probe(LOOK_S, round(self.kb_per_s * 1000 * PACED_S))

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        wait_s = max(seen.length / (self.kb_per_s * 1000), PACED_S) + others_s
        return seen.length > 0 and seen.last_s >= wait_s * 0.95

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.log_uniform(2, 100), for_s)


@dataclass(frozen=True, slots=True)
class SlowClose(LinkFault):
    """A backend's close of a connection arrives `delay_s` later."""

    delay_s: float
    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(close_delay_s=self.delay_s)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        return (ToxicSpec("slow_close", "downstream", {"delay": _milliseconds(self.delay_s)}),)

    def probe(self) -> Probe:
        return Probe(ANSWER_S + min(self.delay_s, LOOK_S))

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        return seen.length > 0 and seen.closed_s - seen.last_s >= min(self.delay_s, LOOK_S) * NEARLY

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.log_uniform(0.05, 1), for_s)


@dataclass(frozen=True, slots=True)
class Timeout(LinkFault):
    """No data on a connection to a backend arrives, and after `after_s` the connection is closed."""

    sees: ClassVar[Depth] = Depth.SILENCE
    leaves: ClassVar[Depth] = Depth.CONNECT

    after_s: float
    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(silent=True, closes_after_s=self.after_s)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        return (ToxicSpec("timeout", "upstream", {"timeout": max(1, _milliseconds(self.after_s))}),)

    def probe(self) -> Probe:
        return Probe(self.after_s + ANSWER_S if self.after_s < LOOK_S else LOOK_S)

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        over = seen.closed or self.after_s >= LOOK_S
        late = seen.closed_s >= min(self.after_s, LOOK_S) * NEARLY
        return seen.accepted and not seen.length and over and late

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.log_uniform(0.05, 1), for_s)


@dataclass(frozen=True, slots=True)
class Slicer(LinkFault):
    """Data from a backend arrives in slices of about `slice_bytes`, `gap_s` apart."""

    slice_bytes: int
    gap_s: float
    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(slice_bytes=self.slice_bytes, gap_s=self.gap_s)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        slices = {"average_size": max(1, self.slice_bytes), "size_variation": 0}
        return (ToxicSpec("slicer", "downstream", {**slices, "delay": round(self.gap_s * 1_000_000)}),)

    def probe(self) -> Probe:
        return Probe(LOOK_S, SLICES * self.slice_bytes)

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        gaps = math.ceil(seen.length / max(1, self.slice_bytes)) - 1
        return seen.reads > 1 and seen.last_s >= (gaps * self.gap_s + others_s) * 0.95

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, 32, random.log_uniform(0.001, 0.01), for_s)


@dataclass(frozen=True, slots=True)
class LimitData(LinkFault):
    """A connection to a backend is closed after `limit_bytes` from the backend.

    `sim` counts each answer separately: the worlds agree only if a single answer exceeds the limit, or none does.
    """

    leaves: ClassVar[Depth] = Depth.SILENCE

    limit_bytes: int
    for_s: float | None = None

    @property
    def effect(self) -> LinkEffect:
        return LinkEffect(limit_bytes=self.limit_bytes)

    def toxics(self) -> tuple[ToxicSpec, ...]:
        return (ToxicSpec("limit_data", "downstream", {"bytes": self.limit_bytes}),)

    def probe(self) -> Probe:
        return Probe(CONNECT_S, self.limit_bytes + 1)

    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        return seen.accepted and seen.closed and not seen.reset and seen.length == self.limit_bytes

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, 40, for_s)


TransportFault = Down | Latency | Blackhole | Reset | Bandwidth | SlowClose | Timeout | Slicer | LimitData


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
