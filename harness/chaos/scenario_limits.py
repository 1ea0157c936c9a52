"""Limits of scenarios in users' files: with other settings a run would crash or never end. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from harness.claims.features import CARRIER
from harness.scenario import arrival_rates
from harness.scenario.arrivals import draw
from harness.scenario.closed_loop import VirtualUsers
from harness.scenario.fault_schedule import conflict
from harness.scenario.faults import Leave, Membership, Step
from harness.scenario.model import Load, Method, Scenario, Stream
from harness.scenario.reading import check, shown
from harness.scenario.validation import nearest

MOST = 200_000
"""Limit of requests, keys, sessions or pieces of a shape in a stream of a file; more is treated as a mistake."""

MOST_TOKENS = 1_000_000
MOST_BACKENDS = 28
"""Limit of backends: a live run has ports for this many."""

LONGEST_S = 3600.0

MOST_OF_ANYTHING = 1_000_000_000

ANY_NUMBER = ("by",)
"""Fields of steps that only their own kind of fault validates."""


# --- ranges -----------------------------------------------------------------------------------------------


def _carrier(text: str) -> str:
    if not CARRIER.match(text):
        expected = "header:NAME, json:PATH, cookie:NAME, session or prompt-prefix:N"
        raise ValueError(f"saw {shown(text)}, expected {expected}")
    return text


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Moment = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Number = Annotated[float, Field(ge=0, le=MOST_OF_ANYTHING)]
NumberFrom1 = Annotated[float, Field(ge=1, le=MOST_OF_ANYTHING)]


class KeyLimits(BaseModel):
    """Ranges of `Keys`."""

    count: Count


class ChatLimits(BaseModel):
    """Ranges of `Chats`."""

    count: Annotated[int, Field(ge=1, le=10_000)]
    duration_s: Positive


class SessionLimits(BaseModel):
    """Ranges of `Sessions`."""

    count: Count
    turns: Annotated[int, Field(ge=1, le=1000)]


class ContentLimits(BaseModel):
    """Ranges of `Content`."""

    sessions: SessionLimits | None


class StreamLimits(BaseModel):
    """Ranges of `Stream`."""

    start_s: Moment
    rate_per_s: Positive
    requests: Annotated[int, Field(ge=0, le=MOST)]
    methods: Annotated[tuple[Method, ...], Field(min_length=1)]
    prompt_tokens: Tokens
    output_tokens: Tokens
    timeout_s: Positive
    keys: KeyLimits | None
    chats: ChatLimits | None
    content: ContentLimits | None


class LoadLimits(BaseModel):
    """Ranges of `Load`, except its streams'."""

    key_carrier: Annotated[str, AfterValidator(_carrier)]
    streams: Annotated[tuple[object, ...], Field(min_length=1)]


class PhaseLimits(BaseModel):
    """Ranges of `Phase`."""

    start_s: Moment
    end_s: Moment


class FleetLimits(BaseModel):
    """Ranges of `Scenario`."""

    backends: Annotated[int, Field(ge=1, le=MOST_BACKENDS)]
    spare: Annotated[int, Field(ge=0, le=MOST_BACKENDS)]
    phases: tuple[PhaseLimits, ...]
    intervals_s: tuple[Positive, ...]
    load: LoadLimits


class StepLimits(BaseModel, extra="allow"):
    """Ranges of the numbers of any step; those without a range of their own are from 0 to `MOST_OF_ANYTHING`."""

    at_s: Moment
    weight: NumberFrom1 = 1
    slice_bytes: NumberFrom1 = 1

    __pydantic_extra__: dict[str, Number]


# --- checks -----------------------------------------------------------------------------------------------


def check_limits(scenario: Scenario) -> None:
    """ValueError, one line, for anything that would make a run of a user's scenario fail.

    What the mock servers reject is left to `harness.sim.playable`.
    """
    check(FleetLimits, scenario, "scenario")
    _check_fleet(scenario)
    for number, step in enumerate(scenario.timeline):
        _check_step(scenario, step, f"scenario.timeline[{number}]")
    _check_order(scenario)
    for number, stream in enumerate(scenario.load.streams):
        try:
            _check_stream(scenario.load, stream, f"scenario.load.streams[{number}]")
        except ValueError as error:
            raise ValueError(f"{error} (stream {stream.name!r})") from None
    if not scenario.end_s <= LONGEST_S:
        raise ValueError(f"scenario: it lasts {scenario.end_s:g} s, expected {LONGEST_S:g} s at most")


def _check_fleet(scenario: Scenario) -> None:
    if scenario.backends + scenario.spare > MOST_BACKENDS:
        observed = f"{scenario.backends} backends and {scenario.spare} spare"
        raise ValueError(f"scenario: {observed}: expected {MOST_BACKENDS} in all at most")
    for number, phase in enumerate(scenario.phases):
        if phase.start_s > phase.end_s:
            observed = f"from {phase.start_s:g} to {phase.end_s:g} s"
            raise ValueError(f"scenario.phases[{number}]: {observed}: expected times in order")


def _check_step(scenario: Scenario, step: Step, where: str) -> None:
    what = f"{type(step).__name__} of {step.backend!r}"
    if step.backend not in scenario.backend_ids:
        raise ValueError(f"{where}: {what}: {nearest(step.backend, scenario.backend_ids)}")
    values = {item.name: getattr(step, item.name) for item in dataclasses.fields(step) if item.name not in ANY_NUMBER}
    numbers = {name: value for name, value in values.items() if not isinstance(value, bool | str | None)}
    try:
        check(StepLimits, numbers, where)
    except ValueError as error:
        raise ValueError(f"{error} ({what})") from None


def _check_order(scenario: Scenario) -> None:
    changes = sorted((step for step in scenario.timeline if isinstance(step, Membership)), key=lambda step: step.at_s)
    for count, change in enumerate(changes):
        if isinstance(change, Leave) and change.backend not in scenario.members(changes[:count]):
            what = f"Leave of {change.backend!r} at {change.at_s:g} s"
            raise ValueError(f"scenario.timeline: {what}: it is not a member then; let it join first")
    if reason := conflict(scenario.timeline):
        raise ValueError(f"scenario.timeline: {reason}")


def _check_stream(load: Load, stream: Stream, where: str) -> None:
    check(StreamLimits, stream, where)
    if stream.shape is not None:
        _check_shape(stream.shape, f"{where}.shape")
    alone = dataclasses.replace(load, streams=(stream,))
    try:
        requests = VirtualUsers(alone, 0, 0).requests if stream.chats is not None else draw(alone, 0)
    except (ValueError, ArithmeticError, LookupError) as error:
        raise ValueError(f"{where}: its requests cannot be generated: {error}") from None
    longest = max((max(one.prompt_tokens, one.output_tokens) for one in requests), default=0)
    if longest > MOST_TOKENS:
        raise ValueError(f"{where}: a request of {longest} tokens: expected {MOST_TOKENS} at most")


def _check_shape(shape: arrival_rates.Shape, where: str) -> None:
    """ValueError for more pieces or requests than can be drawn; pieces are counted up to `MOST` + 1."""
    some = () if isinstance(shape, arrival_rates.Recorded) else itertools.islice(shape.pieces(), MOST + 1)
    pieces = sum(1 for _ in some)
    for what, count in (("pieces", pieces), ("requests", 0 if pieces > MOST else arrival_rates.expected(shape))):
        if not 0 <= count <= MOST:
            observed = count if isinstance(count, int) else f"{count:.15g}"
            raise ValueError(f"{where}: {observed} {what}: expected 0 to {MOST}")
