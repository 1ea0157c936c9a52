"""Reduce a failing scenario to a small one that still fails: few steps, little load, few backends. Pure.

Delta debugging (Zeller and Hildebrandt, IEEE TSE 28, 2002) on the timeline; halving of all sizes. Deterministic: equal
scenarios and equal results of `fails` give equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.scenario.fault_schedule import conflict
from harness.scenario.faults import Membership, Step
from harness.scenario.model import Chats, Scenario, Stream

MOST_RUNS = 200
FEWEST_REQUESTS = 4
SHORTEST_S = 0.05

Fails = Callable[[Scenario], bool]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failing scenario found, the number of runs, and whether the limit of runs ended the search."""

    scenario: Scenario
    runs: int
    cut_short: bool


class _SpentError(Exception):
    """The limit of runs is reached."""


class _Shrinker:
    """Holds the smallest failing scenario so far; `try_` plays a candidate and keeps it if it fails."""

    def __init__(self, scenario: Scenario, fails: Fails, most_runs: int) -> None:
        self.best = scenario
        self.runs = 0
        self._fails = fails
        self._most_runs = most_runs
        self._always_members = _always_members(scenario)
        self._known: dict[str, bool] = {scenario.digest(): True}

    def try_(self, candidate: Scenario) -> bool:
        """Whether `candidate` fails; equal candidates are played once. _SpentError if no run is left.

        A candidate that leaves the balancer without members at some time fails with every balancer: it counts only if
        the original scenario does so too. A candidate with conflicting steps cannot be played and does not count.
        """
        if self._always_members and not _always_members(candidate):
            return False
        if conflict(candidate.timeline):
            return False
        key = candidate.digest()
        if key not in self._known:
            if self.runs >= self._most_runs:
                raise _SpentError
            self.runs += 1
            self._known[key] = self._fails(candidate)
        if self._known[key]:
            self.best = candidate
        return self._known[key]

    def first_of(self, candidates: Iterator[Scenario]) -> bool:
        """Keep the first of `candidates` that fails. Returns whether there is one."""
        return any(self.try_(candidate) for candidate in candidates)


def shrink(scenario: Scenario, fails: Fails, most_runs: int = MOST_RUNS) -> Shrunk:
    """The smallest scenario found by removing parts of `scenario`, which fails, as long as it still fails.

    `fails` plays a scenario and says whether it fails; it must return False for one that cannot be played. Removed are
    steps, then durations and idle time, requests and backends, repeatedly until nothing more can be removed or
    `most_runs` are used.
    """
    shrinker = _Shrinker(scenario, fails, most_runs)
    try:
        while True:
            before = shrinker.best
            _fewer_steps(shrinker)
            while shrinker.first_of(_shorter_faults(shrinker.best)):
                continue
            while shrinker.first_of(_earlier(shrinker.best)):
                continue
            while shrinker.first_of(_smaller_loads(shrinker.best)):
                continue
            while shrinker.first_of(_fewer_backends(shrinker.best)):
                continue
            if shrinker.best == before:
                return Shrunk(shrinker.best, shrinker.runs, cut_short=False)
    except _SpentError:
        return Shrunk(shrinker.best, shrinker.runs, cut_short=True)


def _always_members(scenario: Scenario) -> bool:
    """Whether the membership changes are valid and leave an undrained member after each."""
    steps = sorted(scenario.timeline, key=lambda step: step.at_s)
    changes = [step for step in steps if isinstance(step, Membership)]
    try:
        return all(
            set(scenario.members(changes[:count])) - scenario.drained(changes[:count])
            for count in range(len(changes) + 1)
        )
    except ValueError:  # a Leave of a backend that has left already
        return False


# --- steps ------------------------------------------------------------------------------------------------


def _fewer_steps(shrinker: _Shrinker) -> None:
    """Delta debugging: remove smaller and smaller parts of the timeline."""
    parts = 2
    while shrinker.best.timeline:
        steps = shrinker.best.timeline
        parts = min(parts, len(steps))
        candidates = (replace(shrinker.best, timeline=rest) for rest in _without_a_part(steps, parts))
        if shrinker.first_of(candidates):
            parts = max(parts - 1, 2)
        elif parts == len(steps):
            return
        else:
            parts = min(2 * parts, len(steps))


def _without_a_part(steps: Sequence[Step], parts: int) -> Iterator[tuple[Step, ...]]:
    size = len(steps) / parts
    for number in range(parts):
        start, end = round(number * size), round((number + 1) * size)
        yield (*steps[:start], *steps[end:])


