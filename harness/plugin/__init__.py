"""The pytest plugin: options, one item per property and world, failure texts, the summary.

Every pytest run in an environment with Steelyard loads this module, so it imports no other part of Steelyard before a
suite is collected. A suite is a package whose `__init__.py` contains `STEELYARD_SUITE = True` (read, not imported).
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from pathlib import Path

import pytest

from harness.plugin.items import SuiteFile, suite_of
from harness.plugin.session_state import OPTIONS, STATE, SessionState

# --- options ----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, None, None]:
    """Add the options after all conftests, except those that a project defines itself (such as `--seed`)."""
    yield
    group = parser.getgroup("steelyard", "Steelyard: conformance of load balancers")
    for name, default, placeholder, text in OPTIONS:
        try:
            group.addoption(f"--{name}", dest=f"steelyard_{name}", default=default, metavar=placeholder, help=text)
        except (ValueError, argparse.ArgumentError):
            continue


def pytest_configure(config: pytest.Config) -> None:
    """Validate the options if any is set; otherwise do nothing until a suite is collected."""
    state = SessionState(config)
    config.stash[STATE] = state
    config.pluginmanager.register(state, "steelyard-session")
    if state.given and not state.is_worker and not config.getoption("help", False):
        state.worlds()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Replace the collectors of a suite's file by `SuiteFile`; a hook without wrapper would only add one."""
    collected = yield
    if file_path.suffix != ".py" or file_path.name.startswith(("__init__", "conftest", "test_")):
        return collected
    suites = parent.config.stash[STATE].suites
    folder = file_path.parent
    if folder not in suites:
        suites[folder] = suite_of(folder)
    suite = suites[folder]
    if suite is None:
        return collected
    # An explicit node id is equal in a clone, with --pyargs, and from any folder.
    nodeid = file_path.relative_to(suite.parent).as_posix()
    return [SuiteFile.from_parent(parent, path=file_path, nodeid=nodeid, suite=suite)]
