"""What a transport fault is made of, as values: effect on a simulated link, toxics, and what a probe observes. Pure.

`harness.scenario.transport_faults` declares the faults with them. The simulator's link, the fault injector and its
probes read these values and know no kind of fault.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

# --- what a probe observes --------------------------------------------------------------------------------

LOOK_S = 0.5
"""A probe waits this long, plus the delay that other faults of the link may add; a longer delay is not waited for."""
SILENT_S = 0.1
"""A connection without a byte of an answer for this long counts as silent."""
CONNECT_S = 1.0
ANSWER_S = 0.2
"""Allowance for the answer itself on a busy machine, in addition to the delay of the fault."""
HEAD_BYTES = 300
"""Upper bound of the size of an answer's head."""
LONGEST_S = 2.0
"""Longest extra wait for delays of other faults: a heal waits for the probe."""
NEARLY = 0.99
"""Tolerance factor: the fault proxy counts whole milliseconds."""


class Depth(IntEnum):
    """What of an exchange a probe must observe to detect a fault, and what a fault lets others observe behind it."""

    NOTHING = 0
    CONNECT = 1
    """Whether a connection is accepted."""
    WRITE = 2
    """Whether it is reset when a request is written to it."""
    SILENCE = 3
    """Whether an answer comes, or nothing, or a close."""
    ANSWER = 4
    """When the parts of an answer come, and how many bytes."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The exchange of a probe: it requests a body of `body_bytes` and observes the answer for `look_s`."""

    look_s: float = LOOK_S
    body_bytes: int = 0


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

    @property
    def silent(self) -> bool:
        """Whether the connection was accepted and stayed open without a byte."""
        return self.accepted and not self.closed and not self.length


# --- what a fault does ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkEffect:
    """What a fault does to a link; the effects of several faults combine, and their delays add up.

    `up`: whether connects are accepted. `resetting`: connections are reset when a request is written. `silent`: no data
    passes; such a connection is closed `closes_after_s` after the last data (None: never). The other fields delay
    answers or end them after `limit_bytes`.
    """

    up: bool = True
    resetting: bool = False
    silent: bool = False
    closes_after_s: float | None = None
    close_delay_s: float = 0.0
    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = math.inf
    slice_bytes: int | None = None
    gap_s: float = 0.0
    limit_bytes: int | None = None

    @property
    def ends_connections(self) -> bool:
        """Whether connections that are open end when it begins."""
        return self.resetting or not self.up

    @property
    def plain(self) -> bool:
        """Whether answers pass unchanged and without delay."""
        delayed = self.latency_s or self.jitter_s or self.bytes_per_s < math.inf or self.slice_bytes is not None
        return not delayed and self.limit_bytes is None

    @property
    def least_s(self) -> float:
        """Shortest delay of an answer's first byte."""
        return max(0.0, self.latency_s - self.jitter_s)

    def most_s(self, size_bytes: int) -> float:
        """Longest extra time of an answer of this size, and of the close after it."""
        transfer_s = size_bytes / max(1.0, self.bytes_per_s)
        gaps_s = 0.0 if self.slice_bytes is None else size_bytes / max(1, self.slice_bytes) * self.gap_s
        return self.latency_s + self.jitter_s + transfer_s + gaps_s + self.close_delay_s


def least_s(effects: Iterable[LinkEffect]) -> float:
    """Shortest delay of an answer's first byte under these effects."""
    return sum(effect.least_s for effect in effects)


def extra_s(effects: Iterable[LinkEffect], body_bytes: int) -> float:
    """How much longer a probe waits for an answer with this body because of these effects, `LONGEST_S` at most."""
    return min(sum(effect.most_s(HEAD_BYTES + body_bytes) for effect in effects), LONGEST_S)


@dataclass(frozen=True, slots=True)
class ToxicSpec:
    """One toxic: its type, its direction, and its attributes in Toxiproxy's units."""

    kind: str
    stream: str
    attributes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ProbedFault(ABC):
    """A fault that is verified by a probe of its own: one of a process or of the link to it."""

    sees: ClassVar[Depth] = Depth.ANSWER
    """What its probe must be able to observe."""
    leaves: ClassVar[Depth] = Depth.ANSWER
    """What another fault's probe can observe while it is in force."""

    backend: str
    at_s: float

    def probe(self) -> Probe:
        """The exchange that detects it; faults of the depth `CONNECT` need a connection only."""
        return Probe()

    @abstractmethod
    def shows(self, seen: ProbeResult, others_s: float) -> bool:
        """Whether the exchange shows it. Other faults delay an answer's first byte by `others_s` or more."""


@dataclass(frozen=True, slots=True)
class LinkFault(ProbedFault):
    """What a transport fault declares. Its class also has `drawn`: an instance with random settings."""

    @property
    @abstractmethod
    def effect(self) -> LinkEffect:
        """Its effect on the link, in `sim` and on the probes of other faults."""

    def toxics(self) -> tuple[ToxicSpec, ...]:
        """Its toxics in the fault proxy; none if it only closes the proxy's listener."""
        return ()
