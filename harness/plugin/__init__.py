"""pytest glue: options, one item for each property and world, failure text, the summary at the end.

Every pytest run on a machine with Steelyard loads this module, so it imports nothing of Steelyard until a suite is
collected. A suite is a package whose `__init__.py` says `STEELYARD_SUITE = True`; it is read, not imported.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parents[2]
"""The folder with `harness` in it."""

MARKER = re.compile(r"^STEELYARD_SUITE = True\s*$", re.MULTILINE)
TOO_MANY_INCONCLUSIVE = 0.2
"""Above this share of judged live items `--tolerate inconclusive` tolerates no longer."""

OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    (
        "target",
        "reference",
        "NAME",
        "balancer under test: reference, nginx, FILE.toml or python:MODULE:CLASS",
    ),
    ("world", "all", "sim|live|all", "worlds to judge in (default: all that the target can run in)"),
    ("seed", "1", "N", "seed of all arrivals and choices (default: 1)"),
    ("tolerate", "", "inconclusive", "turn inconclusive outcomes into skips"),
    ("toxiproxy", "embedded", "embedded|real|URL", "fault proxy of the live world (default: embedded)"),
    ("nginx", "", "PATH", "another nginx binary than the one of the pip package"),
)
"""Name, default, placeholder and help of each option."""


class Stop(KeyboardInterrupt):
    """Ends the session with one line and exit code 2; the only kind that pytest lets out of a collector."""


class NotKeptError(Exception):
    """A property did not pass; the text is all that is to be shown."""


# --- options ----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, None, None]:
    """Add the options after all conftests, and give way where a project has its own `--target` or `--seed`."""
    yield
    group = parser.getgroup("steelyard", "Steelyard: conformance of load balancers")
    for name, default, placeholder, text in OPTIONS:
        try:
            group.addoption(f"--{name}", dest=f"steelyard_{name}", default=default, metavar=placeholder, help=text)
        except (ValueError, argparse.ArgumentError):
            continue


def pytest_configure(config: pytest.Config) -> None:
    """Check the options if any was given; without them nothing happens until a suite is collected."""
    bench = SessionState(config)
    config.stash[BENCH] = bench
    config.pluginmanager.register(bench, "steelyard-bench")
    if bench.given and not bench.is_worker and not config.getoption("help", False):
        bench.worlds()


# --- the state of one session -----------------------------------------------------------------------------


class SessionState:
    """Target, judge and rows of one pytest session. Everything in it is made when the first suite asks for it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.rows: list[dict[str, Any]] = []
        self.suites: dict[Path, Path | None] = {}
        self.suite_files = 0
        self.lines: list[str] = []
        self.stopped = ""
        self._target: Any = None
        self._judge: Any = None
        self._live: Any = None

    def option(self, name: str) -> str:
        """Text of an option; its default where a project took the name for itself."""
        return str(getattr(self.config.option, f"steelyard_{name}", dict(row[:2] for row in OPTIONS)[name]))

    @property
    def given(self) -> list[tuple[str, str]]:
        """Names and values of all options that are not at their default."""
        return [(name, self.option(name)) for name, default, _, _ in OPTIONS if self.option(name) != default]

    def stop(self, message: object) -> NoReturn:
        """End the session with one line and exit code 2."""
        self.stopped = " ".join(str(message).split())
        pytest.exit(self.stopped, returncode=2)

    def check_roots(self, suite: Path) -> None:
        """Stop if the suite of a clone would be judged by the harness of another installation."""
        beside = suite.parent / "harness" / "plugin" / "__init__.py"
        if beside.exists() and not beside.samefile(__file__):
            self.stop(
                f"suites come from {suite}, but harness from {ROOT / 'harness'}:"
                " run `pip install -e .` in the clone, or `pytest --pyargs suites` outside it"
            )

    def worlds(self) -> list[Any]:
        """Worlds to judge in, sim before live; stops the session if an option or the target won't do."""
        from harness.scenario.model import World

        target = self.target()
        wanted = [world for world in World if self.option("world") in ("all", world.value)]
        chosen = [world for world in wanted if world in target.worlds]
        if not chosen:
            can = " and ".join(sorted(world.value for world in target.worlds))
            self.stop(f"target {target.name} runs in {can} only; saw --world {self.option('world')}")
        return chosen

    def target(self) -> Any:
        """The target under test; stops the session if it can't be had."""
        if self._target is None:
            from harness.scenario.model import ClaimsError, TargetError
            from harness.targets import resolve

            self._check_options()
            try:
                self._target = resolve(self.option("target"), self.option("nginx") or None)
            except (ClaimsError, TargetError) as error:
                self.stop(error)
        return self._target

    def _check_options(self) -> None:
        from harness.claims.validation import nearest

        world, seed, proxy = self.option("world"), self.option("seed"), self.option("toxiproxy")
        if world not in ("sim", "live", "all"):
            self.stop(f"--world {world!r} is unknown; {nearest(world, ('sim', 'live', 'all'))}")
        if not seed.isdecimal():
            self.stop(f"--seed {seed!r}: expected a whole number from 0 up")
        if self.option("tolerate") not in ("", "inconclusive"):
            self.stop(f"--tolerate {self.option('tolerate')!r}: only inconclusive can be tolerated")
        if proxy not in ("embedded", "real") and not proxy.startswith(("http://", "https://")):
            self.stop(f"--toxiproxy {proxy!r}: expected embedded, real or a URL such as http://127.0.0.1:8474")

    def judge(self, promise: Any, world: Any) -> Any:
        """The record of one property in one world; stops the session if the target can't be run at all."""
        from harness.scenario.model import ClaimsError, TargetError

        if self._judge is None:
            self._judge = self._make_judge()
        try:
            return self._judge.judge(promise, world)
        except (ClaimsError, TargetError) as error:
            self.stop(error)

    def _make_judge(self) -> Any:
        from harness.judge import Judge
        from harness.scenario.model import World
        from harness.sim.world import play

        return Judge(self.target(), int(self.option("seed")), {World.SIM: play, World.LIVE: self._play_live})

    def _play_live(self, target: Any, scenario: Any, seed: int) -> Any:
        if self._live is None:
            from harness.live.session import LiveSession

            self._live = LiveSession(toxiproxy=self.option("toxiproxy"))
            # pytest runs its clean-ups however the session ends, Ctrl-C included.
            self.config.add_cleanup(self._live.close)
        return self._live.play(target, scenario, seed)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Live properties come last, so that a cheap failure shows first; all else keeps its order."""
        items.sort(key=lambda item: isinstance(item, PropertyItem) and item.world == "live")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the rows; under xdist they arrive here from the workers."""
        if report.when == "call":
            self.rows += [value for name, value in report.user_properties if name == "steelyard"]  # type: ignore[misc]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of xdist knows and its controller does not."""
        told = getattr(node, "workeroutput", {}).get("steelyard", {})
        self.suite_files += told.get("suite_files", 0)
        if told.get("stopped"):
            self.stopped = told["stopped"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Give the session the exit code that its outcomes ask for."""
        if self.is_worker:
            told = {"suite_files": self.suite_files, "stopped": self.stopped}
            self.config.workeroutput["steelyard"] = told  # type: ignore[attr-defined]
            return
        if self.stopped:
            session.exitstatus = 2
            self.lines.append(f"steelyard: {self.stopped}")
        judged = [row for row in self.rows if row["outcome"] != "unsupported"]
        ran_none = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
        if self.stopped or self.config.option.collectonly or not (ran_none or exitstatus <= 1):
            return
        if self.suite_files and not judged and (self.rows or ran_none):
            why = f"all {len(self.rows)} are unsupported" if self.rows else "none was collected or selected"
            self.lines.append(f"No property was judged: {why}.")
            session.exitstatus = session.exitstatus if exitstatus == 1 else 2
        live = [row["outcome"] for row in judged if row["world"] == "live"]
        unsure = live.count("inconclusive")
        if self.option("tolerate") and unsure > TOO_MANY_INCONCLUSIVE * len(live):
            self.lines.append(f"{unsure} of {len(live)} live outcomes are inconclusive; a fifth is tolerated.")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The table of all records and what else there is to say."""
        if self.rows:
            from reports.rows import record_of
            from reports.terminal import as_text

            writer = self.config.get_terminal_writer()
            terminalreporter.section("Steelyard")
            rows = sorted(self.rows, key=lambda row: (row["world"] == "live", row["property"]))
            terminalreporter.write(
                as_text(list(map(record_of, rows)), writer.fullwidth, writer.hasmarkup, self.config.option.verbose > 0)
            )
        for line in self.lines:
            terminalreporter.write_line(line)

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        """Keep live properties on one worker, whatever way of distributing the user chose (but for `each`)."""
        chosen = yield
        if config.getoption("dist") == "each":
            return chosen
        from harness.plugin.one_worker import LiveOnOneWorker, live_together

        return LiveOnOneWorker(chosen, lambda: live_together(config, log, chosen))


BENCH = pytest.StashKey[SessionState]()


# --- collection -------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Replace whatever would collect a file of a suite by `SuiteFile`; a plain hook would only add to it."""
    collected = yield
    if file_path.suffix != ".py" or file_path.name.startswith(("__init__", "conftest", "test_")):
        return collected
    known = parent.config.stash[BENCH].suites
    folder = file_path.parent
    if folder not in known:
        known[folder] = _suite_of(folder)
    suite = known[folder]
    if suite is None:
        return collected
    # Given, not computed: the same in a clone, with --pyargs, and from any folder.
    nodeid = file_path.relative_to(suite.parent).as_posix()
    return [SuiteFile.from_parent(parent, path=file_path, nodeid=nodeid, suite=suite)]


def _suite_of(folder: Path) -> Path | None:
    """The suite that `folder` is, or is a package of; None if there is none."""
    while True:
        try:
            text = (folder / "__init__.py").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        if MARKER.search(text):
            return folder
        folder = folder.parent


class SuiteFile(pytest.Module):
    """One file of a suite: an item for each property defined in it and each world to judge it in."""

    def __init__(self, *, suite: Path, **rest: Any) -> None:
        super().__init__(**rest)
        self.suite = suite

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Import the file and make its items."""
        bench = self.config.stash[BENCH]
        bench.suite_files += 1
        try:
            bench.check_roots(self.suite)
            worlds = bench.worlds()
        except pytest.exit.Exception as error:
            raise Stop(error.msg) from None
        from harness.property.declare import properties_of

        try:
            promises = properties_of(self.obj)
        except ValueError as error:
            raise self.CollectError(str(error)) from None
        return [self._item(promise, world) for world in worlds for promise in promises if world in promise.worlds]

    def _item(self, promise: Any, world: Any) -> pytest.Item:
        # As text: pytest 9.2 takes an id apart only then, and needs that to know the item again in --lf.
        name = f"{promise.name}[{world.value}]"
        return PropertyItem.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}", promise=promise, world=world)


class PropertyItem(pytest.Item):
    """One property in one world."""

    def __init__(self, *, promise: Any, world: Any, **rest: Any) -> None:
        super().__init__(**rest)
        self.promise = promise
        self.world = world

    def runtest(self) -> None:
        """Judge the property; anything but a pass is raised as a skip or as NotKeptError."""
        from reports.failure import failure_text
        from reports.rows import row_of

        bench = self.config.stash[BENCH]
        record = bench.judge(self.promise, self.world)
        self.user_properties.append(("steelyard", row_of(record)))
        if record.outcome == "pass":
            return
        if record.outcome == "unsupported":
            raise pytest.skip.Exception(f"unsupported: {record.reason}", _use_item_location=True)
        if record.outcome == bench.option("tolerate"):
            raise pytest.skip.Exception(f"inconclusive, tolerated: {record.reason}", _use_item_location=True)
        raise NotKeptError(failure_text(record, self.repeat_command()))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure text alone, without a traceback; a crash of Steelyard itself is shown in full."""
        if not isinstance(excinfo.value, NotKeptError):
            return super().repr_failure(excinfo, style)
        shown = excinfo.getrepr(style="value", chain=False)
        if shown.reprcrash is not None:
            shown.reprcrash.message = str(excinfo.value)
        return shown

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the check is written."""
        return self.path, self.promise.check.__code__.co_firstlineno - 1, self.name

    def repeat_command(self) -> str:
        """The command that runs this item alone, with every option that is not at its default."""
        start = self.config.invocation_params.dir
        here = self.path.is_relative_to(start) and "site-packages" not in self.path.parts
        words = [*self.config.stash[BENCH].target().repeat_prefix(self.world), "pytest"]
        shipped = isinstance(self.parent, SuiteFile) and self.parent.suite.parent == ROOT
        if shipped and (self.config.option.pyargs or not here):
            words.append("--pyargs")
            where = ".".join(self.path.relative_to(ROOT).with_suffix("").parts)
        else:
            where = str(self.path.relative_to(start) if here else self.path)
        words.append(f"{where}::{self.name}")
        for name, value in self.config.stash[BENCH].given:
            words += [f"--{name}", value]
        return shlex.join(words)
