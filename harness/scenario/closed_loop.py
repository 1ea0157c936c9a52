"""The closed loop: chats that ask, wait for their answer, think, and ask again. Pure; simulator and engines use it.

What is asked, and how long each chat thinks, is drawn from the seed before the run; only when an answer comes is not.
Latency still counts from when the chat meant to ask. A closed loop offers a slow balancer less than a fast one, as a
crowd of people does; it says how that feels, not what the balancer can bear.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness.scenario.arrivals import Arrival, asked_by
from harness.scenario.model import Connections, Failure, Load, Stream

BACK_OFF_S = 0.05
"""How long a chat waits at least after a failure."""


class VirtualUsers:
    """All chats of a load, or a worker's share of them. `asked` is everything that they may ask for.

    `first` is the number of their first request: those below are the open loop's. Numbers are dealt as requests are
    made, so that no two workers use the same. ValueError for chats that cannot be played.
    """

    def __init__(self, load: Load, seed: int, first: int, worker: int = 0, workers: int = 1) -> None:
        self._numbers = itertools.count(first + worker, workers)
        self.chats: list[VirtualUser] = []
        self.asked: list[Arrival] = []
        dealt = 0
        for index, stream in enumerate(load.streams):
            if stream.chats is None:
                continue
            _check(stream)
            asked = asked_by(load, index, seed)
            self.asked += asked
            everything = _talks(asked)
            # No two workers hold the same conversation at a time, unless there are fewer than workers.
            talks = itertools.cycle(everything[worker::workers] or everything)
            for number in range(stream.chats.count):
                if (dealt + number) % workers == worker:
                    thinking = random.Random(f"{seed}/chat/{index}/{number}")
                    self.chats.append(VirtualUser(self._numbers, talks, thinking, stream))
            dealt += stream.chats.count


class VirtualUser:
    """One chat of `stream`. It takes one talk after the other: all turns of a session, or a request without one."""

    __slots__ = ("_ends_s", "_generator", "_numbers", "_talks", "_think_s", "_turns", "begins_s")

    def __init__(
        self, numbers: Iterator[int], talks: Iterator[list[Arrival]], generator: random.Random, stream: Stream
    ) -> None:
        self.begins_s = stream.start_s
        self._numbers = numbers
        self._talks = talks
        self._generator = generator
        self._think_s = stream.chats.think_s if stream.chats else 0.0
        self._ends_s = stream.end_s
        self._turns: Iterator[Arrival] = iter(())

    def due_s(self, free_s: float, failed: bool = False) -> float | None:
        """When the chat asks next, having been free since `free_s`; None if its time is over by then."""
        think_s = self._generator.expovariate(1.0 / self._think_s) if self._think_s > 0 else 0.0
        due_s = free_s + (max(think_s, BACK_OFF_S) if failed else think_s)
        return due_s if due_s < self._ends_s else None

    def ask(self, at_s: float) -> Arrival:
        """What it asks for, meant to be sent at `at_s`."""
        turn = next(self._turns, None)
        if turn is None:
            self._turns = iter(next(self._talks))
            turn = next(self._turns)
        return replace(turn, number=next(self._numbers), at_s=at_s)


def disappoints(failure: Failure, status: int) -> bool:
    """Whether an answer was none, or an error: its chat backs off."""
    return failure is not Failure.NONE or status >= 400


def _talks(asked: Iterable[Arrival]) -> list[list[Arrival]]:
    """What belongs together, in the order of its first request."""
    talks: dict[tuple[str, int], list[Arrival]] = {}
    for arrival in asked:
        one = ("session", arrival.session) if arrival.session >= 0 else ("alone", arrival.number)
        talks.setdefault(one, []).append(arrival)
    return list(talks.values())


def _check(stream: Stream) -> None:
    chats = stream.chats
    if chats is None or stream.connections is Connections.ONE or stream.shape is not None:
        raise ValueError(f"stream {stream.name!r}: chats have neither a shape nor a single connection")
    if chats.count < 1 or not 0.0 <= chats.think_s < math.inf or stream.requests < 1:
        raise ValueError(
            f"stream {stream.name!r}: {chats.count} chats that think {chats.think_s:g} s and ask for"
            f" {stream.requests} requests in turn: expected one chat, 0 s and one request at least"
        )
