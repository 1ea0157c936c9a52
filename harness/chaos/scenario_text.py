"""Scenarios as text: JSON of a user's file, with limits, and Python source to paste into a test. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType, ModuleType
from typing import Any

from harness.claims.features import CARRIER
from harness.scenario import arrival_rates, model
from harness.scenario.arrivals import draw
from harness.scenario.closed_loop import VirtualUsers
from harness.scenario.fault_schedule import conflict
from harness.scenario.faults import Leave, Membership
from harness.scenario.model import Scenario, Stream
from harness.scenario.text_form import MODULES, decode
from harness.scenario.validation import nearest

WIDTH = 100
"""Line width of Python source; a longer value has one line per field."""

MOST = 200_000
"""Limit of requests, keys, sessions or pieces of a shape in a stream of a file; more is treated as a mistake."""

MOST_CHATS = 10_000
MOST_TURNS = 1000
MOST_TOKENS = 1_000_000
MOST_BACKENDS = 28
"""Limit of backends: a live run has ports for this many."""

LONGEST_S = 3600.0

LEAST: Mapping[str, int] = MappingProxyType({"weight": 1, "slice_bytes": 1})
"""Minimum of a step's field, where it is not 0."""

MOST_OF_ANYTHING = 1_000_000_000

ANY_NUMBER = ("by",)
"""Fields of steps that are validated by the mock servers only."""


# --- JSON -------------------------------------------------------------------------------------------------


def from_json(text: str) -> Scenario:
    """The scenario in JSON `text`, from `to_json` or written by hand. ValueError: one line with error and location.

    Checks everything that would make a run fail, except server settings (`harness.sim.playable`).
    """
    scenario = decode(text)
    _check_fleet(scenario)
    _check_timeline(scenario)
    _check_load(scenario)
    if not scenario.end_s <= LONGEST_S:
        raise ValueError(f"scenario: it lasts {scenario.end_s:g} s, expected {LONGEST_S:g} s at most")
    return scenario


# --- validation -------------------------------------------------------------------------------------------


def _check_fleet(scenario: Scenario) -> None:
    count = scenario.backends + scenario.spare
    if scenario.backends < 1 or scenario.spare < 0 or count > MOST_BACKENDS:
        observed = f"{scenario.backends} backends and {scenario.spare} spare"
        raise ValueError(f"scenario: {observed}: expected one backend at least, {MOST_BACKENDS} in all at most")
    for number, phase in enumerate(scenario.phases):
        if not 0.0 <= phase.start_s <= phase.end_s < math.inf:
            observed = f"from {phase.start_s:g} to {phase.end_s:g} s"
            raise ValueError(f"scenario.phases[{number}]: {observed}: expected times from 0 on, in order")
    for number, interval_s in enumerate(scenario.intervals_s):
        if not 0.0 < interval_s < math.inf:
            raise ValueError(f"scenario.intervals_s[{number}]: {interval_s:g}: expected a number above 0")


def _check_timeline(scenario: Scenario) -> None:
    known = scenario.backend_ids
    for number, step in enumerate(scenario.timeline):
        where = f"scenario.timeline[{number}]: {type(step).__name__} of {step.backend!r}"
        if step.backend not in known:
            raise ValueError(f"{where}: {nearest(step.backend, known)}")
        if not 0.0 <= step.at_s < math.inf:
            raise ValueError(f"{where}: at_s {step.at_s}: expected a time from 0 on")
        for item in dataclasses.fields(step):
            value = getattr(step, item.name)
            if isinstance(value, bool | str | None) or item.name in ANY_NUMBER:
                continue
            least = LEAST.get(item.name, 0)
            if not least <= value <= MOST_OF_ANYTHING:
                raise ValueError(f"{where}: {item.name} {value}: expected {least} to {MOST_OF_ANYTHING}")
    changes = sorted((step for step in scenario.timeline if isinstance(step, Membership)), key=lambda step: step.at_s)
    for count, change in enumerate(changes):
        if isinstance(change, Leave) and change.backend not in scenario.members(changes[:count]):
            what = f"Leave of {change.backend!r} at {change.at_s:g} s"
            raise ValueError(f"scenario.timeline: {what}: it is not a member then; let it join first")
    if reason := conflict(scenario.timeline):
        raise ValueError(f"scenario.timeline: {reason}")


def _check_load(scenario: Scenario) -> None:
    load = scenario.load
    if not CARRIER.match(load.key_carrier):
        raise ValueError(
            f"scenario.load.key_carrier: {load.key_carrier!r}: expected header:NAME, json:PATH, cookie:NAME, session or"
            " prompt-prefix:N"
        )
    if not load.streams:
        raise ValueError("scenario.load.streams: none: expected one at least")
    for number, stream in enumerate(load.streams):
        where = f"scenario.load.streams[{number}]"
        for problem in _out_of_range(stream):
            raise ValueError(f"{where}: stream {stream.name!r}: {problem}")
        alone = dataclasses.replace(load, streams=(stream,))
        try:
            requests = VirtualUsers(alone, 0, 0).requests if stream.chats is not None else draw(alone, 0)
        except (ValueError, ArithmeticError, LookupError) as error:
            raise ValueError(f"{where}: its requests cannot be generated: {error}") from None
        longest = max((max(one.prompt_tokens, one.output_tokens) for one in requests), default=0)
        if longest > MOST_TOKENS:
            raise ValueError(f"{where}: a request of {longest} tokens: expected {MOST_TOKENS} at most")