def _shorter_faults(scenario: Scenario) -> Iterator[Scenario]:
    """Candidates with one fault half as long."""
    for number, step in enumerate(scenario.timeline):
        for_s = getattr(step, "for_s", None)
        if for_s is not None and for_s / 2 >= SHORTEST_S:
            shorter: Any = replace(step, for_s=round(for_s / 2, 3))
            yield replace(scenario, timeline=(*scenario.timeline[:number], shorter, *scenario.timeline[number + 1 :]))


def _earlier(scenario: Scenario) -> Iterator[Scenario]:
    """A candidate without half of the time before the first step, and without the requests of that time."""
    first_s = min((step.at_s for step in scenario.timeline), default=0.0)
    removed_s = round(first_s / 2, 2)
    if removed_s < SHORTEST_S:
        return
    steps = tuple(replace(step, at_s=round(step.at_s - removed_s, 3)) for step in scenario.timeline)
    streams = tuple(_shorter(stream, removed_s) for stream in scenario.load.streams)
    yield replace(_with_streams(scenario, streams), timeline=steps)


def _shorter(stream: Stream, removed_s: float) -> Stream:
    if stream.chats is not None:
        lasts_s = max(SHORTEST_S, round(stream.chats.duration_s - removed_s, 3))
        return replace(stream, chats=replace(stream.chats, duration_s=lasts_s))
    return replace(stream, requests=max(FEWEST_REQUESTS, stream.requests - int(stream.rate_per_s * removed_s)))


# --- load and fleet ---------------------------------------------------------------------------------------


def _smaller_loads(scenario: Scenario) -> Iterator[Scenario]:
    """Candidates without one stream; with one at half its rate (of equal or somewhat longer duration); with one
    shorter by half, a quarter or a tenth; or with fewer chats or keys.
    """
    streams = scenario.load.streams
    if len(streams) > 1:
        for number in range(len(streams)):
            yield _with_streams(scenario, (*streams[:number], *streams[number + 1 :]))
    for number, stream in enumerate(streams):
        for smaller in _smaller(stream):
            yield _with_streams(scenario, (*streams[:number], smaller, *streams[number + 1 :]))


def _smaller(stream: Stream) -> Iterator[Stream]:
    yield from _fewer_requests(stream) if stream.chats is None else _fewer_chats(stream, stream.chats)
    if stream.keys is not None and stream.keys.count > 1:
        yield replace(stream, keys=replace(stream.keys, count=max(1, stream.keys.count // 4)))


def _fewer_requests(stream: Stream) -> Iterator[Stream]:
    count = stream.requests
    for fewer in (count // 2, count // 2 + count // 8):  # the rate first: later every request may be needed
        if FEWEST_REQUESTS <= fewer < count:
            yield replace(stream, requests=fewer, rate_per_s=stream.rate_per_s / 2)
    for fewer in (count // 2, count - count // 4, count - count // 10):
        if FEWEST_REQUESTS <= fewer < count:
            yield replace(stream, requests=fewer)


def _fewer_chats(stream: Stream, chats: Chats) -> Iterator[Stream]:
    for fewer in (chats.count // 2, chats.count - chats.count // 4):
        if 1 <= fewer < chats.count:
            yield replace(stream, chats=replace(chats, count=fewer))
    for shorter_s in (round(chats.duration_s / 2, 3), round(chats.duration_s * 3 / 4, 3)):
        if SHORTEST_S <= shorter_s < chats.duration_s:
            yield replace(stream, chats=replace(chats, duration_s=shorter_s))


def _with_streams(scenario: Scenario, streams: tuple[Stream, ...]) -> Scenario:
    return replace(scenario, load=replace(scenario.load, streams=streams))


def _fewer_backends(scenario: Scenario) -> Iterator[Scenario]:
    """Candidates with fewer backends: the timeline's backends renumbered from 0, or unchanged."""
    names = sorted({step.backend for step in scenario.timeline}, key=scenario.backend_ids.index)
    if scenario.spare:
        return
    new = {old: f"gpu-{number}" for number, old in enumerate(names)}
    steps = tuple(_on(step, new[step.backend]) for step in scenario.timeline)
    for backends in range(max(2, len(names)), scenario.backends):
        yield replace(scenario, backends=backends, timeline=steps)
    for backends in range(max(2, len(names) + 1), scenario.backends):
        if all(int(name.rpartition("-")[2]) < backends for name in names):
            yield replace(scenario, backends=backends)


def _on(step: Step, backend: str) -> Step:
    return replace(step, backend=backend)
