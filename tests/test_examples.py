"""The examples in docstrings of what strangers call: they run, and each of those names has one."""

from __future__ import annotations

import doctest
import importlib

import pytest

from harness.claims.features import FEATURES
from harness.evidence.example import example_history

MODULES = (
    "harness.claims.features",
    "harness.evidence.history",
    "harness.evidence.queries",
    "harness.evidence.run_events",
    "harness.gateway.checked_gateway",
    "harness.gateway.protocol",
    "harness.property.declare",
    "harness.property.findings",
    "harness.scenario.fast_dataclass",
    "harness.scenario.ledger",
    "harness.targets",
    "harness.targets.base",
    "harness.targets.checked",
)
"""Modules that a suite, a gateway or an adapter is written against, and others with examples."""

NAMES = (
    "harness.property.declare:declare",
    *(f"harness.property.findings:{name}" for name in ("Held", "Within", "Undecided", "sampled")),
    *(f"harness.claims.features:{feature.__name__}" for feature in FEATURES.values()),
    "harness.claims.features:Claims",
    "harness.evidence.history:History",
    "harness.targets:resolve",
    "harness.targets.base:Adapter",
    *(
        f"harness.evidence.history:History.{name}"
        for name in (
            *("all_requests", "requests_in", "all_attempts", "attempts_on", "owners", "step", "baseline", "save"),
            *("cold_loads", "worst_slack_s"),
        )
    ),
)
"""What must have an example."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    history = example_history()
    given = {"history": history, "requests": history.all_requests(), "attempts": history.all_attempts()}
    results = doctest.testmod(importlib.import_module(name), extraglobs=given)
    assert not results.failed
    if not results.attempted:
        pytest.skip(f"{name} has no examples")


@pytest.mark.parametrize("name", NAMES)
def test_what_strangers_call_has_an_example(name: str) -> None:
    module, _, path = name.partition(":")
    item = importlib.import_module(module)
    for part in path.split("."):
        item = getattr(item, part)
    assert ">>>" in (item.__doc__ or ""), f"{path} of {module} has no example in its docstring"
