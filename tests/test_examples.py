"""The examples in docstrings of what strangers call: they run, and each of those functions has one."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = {
    "harness.property.declare": ("declare",),
    "harness.property.findings": ("Held", "Within", "Undecided", "sampled"),
}
"""Modules with examples, and what must have one there."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted and not results.failed


@pytest.mark.parametrize("name", [f"{module}:{name}" for module, names in MODULES.items() for name in names])
def test_what_strangers_call_has_an_example(name: str) -> None:
    module, _, path = name.partition(":")
    item = importlib.import_module(module)
    for part in path.split("."):
        item = getattr(item, part)
    assert ">>>" in (item.__doc__ or ""), f"{path} of {module} has no example in its docstring"
