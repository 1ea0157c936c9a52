"""The closed loop: virtual users that send a request, wait for the answer, think and send the next one. Pure.

The simulator and both load engines use it. Requests and think times are drawn from the seed before the run; only the
times of the answers are not known. Latency counts from the time at which the user meant to send. A closed loop offers
a slow balancer less load than a fast one, as real users do: it shows what users experience, not the capacity.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness.scenario.arrivals import Arrival, stream_arrivals
from harness.scenario.model import Connections, Failure, Load, Stream

BACK_OFF_S = 0.05
"""Shortest pause of a virtual user after a failure."""


class VirtualUsers:
    """All virtual users of a load, or one worker's part of them. `requests`: everything that they may send.

    `first` is the number of their first request: lower numbers belong to the open loop. Numbers are assigned when a
    request is sent, and no two workers use the same ones. ValueError for invalid settings.
    """

    def __init__(self, load: Load, seed: int, first: int, worker: int = 0, workers: int = 1) -> None:
        self._numbers = itertools.count(first + worker, workers)
        self.users: list[VirtualUser] = []
        self.requests: list[Arrival] = []
        assigned = 0
        for index, stream in enumerate(load.streams):
            if stream.chats is None:
                continue
            _check(stream)
            requests = stream_arrivals(load, index, seed)
            self.requests += requests
            everything = _conversations(requests)
            # No two workers hold the same conversation at a time, unless there are fewer than workers.
            conversations = itertools.cycle(everything[worker::workers] or everything)
            for number in range(stream.chats.count):
                if (assigned + number) % workers == worker:
                    generator = random.Random(f"{seed}/chat/{index}/{number}")
                    self.users.append(VirtualUser(self._numbers, conversations, generator, stream))
            assigned += stream.chats.count


class VirtualUser:
    """One virtual user of `stream`. It takes one conversation after the other: a session's turns, or one request."""

    __slots__ = ("_conversations", "_ends_s", "_generator", "_numbers", "_think_s", "_turns", "start_s")

    def __init__(
        self, numbers: Iterator[int], conversations: Iterator[list[Arrival]], generator: random.Random, stream: Stream
    ) -> None:
        self.start_s = stream.start_s
        self._numbers = numbers
        self._conversations = conversations
        self._generator = generator
        self._think_s = stream.chats.think_s if stream.chats else 0.0
        self._ends_s = stream.end_s
        self._turns: Iterator[Arrival] = iter(())

    def due_s(self, free_s: float, failed: bool = False) -> float | None:
        """Time of the next request of a user that is free since `free_s`; None if the stream has ended by then."""
        think_s = self._generator.expovariate(1.0 / self._think_s) if self._think_s > 0 else 0.0
        due_s = free_s + (max(think_s, BACK_OFF_S) if failed else think_s)
        return due_s if due_s < self._ends_s else None

    def next_request(self, at_s: float) -> Arrival:
        """The next request, with `at_s` as its intended time."""
        turn = next(self._turns, None)
        if turn is None:
            self._turns = iter(next(self._conversations))
            turn = next(self._turns)
        return replace(turn, number=next(self._numbers), at_s=at_s)


def answer_failed(failure: Failure, status: int) -> bool:
    """Whether an answer is missing or an error (status 400 or above), so that the virtual user backs off."""
    return failure is not Failure.NONE or status >= 400


def _conversations(requests: Iterable[Arrival]) -> list[list[Arrival]]:
    """Requests grouped by session, in the order of their first requests; one without a session is alone."""
    conversations: dict[tuple[str, int], list[Arrival]] = {}
    for arrival in requests:
        group = ("session", arrival.session) if arrival.session >= 0 else ("alone", arrival.number)
        conversations.setdefault(group, []).append(arrival)
    return list(conversations.values())


def _check(stream: Stream) -> None:
    chats = stream.chats
    if chats is None or stream.connections is Connections.ONE or stream.shape is not None:
        raise ValueError(f"stream {stream.name!r}: chats have neither a shape nor a single connection")
    if chats.count < 1 or not 0.0 <= chats.think_s < math.inf or stream.requests < 1:
        raise ValueError(
            f"stream {stream.name!r}: {chats.count} chats that think {chats.think_s:g} s and ask for"
            f" {stream.requests} requests in turn: expected one chat, 0 s and one request at least"
        )
