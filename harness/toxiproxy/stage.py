"""One toxic at work on one direction of one connection: pure, without clock or socket.

Data flows through a chain of stages in chunks. A stage takes chunks from its inbox and puts them into its
output, which is the next stage or the destination. Time is an argument; a stage that waits says in `wake_s`
when it wants to run again.
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
    """Some bytes and when they were read or left the stage before (seconds, CLOCK_MONOTONIC)."""

    data: bytes
    stamp_s: float


class Outlet(Protocol):
    """Where a stage puts its chunks: the next stage, or the destination of the link."""

    def has_room(self) -> bool:
        """Whether a chunk is welcome now. `put` accepts one in any case, so a flush never blocks."""
        ...

    def put(self, chunk: Chunk) -> None:
        """Take a chunk; dropped if the end has come already."""
        ...

    def end(self, cause: CloseCause) -> None:
        """No more chunks will come, because of `cause`; repeated calls change nothing."""
        ...


@dataclass(eq=False, slots=True)
class Toxic:
    """A toxic as its proxy keeps it, shared by all links; an update changes it in place.

    `stream` is kept as the caller spelled it, `attributes` holds every attribute of the type.
    """

    name: str
    type: str
    stream: str
    toxicity: float = 1.0
    attributes: dict[str, int] = field(default_factory=dict)

    @property
    def direction(self) -> str:
        """`upstream` or `downstream`: the name of the link that it works on."""
        return self.stream.lower()


class ToxicLink:
    """Base of all toxics: passes everything on. Subclasses override `work` and whatever else differs.

    Whether the toxic applies to this link is drawn with its toxicity when the stage starts and at each
    interruption; where it does not apply the stage passes everything on (Toxiproxy 2.12 behaviour).
    """

    attribute_names: ClassVar[tuple[str, ...]] = ()
    # One read of asyncio is up to eight full chunks; with fewer a fast source would be paused all the time.
    capacity_chunks: ClassVar[int] = 8

    def __init__(self, toxic: Toxic, output: Outlet, random: Random, now_s: float) -> None:
        self.toxic = toxic
        self.output = output
        self.random = random
        self.inbox: deque[Chunk] = deque()
        self.source_ending: CloseCause | None = None
        self.ended = False
        self.wake_s: float | None = None
        self._moved = False
        self._draw()
        self.start(now_s)

    @classmethod
    def refusal(cls, attributes: dict[str, int]) -> str | None:
        """Why these attributes can't be had, or None. Toxiproxy would accept them and crash on them later."""
        return None

    def has_room(self) -> bool:
        """As `Outlet`. A stage that has ended has none, so the source stays unread, as with Toxiproxy."""
        return not self.ended and len(self.inbox) < self.capacity_chunks

    def put(self, chunk: Chunk) -> None:
        """As `Outlet`."""
        if not self.ended and self.source_ending is None:
            self.inbox.append(chunk)

    def end(self, cause: CloseCause) -> None:
        """As `Outlet`: what waits in the inbox still goes first."""
        if self.source_ending is None:
            self.source_ending = cause

    def run(self, now_s: float) -> bool:
        """Do what can be done at `now_s`; True if anything left the stage. Sets `wake_s`."""
        self._moved = False
        self.wake_s = None
        if not self.ended:
            if self.applies:
                self.work(now_s)
            else:
                self.pass_on()
        return self._moved

    def interrupt(self, now_s: float) -> None:
        """The toxic, or the one after it, changed: what is held leaves at once, and the toxic starts afresh."""
        if not self.ended:
            self.release(now_s)
            self._draw()
            self.start(now_s)

    def remove(self, now_s: float) -> None:
        """The toxic is taken out of the chain: everything held or queued leaves at once, in order."""
        if not self.ended:
            self.release(now_s)
            for chunk in self.inbox:
                self.output.put(chunk)
            if self.source_ending is not None:
                self.output.end(self.source_ending)

    # What subclasses override.

    def start(self, now_s: float) -> None:
        """Begin, or begin afresh after an interruption."""

    def work(self, now_s: float) -> None:
        """Apply the toxic."""
        self.pass_on()

    def release(self, now_s: float) -> None:
        """Pass on at once whatever `work` is holding back, and forget its timing."""

    # What subclasses use.

    def pass_on(self) -> None:
        """Pass on what the output has room for, and the end behind it."""
        self.pass_data()
        self.finish_with_source()

    def pass_data(self) -> None:
        """Pass on what the output has room for, unchanged."""
        while self.inbox and self.output.has_room():
            self.output.put(self.inbox.popleft())
            self._moved = True

    def emit(self, data: bytes, stamp_s: float) -> None:
        """Pass on `data`. A stage that delays stamps it with now: later toxics count from when it left."""
        self.output.put(Chunk(data, stamp_s))
        self._moved = True

    def finish_with_source(self) -> None:
        """End if the source has ended and nothing is left to pass on."""
        if not self.inbox and self.source_ending is not None:
            self.finish(self.source_ending)

    def finish(self, cause: CloseCause) -> None:
        """End this direction: the destination is closed after what was passed on; the rest is dropped."""
        self.ended = True
        self.inbox.clear()
        self.output.end(cause)
        self._moved = True

    def _draw(self) -> None:
        self.applies = self.random.random() < self.toxic.toxicity
