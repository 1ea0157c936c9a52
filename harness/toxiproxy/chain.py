"""The toxics of one direction of one connection, in a row: pure, without clock or socket."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from harness.toxiproxy.connection_log import CloseCause
from harness.toxiproxy.stage import Chunk, Outlet, Toxic, ToxicLink
from harness.toxiproxy.toxics import TOXIC_TYPES

CHUNK_BYTES = 32768  # Toxiproxy's read size; the byte and time patterns of its toxics depend on it


class Chain:
    """Passes data from a source through its stages to a sink.

    Args:
        toxics: initial toxics, nearest the source first.
        sink: destination of data after the last stage.
        random: draws toxicities, jitter and slices.
        now_s: the time at the start, in seconds on the clock of all other `now_s`.
    """

    def __init__(self, toxics: Iterable[Toxic], sink: Outlet, random: Random, now_s: float) -> None:
        self.stages: list[ToxicLink] = []
        self._sink = sink
        self._random = random
        for toxic in toxics:
            self.append(toxic, now_s)

    @property
    def entrance(self) -> Outlet:
        """The first stage. Read from the source only while it has room."""
        return self.stages[0] if self.stages else self._sink

    def feed(self, data: bytes, now_s: float) -> None:
        """Accept data read from the source at `now_s`. Call `run` afterwards."""
        for start in range(0, len(data), CHUNK_BYTES):
            self.entrance.put(Chunk(data[start : start + CHUNK_BYTES], now_s))

    def end(self, cause: CloseCause) -> None:
        """The source has ended. Call `run` afterwards."""
        self.entrance.end(cause)

    def run(self, now_s: float) -> float | None:
        """Move all data that may move at `now_s`; returns the time of the next run (seconds), or None."""
        if len(self.stages) == 1:  # fast path for the usual case: this runs twice for every chunk
            (stage,) = self.stages
            stage.run(now_s)
            return stage.wake_s
        moved = True
        while moved:  # a stage that passes data on makes room for the stage before it
            moved = False
            for stage in self.stages:
                moved = stage.run(now_s) or moved
        return min((stage.wake_s for stage in self.stages if stage.wake_s is not None), default=None)

    # Changes while data flows: Toxiproxy 2.12 behaviour. Call `run` afterwards.

    def append(self, toxic: Toxic, now_s: float) -> None:
        """Add a toxic nearest the destination; data held by the stage before it bypasses it at once."""
        stage = TOXIC_TYPES[toxic.type](toxic, self._sink, self._random, now_s)
        if self.stages:
            self.stages[-1].interrupt(now_s)
            self.stages[-1].output = stage
        self.stages.append(stage)

    def update(self, toxic: Toxic, now_s: float) -> None:
        """Apply changed values of a toxic: data held by its stage leaves at once, later data gets the new values."""
        self.stages[self._index(toxic)].interrupt(now_s)

    def remove(self, toxic: Toxic, now_s: float) -> None:
        """Remove a toxic; data held by it and by the stage before it leaves at once, in order."""
        index = self._index(toxic)
        stage = self.stages.pop(index)
        if index > 0:
            self.stages[index - 1].interrupt(now_s)
            self.stages[index - 1].output = stage.output
        stage.remove(now_s)

    def _index(self, toxic: Toxic) -> int:
        return next(index for index, stage in enumerate(self.stages) if stage.toxic is toxic)
