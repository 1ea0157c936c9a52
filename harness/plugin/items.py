"""Collected items: one for each property of a suite's file and each world."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harness.plugin.session_state import ROOT, STATE

MARKER = re.compile(r"^STEELYARD_SUITE = True\s*$", re.MULTILINE)


class Stop(KeyboardInterrupt):
    """Ends the session with one line and exit code 2; a collector lets no other kind of exception out."""


class NotKeptError(Exception):
    """A property did not pass; the text is the whole report."""


def suite_of(folder: Path) -> Path | None:
    """The suite that is or contains the package `folder`; None if there is none."""
    while True:
        try:
            text = (folder / "__init__.py").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        if MARKER.search(text):
            return folder
        folder = folder.parent


class SuiteFile(pytest.Module):
    """One file of a suite: an item for each of its properties and each world."""

    def __init__(self, *, suite: Path, **rest: Any) -> None:
        super().__init__(**rest)
        self.suite = suite

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Import the file and create its items."""
        state = self.config.stash[STATE]
        state.suite_files += 1
        try:
            state.check_roots(self.suite)
            worlds = state.worlds()
        except pytest.exit.Exception as error:
            raise Stop(error.msg) from None
        from harness.property.declare import properties_of

        try:
            properties = properties_of(self.obj)
        except ValueError as error:
            raise self.CollectError(str(error)) from None
        return [self._item(item, world) for world in worlds for item in properties if world in item.worlds]

    def _item(self, judged: Any, world: Any) -> pytest.Item:
        # An id as text: pytest 9.2 splits only those, and needs the parts to recognize the item in --lf.
        name = f"{judged.name}[{world.value}]"
        return PropertyItem.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}", judged=judged, world=world)


class PropertyItem(pytest.Item):
    """One property in one world."""

    def __init__(self, *, judged: Any, world: Any, **rest: Any) -> None:
        super().__init__(**rest)
        self.judged = judged
        self.world = world

    def runtest(self) -> None:
        """Judge the property. Outcomes other than a pass raise a skip or NotKeptError."""
        from reports.failure import failure_text
        from reports.rows import row_of

        state = self.config.stash[STATE]
        record = state.judge(self.judged, self.world)
        self.user_properties.append(("steelyard", row_of(record)))
        timeseries = state.timeseries_of(record)
        if timeseries is not None:
            self.user_properties.append(("steelyard-timeseries", (record.history, timeseries)))
        if record.outcome == "pass":
            return
        if record.outcome == "unsupported":
            raise pytest.skip.Exception(f"unsupported: {record.reason}", _use_item_location=True)
        if record.outcome == state.option("tolerate"):
            raise pytest.skip.Exception(f"inconclusive, tolerated: {record.reason}", _use_item_location=True)
        raise NotKeptError(
            failure_text(record, self.repeat_command((record.first_try or record).time_scale), timeseries)
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure text without a traceback; an exception in Steelyard itself is shown in full."""
        if not isinstance(excinfo.value, NotKeptError):
            return super().repr_failure(excinfo, style)
        shown = excinfo.getrepr(style="value", chain=False)
        if shown.reprcrash is not None:
            shown.reprcrash.message = str(excinfo.value)
        return shown

    def reportinfo(self) -> tuple[Path, int, str]:
        """Location of the check."""
        code = self.judged.check.__code__
        return self.path, code.co_firstlineno - 1 if Path(code.co_filename) == self.path else 0, self.name

    def repeat_command(self, time_scale: float = 1.0) -> str:
        """The command that runs this item alone, with all options that differ from their defaults.

        `time_scale` is that of the first run, which an idle machine would choose otherwise.
        """
        start = self.config.invocation_params.dir
        here = self.path.is_relative_to(start) and "site-packages" not in self.path.parts
        words = [*self.config.stash[STATE].target().repeat_prefix(self.world), "pytest"]
        shipped = isinstance(self.parent, SuiteFile) and self.parent.suite.parent == ROOT
        if shipped and (self.config.option.pyargs or not here):
            words.append("--pyargs")
            where = ".".join(self.path.relative_to(ROOT).with_suffix("").parts)
        else:
            where = str(self.path.relative_to(start) if here else self.path)
        words.append(f"{where}::{self.name}")
        given = dict(self.config.stash[STATE].given)
        if time_scale != 1.0:
            given["time-scale"] = f"{time_scale:g}"
        for name, value in given.items():
            words += [f"--{name}", value]
        return shlex.join(words)
