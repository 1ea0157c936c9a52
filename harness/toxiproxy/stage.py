"""One toxic at work on one direction of one connection: pure, without clock or socket.

Data flows through a chain of stages in chunks. A stage takes chunks from its inbox and puts them into its output: the
next stage or the destination. Time is an argument; a waiting stage sets `wake_s` to the time of its next run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, NamedTuple, Protocol

from harness.toxiproxy.connection_log import CloseCause

UPSTREAM = "upstream"  # from the client to the server
DOWNSTREAM = "downstream"  # from the server to the client


class Chunk(NamedTuple):
    """Bytes and the time they were read or left the previous stage (seconds, CLOCK_MONOTONIC)."""

    data: bytes
    stamp_s: float


class Outlet(Protocol):
    """Output of a stage: the next stage, or the destination of the link."""

    def has_room(self) -> bool:
        """Whether there is room for a chunk. `put` always accepts one, so a flush never blocks."""
        ...

    def put(self, chunk: Chunk) -> None:
        """Accept a chunk; dropped after the end."""
        ...

    def end(self, cause: CloseCause) -> None:
        """Signal the end of data, because of `cause`; repeated calls have no effect."""
        ...


@dataclass(eq=False, slots=True)
class Toxic:
    """A toxic of a proxy, shared by all links; an update changes it in place.

    `stream` keeps the caller's spelling, `attributes` has every attribute of the type.
    """

    name: str
    type: str
    stream: str
    toxicity: float = 1.0
    attributes: dict[str, int] = field(default_factory=dict)

    @property
    def direction(self) -> str:
        """`upstream` or `downstream`: the direction it applies to."""
        return self.stream.lower()


class ToxicLink:
    """Base of all toxics: passes all data on. Subclasses override `work` and other methods as needed.

    Its toxicity decides at start and at each interruption whether the toxic applies to this link; otherwise the stage
    passes all data on (Toxiproxy 2.12 behaviour).
    """

    attribute_names: ClassVar[tuple[str, ...]] = ()
    # One read of asyncio is up to eight full chunks; a lower limit would pause a fast source constantly.
    capacity_chunks: ClassVar[int] = 8

    def __init__(self, toxic: Toxic, output: Outlet, random: Random, now_s: float) -> None:
        self.toxic = toxic
        self.output = output
        self.random = random
        self.inbox: deque[Chunk] = deque()
        self.end_cause: CloseCause | None = None
        self.ended = False
        self.wake_s: float | None = None
        self._moved = False
        self._draw_applies()
        self.start(now_s)

    @classmethod
    def refusal(cls, attributes: dict[str, int]) -> str | None:
        """Why these attributes are invalid, or None. Toxiproxy would accept them and crash later."""
        return None

    def has_room(self) -> bool:
        """See `Outlet.has_room`. An ended stage has no room, so the source is not read, as with Toxiproxy."""
        return not self.ended and len(self.inbox) < self.capacity_chunks

    def put(self, chunk: Chunk) -> None:
        """See `Outlet.put`."""
        if not self.ended and self.end_cause is None:
            self.inbox.append(chunk)

    def end(self, cause: CloseCause) -> None:
        """See `Outlet.end`: queued chunks go first."""
        if self.end_cause is None:
            self.end_cause = cause

    def run(self, now_s: float) -> bool:
        """Process chunks at `now_s`; True if any left the stage. Sets `wake_s`."""
        self._moved = False
        self.wake_s = None
        if not self.ended:
            if self.applies:
                self.work(now_s)
            else:
                self.pass_on()
        return self._moved

    def interrupt(self, now_s: float) -> None:
        """The toxic or the next one changed: held data leaves at once, and the toxic restarts."""
        if not self.ended:
            self.release(now_s)
            self._draw_applies()
            self.start(now_s)

    def remove(self, now_s: float) -> None:
        """Remove the toxic from the chain: held and queued data leaves at once, in order."""
        if not self.ended:
            self.release(now_s)
            for chunk in self.inbox:
                self.output.put(chunk)
            if self.end_cause is not None:
                self.output.end(self.end_cause)

    # Overridden by subclasses.

    def start(self, now_s: float) -> None:
        """Start, or restart after an interruption."""

    def work(self, now_s: float) -> None:
        """Apply the toxic."""
        self.pass_on()

    def release(self, now_s: float) -> None:
        """Pass on at once all data held by `work`, and reset its timing."""

    # Used by subclasses.

    def pass_on(self) -> None:
        """Pass on as much as the output has room for, then the end."""
        self.pass_data()
        self.finish_with_source()

    def pass_data(self) -> None:
        """Pass on as much as the output has room for, unchanged."""
        while self.inbox and self.output.has_room():
            self.output.put(self.inbox.popleft())
            self._moved = True

    def emit(self, data: bytes, stamp_s: float) -> None:
        """Pass on `data`, stamped with the time it leaves: later toxics count from there."""
        self.output.put(Chunk(data, stamp_s))
        self._moved = True

    def finish_with_source(self) -> None:
        """End if the source has ended and no data is left."""
        if not self.inbox and self.end_cause is not None:
            self.finish(self.end_cause)

    def finish(self, cause: CloseCause) -> None:
        """End this direction: the destination is closed after the data passed on; remaining data is dropped."""
        self.ended = True
        self.inbox.clear()
        self.output.end(cause)
        self._moved = True

    def _draw_applies(self) -> None:
        self.applies = self.random.random() < self.toxic.toxicity
