"""Declaring properties, and listing them. A property is one promise: claims it needs, a scenario and a check.

Scenario and check are pure functions of the same claims: those that are on in the run. A check yields one finding
(`harness.property.findings`) for each occasion on which the promise was tested; a run without findings is vacuous (the
promise was not exercised). The judge alone turns findings into an outcome.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from harness.claims.features import Claims, Feature
from harness.evidence.history import History
from harness.property.findings import Finding, Findings
from harness.scenario.model import Scenario, World

NAME = re.compile(r"^[a-z0-9-]+(\.[a-z0-9-]+){1,2}$")
"""A property's name has two or three parts: `family.promise` or `family.situation.promise`."""

Check = Callable[[History, Claims], Findings]
MakeScenario = Callable[[Claims], Scenario]


@dataclass(frozen=True)
class Property:
    """One promise. Features in `needs` must be claimed, those in `without` off; `off` are switched off where possible.

    `attempts`: the check needs attempts matched to requests. `baselines`: simulator policies to compare with.
    `worlds`: worlds that the scenario is made for; one too long for real time is judged in `sim` only.
    `module`: the module that declares the property, so that an imported property is not collected twice.
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
        """All findings of the check on `history`."""
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
    doc: str = "",
    module: str = "",
) -> Callable[[Check], Property]:
    """Decorator that makes a check a `Property`. The first paragraph of its docstring is the promise.

    A table of properties that share a check gives `doc` instead of the docstring, and the `module` of the table.

    ValueError for a malformed name, a signature other than (history, claims), or a missing docstring.

    >>> from harness.property.findings import held
    >>> from harness.scenario.model import Load, Scenario, Stream
    >>> def steady(claims):
    ...     return Scenario("steady", backends=2, load=Load((Stream("all", 0.0, 10.0, 50),)))
    >>> @declare("demo.all-answered", scenario=steady)
    ... def all_answered(history, claims):
    ...     '''Every request gets a complete answer with a 2xx status.'''
    ...     lost = history.all_requests().lost()
    ...     yield held(not lost, at_s=0.0, observed=len(lost), bound=0)
    >>> all_answered.family, all_answered.summary
    ('demo', 'Every request gets a complete answer with a 2xx status.')
    """
    if not NAME.match(name):
        raise ValueError(f"property {name!r}: expected family.situation.promise or family.promise in lower case")

    def decorate(check: Check) -> Property:
        if list(inspect.signature(check).parameters) != ["history", "claims"]:
            raise ValueError(f"property {name}: its check takes (history, claims), not {inspect.signature(check)}")
        text = doc or inspect.getdoc(check)
        if not text:
            raise ValueError(f"property {name}: its check needs a docstring that states the promise")
        summary = text.split("\n\n", 1)[0].replace("\n", " ")
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
            doc=text,
            module=module or check.__module__,
        )

    return decorate


def properties_of(module: ModuleType) -> list[Property]:
    """Properties declared in `module`, alone or in a tuple, sorted by name. ValueError for a duplicate name.

    Imported properties are left out.
    """
    found: dict[str, Property] = {}
    for value in vars(module).values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Property) and item.module == module.__name__:
                if found.get(item.name, item) is not item:
                    raise ValueError(f"{module.__name__}: two properties are called {item.name}")
                found[item.name] = item
    return [found[name] for name in sorted(found)]


def catalogue(package: str = "suites") -> list[Property]:
    """All properties of a package and its subpackages, sorted by name. ValueError for a duplicate name."""
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
    """`item` in plain JSON types."""
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
