"""A pytest plugin: every verdict of a session is reached a second time, on the history as loaded from a file.

    PYTHONPATH=. pytest suites/ -p tests.judged_again

A loaded history or verdict that differs is an error of its property. The last line says how many were compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import judge
from harness.evidence.history import History
from harness.judge import Verdict
from harness.property.declare import Property
from harness.targets.base import Target
from tests.harness.evidence.test_store import assert_equal

_VERDICTS, _HISTORIES = pytest.StashKey[int](), pytest.StashKey[dict[str, History]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Compare while the items run."""
    direct, stash = judge._verdict, session.config.stash
    stash[_VERDICTS], loaded = 0, stash.setdefault(_HISTORIES, {})

    def twice(item: Property, history: History, target: Target) -> Verdict:
        own = history.digest()
        if own not in loaded:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "history"
                history.save(path)
                loaded[own] = History.load(path)
            assert_equal(loaded[own], history)
        verdict = direct(item, history, target)
        assert repr(direct(item, loaded[own].with_baselines(history.baselines), target)) == repr(verdict), item.name
        stash[_VERDICTS] += 1
        return verdict

    judge._verdict = twice
    try:
        return (yield)
    finally:
        judge._verdict = direct


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The counts."""
    verdicts, histories = config.stash.get(_VERDICTS, 0), len(config.stash.get(_HISTORIES, {}))
    terminalreporter.write_line(f"{histories} saved histories came back equal, and {verdicts} verdicts with them.")
