"""A property: one promise, declared in one place, and the findings that its check yields.

A check is a pure function of a history and the claims. It yields one finding for each occasion on which the promise
was really put to the test; no finding at all makes the run vacuous. The judge alone turns findings into an outcome.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from harness.claims.features import Claims, Feature
from harness.evidence.history import History
from harness.scenario.model import Scenario, World
from harness.stats import ALPHA, BETA

NAME = re.compile(r"^[a-z0-9-]+(\.[a-z0-9-]+){1,2}$")
"""Two or three parts: `family.promise` or `family.situation.promise`."""

Number = float | int
Bound = Number | tuple[Number, Number]


@dataclass(frozen=True, slots=True)
class Held:
    """A fact of order or count that held or broke. `exact`: no delay can cause a breach, so it is never undecided.

    `alpha` is the false-alarm rate of a bound that rests on chance (0: none can happen).
    """

    ok: bool
    at_s: float
    observed: Bound
    bound: Bound
    exact: bool = False
    until_s: float | None = None
    sample: int | None = None
    alpha: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Within:
    """A time that must lie in [low_s, high_s]; the judge widens both ends by the slack of that stretch."""

    observed_s: float
    low_s: float
    high_s: float
    at_s: float
    until_s: float | None = None
    sample: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A rate, judged by the truncated sequential test. `hits` in the order in which they happened."""

    hits: tuple[bool, ...]
    conform: tuple[float, float]
    violate: tuple[float | None, float | None]
    at_s: float
    until_s: float | None = None
    alpha: float = ALPHA
    beta: float = BETA
    note: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """An occasion on which the evidence does not say."""

    why: str
    at_s: float = 0.0


Finding = Held | Within | Sampled | Undecided
Findings = Iterator[Finding]

held = Held
within = Within
undecided = Undecided


def sampled(
    hits: Sequence[bool],
    *,
    conform: tuple[float, float],
    violate: tuple[float | None, float | None],
    at_s: float,
    until_s: float | None = None,
    alpha: float = ALPHA,
    beta: float = BETA,
    note: str = "",
) -> Sampled:
    """A rate finding. One independent decision per hit is assumed: use it on one hit per connection or request."""
    flags = tuple(bool(hit) for hit in hits)
    return Sampled(flags, conform, violate, at_s, until_s, alpha, beta, note)


Check = Callable[[History, Claims], Findings]
MakeScenario = Callable[[Claims], Scenario]


@dataclass(frozen=True)
class Property:
    """One promise. `needs` must be claimed; `without` must be off; `off` is switched off where the target can.

    `attempts`: the check needs attempts tied to requests. `baselines`: policies of the simulator that it compares with.
    `worlds`: those that its scenario is made for; one too long for real time is judged in `sim` alone.
    `module` is where the check was defined, so that an imported property is not collected twice.
    """

    name: str
    needs: tuple[type[Feature], ...]
    without: tuple[type[Feature], ...]
    off: tuple[type[Feature], ...]
    scenario: MakeScenario
    check: Check
    attempts: bool = True
    baselines: tuple[str, ...] = ()
    worlds: frozenset[World] = frozenset(World)
    summary: str = ""
    doc: str = ""
    module: str = field(default="", compare=False)

    @property
    def family(self) -> str:
        """First part of the name."""
        return self.name.split(".", 1)[0]

    def __call__(self, history: History, claims: Claims) -> list[Finding]:
        """All findings of the check."""
        return list(self.check(history, claims))


def declare(
    name: str,
    *,
    scenario: MakeScenario,
    needs: tuple[type[Feature], ...] = (),
    without: tuple[type[Feature], ...] = (),
    off: tuple[type[Feature], ...] = (),
    attempts: bool = True,
    baselines: tuple[str, ...] = (),
    worlds: Iterable[World] = World,
) -> Callable[[Check], Property]:
    """Make a check into a property. ValueError if the name, the signature or the docstring won't do."""
    if not NAME.match(name):
        raise ValueError(f"property {name!r}: expected family.situation.promise or family.promise in lower case")

    def decorate(check: Check) -> Property:
        if list(inspect.signature(check).parameters) != ["history", "claims"]:
            raise ValueError(f"property {name}: its check takes (history, claims), not {inspect.signature(check)}")
        doc = inspect.getdoc(check)
        if not doc:
            raise ValueError(f"property {name}: its check needs a docstring that states the promise")
        summary = doc.split("\n\n", 1)[0].replace("\n", " ")
        return Property(
            name=name,
            needs=needs,
            without=without,
            off=off,
            scenario=scenario,
            check=check,
            attempts=attempts,
            baselines=baselines,
            worlds=frozenset(worlds),
            summary=summary,
            doc=doc,
            module=check.__module__,
        )

    return decorate


def properties_of(module: ModuleType) -> list[Property]:
    """The properties that were defined in `module` (not merely imported into it), by name."""
    found: dict[str, Property] = {}
    for value in vars(module).values():
        if isinstance(value, Property) and value.module == module.__name__:
            if found.get(value.name, value) is not value:
                raise ValueError(f"{module.__name__}: two properties are called {value.name}")
            found[value.name] = value
    return [found[name] for name in sorted(found)]


def catalogue(package: str = "suites") -> list[Property]:
    """All properties of a package, by name: a sorted scan of its modules, those of its folders too."""
    root = importlib.import_module(package)
    found: list[Property] = []
    for info in sorted(pkgutil.walk_packages(root.__path__, f"{package}."), key=lambda item: item.name):
        found += properties_of(importlib.import_module(info.name))
    names = [item.name for item in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{package}: declared twice: {', '.join(twice)}")
    return sorted(found, key=lambda item: item.name)


def catalogue_row(item: Property) -> dict[str, Any]:
    """One property in plain JSON types."""
    return {
        "name": item.name,
        "family": item.family,
        "summary": item.summary,
        "description": item.doc,
        "needs": [feature.table for feature in item.needs],
        "without": [feature.table for feature in item.without],
        "off": [feature.table for feature in item.off],
        "attempts": item.attempts,
        "baselines": list(item.baselines),
        "worlds": [world.value for world in World if world in item.worlds],
        "module": item.module,
    }