def _out_of_range(stream: Stream) -> Iterator[str]:
    """Yield settings with which generating requests would crash or never end; later checks rely on earlier ones."""
    if not 0.0 < stream.rate_per_s < math.inf:
        yield f"rate_per_s {stream.rate_per_s}: expected a number above 0"
    if not 0.0 <= stream.start_s < math.inf:
        yield f"start_s {stream.start_s}: expected a time from 0 on"
    if not 0.0 < stream.timeout_s < math.inf:
        yield f"timeout_s {stream.timeout_s}: expected a number above 0"
    if min(stream.prompt_tokens, stream.output_tokens) < 0:
        yield f"{stream.prompt_tokens} prompt and {stream.output_tokens} output tokens: expected none below 0"
    if not stream.methods:
        yield "methods are none: expected one at least"
    if stream.shape is not None:
        yield from _too_many("pieces of its shape", _pieces(stream.shape))
    yield from _too_many(
        "requests", stream.requests if stream.shape is None else arrival_rates.expected(stream.shape), 0
    )
    if stream.chats is not None:
        yield from _too_many("chats", stream.chats.count, 1, MOST_CHATS)
        if not 0.0 < stream.chats.duration_s < math.inf:
            yield f"chats for {stream.chats.duration_s} s: expected a number above 0"
    if stream.keys is not None:
        yield from _too_many("keys", stream.keys.count, 1)
    if stream.content is not None and stream.content.sessions is not None:
        yield from _too_many("sessions", stream.content.sessions.count, 1)
        yield from _too_many("turns of a session", stream.content.sessions.turns, 1, MOST_TURNS)


def _pieces(shape: arrival_rates.Shape) -> int:
    """Number of pieces of a shape, counted up to `MOST` + 1."""
    if isinstance(shape, arrival_rates.Recorded):
        return 0
    return sum(1 for _ in itertools.islice(shape.pieces(), MOST + 1))


def _too_many(what: str, count: float, least: int = 0, most: int | None = None) -> Iterator[str]:
    most = MOST if most is None else most
    if not least <= count <= most:
        observed = count if isinstance(count, int) else f"{count:.15g}"
        yield f"{observed} {what}: expected {least} to {most}"


# --- Python -----------------------------------------------------------------------------------------------


def to_python(scenario: Scenario, name: str = "SCENARIO") -> str:
    """`scenario` as Python source, imports first; default values are omitted."""
    used: dict[str, set[str]] = {}
    body = f"{name} = {_source(scenario, used, 0)}"
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(used.items())]
    return "\n".join([*lines, "", body]) + "\n"


def _source(value: object, used: dict[str, set[str]], depth: int) -> str:
    """Source of a value at indentation level `depth`; adds the names to import, by module, to `used`."""
    if isinstance(value, Enum):
        _use(type(value), used)
        return f"{type(value).__name__}.{value.name}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _use(type(value), used)
        return _call(type(value).__name__, [*_arguments(value, used, depth + 1)], depth, ")")
    if isinstance(value, tuple):
        items = [_source(item, used, depth + 1) for item in value]
        return f"({items[0]},)" if len(items) == 1 and "\n" not in items[0] else _call("", items, depth, ")")
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value)!r})"
    return repr(value)


def _arguments(value: Any, used: dict[str, set[str]], depth: int) -> Iterator[str]:
    for item in dataclasses.fields(value):
        given = getattr(value, item.name)
        default = item.default_factory() if callable(item.default_factory) else item.default
        if given != default:
            yield f"{item.name}={_source(given, used, depth)}"


def _call(name: str, items: list[str], depth: int, closing: str) -> str:
    """`name(items)` on one line if it fits, else one line per item."""
    whole = f"{name}({', '.join(items)}{closing}"
    if "\n" not in whole and len(whole) + 4 * depth <= WIDTH:
        return whole
    inner = "".join(f"{'    ' * (depth + 1)}{item},\n" for item in items)
    return f"{name}(\n{inner}{'    ' * depth}{closing}"


def _use(cls: type, used: dict[str, set[str]]) -> None:
    """Add a class to `used`, under the first of MODULES that has it."""
    for module in MODULES:
        if getattr(module, cls.__name__, None) is cls and not _is_private(module, cls):
            used.setdefault(module.__name__, set()).add(cls.__name__)
            return


def _is_private(module: ModuleType, cls: type) -> bool:
    """Whether a module only imports the class for its own use."""
    return module is model and not cls.__module__.endswith("model")
