"""Command-line syntax of faults and membership changes: `latency --latency-ms 800 --for 10s`.

Kinds and options are derived from the dataclasses of `harness.scenario.faults`: a kind is a class name in kebab case,
an option is one of its fields. A duration (`latency_s`) is given as --latency-s 0.8, --latency-ms 800, or with its unit
as --latency 800ms.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any

from harness.scenario.faults import Step, hyphenated
from harness.scenario.model import ClaimsError
from harness.scenario.validation import nearest

UNITS_S: Mapping[str, float] = MappingProxyType({"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0})
QUANTITY = re.compile(r"([0-9]*\.?[0-9]+)(ms|s|m|h)")
GIVEN_OTHERWISE = ("backend", "at_s", "seed")
"""Fields without an option: the backend is an argument, the time is now, and the seed is that of the run."""
MAY_BE_ZERO = ("jitter_s", "retry_after_s")
MAY_BE_NEGATIVE = ("by",)


KINDS: Mapping[str, type[Step]] = MappingProxyType({hyphenated(kind.__name__): kind for kind in typing.get_args(Step)})
"""Every kind of step by its name on the command line."""


def kind_of(step: Step) -> str:
    """The name of a step's kind."""
    return hyphenated(type(step).__name__)


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a kind. `type` is float, int, bool or str; `required`: it has no default."""

    field: str
    type: type
    required: bool

    @property
    def is_duration(self) -> bool:
        """Whether its unit is seconds, so that a value may have a unit."""
        return self.field.endswith("_s") and not self.field.endswith("_per_s")

    @property
    def stem(self) -> str:
        """Its name on the command line; for a duration, the name whose value has a unit."""
        return (self.field.removesuffix("_s") if self.is_duration else self.field).replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """All spellings, with leading dashes."""
        return (f"--{self.stem}", f"--{self.stem}-ms", f"--{self.stem}-s") if self.is_duration else (f"--{self.stem}",)

    @property
    def usage(self) -> str:
        """Example of use, such as --latency 800ms."""
        if self.type is bool:
            return f"--{self.stem}"
        shown = {float: "NUMBER", int: "N", str: "WORD"}[self.type]
        return f"--{self.stem} {('10s' if self.field == 'for_s' else '800ms') if self.is_duration else shown}"


def options_of(kind: type[Step]) -> tuple[Option, ...]:
    """The options of a kind, in the order of its fields; those that select requests last."""
    hints = typing.get_type_hints(kind)
    return tuple(
        Option(item.name, _plain(hints[item.name]), item.default is MISSING)
        for item in sorted(fields(kind), key=lambda item: item.kw_only is True)
        if item.name not in GIVEN_OTHERWISE
    )


def usage_of(kind: type[Step]) -> str:
    """All options of a kind in one line, optional ones in brackets."""
    return " ".join(item.usage if item.required else f"[{item.usage}]" for item in options_of(kind))


def kind_summary(kind: type[Step]) -> str:
    """One line about a kind, with options and other kinds named as on the command line."""
    names = {option.field: f"--{option.stem}" for option in options_of(kind)}
    names |= {known.__name__: name for name, known in KINDS.items()}
    return re.sub(r"`+(\w+)`+", lambda match: names[match[1]], (kind.__doc__ or "").splitlines()[0])


def parse(backend: str, kind: str, words: Sequence[str]) -> Step:
    """The step described by `words` (`at_s` 0). ClaimsError, with the nearest valid names, if they are invalid."""
    if kind not in KINDS and backend in KINDS:
        raise ClaimsError(f"backend first, then kind: steelyard fault add {' '.join([kind, backend, *words])}")
    if kind not in KINDS:
        raise ClaimsError(f"no fault {kind!r}; {nearest(kind, KINDS)}")
    options = options_of(KINDS[kind])
    names = {name: option for option in options for name in option.names}
    values: dict[str, Any] = {}
    for name, value in _pairs(words, kind, names):
        option = names[name]
        if option.field in values:
            raise ClaimsError(f"{name}: {option.stem} is given twice; give it once")
        values[option.field] = _checked(option, name, _value(option, name, value))
    for option in options:
        if option.required and option.field not in values:
            raise ClaimsError(f"{kind} needs {option.usage}: steelyard fault add {backend} {kind} {option.usage}")
    try:
        return KINDS[kind](backend=backend, at_s=0.0, **values)
    except ValueError as error:  # a limit of the kind's own
        raise ClaimsError(f"{kind}: {error}") from None


def describe(step: Step) -> str:
    """Description of a step without its backend and duration: `latency 800 ms, jitter 20 ms`."""
    kind = kind_of(step)
    parts = []
    for option in options_of(type(step)):
        value = getattr(step, option.field)
        default = next(item.default for item in fields(step) if item.name == option.field)
        if option.field == "for_s" or value is None or (value == default and not option.required):
            continue
        shown = duration(value) if option.is_duration else "" if option.type is bool else f"{value}"
        parts.append(shown if option.stem == kind else f"{option.stem} {shown}".rstrip())
    return " ".join([kind, ", ".join(parts)]).rstrip()


def duration(seconds: float) -> str:
    """A duration as text: 800 ms, 10 s."""
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 1 else f"{seconds:.3g} s"


def _plain(hint: object) -> type:
    """The type of a field, without `None`."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint


def _pairs(words: Sequence[str], kind: str, names: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    """Pairs of option name and value, "" for a flag."""
    left = list(words)
    while left:
        name, given, value = left.pop(0).partition("=")
        if name not in names:
            if not names:
                raise ClaimsError(f"{kind} takes no options, not {name!r}")
            raise ClaimsError(f"{kind} has no option {name!r}; {nearest(name, names)}")
        flag = names[name].type is bool
        if flag and given:
            raise ClaimsError(f"{name} takes no value; leave {value!r} out")
        if not flag and not given:
            if not left:
                raise ClaimsError(f"{name} needs a value, as in {names[name].usage}")
            value = left.pop(0)
        yield name, value


def _value(option: Option, name: str, text: str) -> Any:
    if option.type is bool:
        return True
    if option.is_duration and name == f"--{option.stem}":
        match = QUANTITY.fullmatch(text.strip())
        if match is None:
            raise ClaimsError(f"{name} {text!r}: expected a duration with its unit, as in 800ms, 10s or 2m")
        return float(match[1]) * UNITS_S[match[2]]
    try:
        value = option.type(text)
    except ValueError:
        expected = {float: "a number", int: "a whole number"}[option.type]
        raise ClaimsError(f"{name} {text!r}: expected {expected}") from None
    return value * UNITS_S["ms"] if option.is_duration and name.endswith("-ms") else value


def _checked(option: Option, name: str, value: Any) -> Any:
    """`value`, or ClaimsError for a number invalid for every kind; each kind checks its own limits."""
    if option.type in (float, int):
        least = 0 if option.field in MAY_BE_ZERO else math.ulp(0.0)
        if not math.isfinite(value) or (value < least and option.field not in MAY_BE_NEGATIVE):
            raise ClaimsError(f"{name}: expected a number {'from 0 on' if least == 0 else 'above 0'}, not {value:g}")
    return value
