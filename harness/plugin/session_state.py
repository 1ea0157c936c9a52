"""State of one pytest session: options, target, judge, rows of the report, exit code."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parents[2]
"""The folder that contains `harness`."""

TOO_MANY_INCONCLUSIVE = 0.2
"""A session with a larger share of inconclusive live items fails even with `--tolerate inconclusive`."""

EVENTS_VERBOSITY = 2
"""From this verbosity on (-vv) the events of runs are printed as they happen."""

TIME_SCALE = re.compile(r"100(\.0*)?|[1-9]\d?(\.\d*)?")

OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    (
        "target",
        "reference",
        "NAME[:ARGUMENT]",
        "balancer under test: a name that `steelyard targets` lists, or FILE.toml (default: reference)",
    ),
    ("world", "all", "sim|live|all", "worlds to judge in (default: all that the target can run in)"),
    ("seed", "1", "N", "seed of all arrivals and choices (default: 1)"),
    ("tolerate", "", "inconclusive", "turn inconclusive outcomes into skips"),
    (
        "time-scale",
        "auto",
        "auto|N",
        "factor for all durations of live runs; auto: 2 on a machine that others keep busy, else 1 (default: auto)",
    ),
    ("toxiproxy", "embedded", "embedded|real|URL", "fault proxy of the live world (default: embedded)"),
)
"""Name, default, placeholder and help of each option."""


class SessionState:
    """Target, judge and rows of one pytest session, created when first used."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.rows: list[dict[str, Any]] = []
        self.timeseries: dict[str, Any] = {}
        """Time series of runs, by the digests of their histories."""
        self.suites: dict[Path, Path | None] = {}
        self.suite_files = 0
        self.lines: list[str] = []
        self.stopped = ""
        self._target: Any = None
        self._judge: Any = None
        self._live: Any = None

    def option(self, name: str) -> str:
        """Value of an option; its default if the project defines the option itself."""
        return str(getattr(self.config.option, f"steelyard_{name}", dict(row[:2] for row in OPTIONS)[name]))

    @property
    def given(self) -> list[tuple[str, str]]:
        """Names and values of all options that differ from their defaults."""
        return [(name, self.option(name)) for name, default, _, _ in OPTIONS if self.option(name) != default]

    def stop(self, message: object) -> NoReturn:
        """End the session with one line and exit code 2."""
        self.stopped = " ".join(str(message).split())
        pytest.exit(self.stopped, returncode=2)

    def check_roots(self, suite: Path) -> None:
        """Stop if a suite of a clone would be judged by the harness of another installation."""
        own_plugin = suite.parent / "harness" / "plugin" / "__init__.py"
        if own_plugin.exists() and not own_plugin.samefile(Path(__file__).with_name("__init__.py")):
            self.stop(
                f"suites come from {suite}, but harness from {ROOT / 'harness'}:"
                " run `pip install -e .` in the clone, or `pytest --pyargs suites` outside it"
            )

    def worlds(self) -> list[Any]:
        """Worlds to judge in, sim before live. Stops the session if an option or the target is invalid."""
        from harness.scenario.model import World

        target = self.target()
        requested = [world for world in World if self.option("world") in ("all", world.value)]
        chosen = [world for world in requested if world in target.worlds]
        if not chosen:
            supported = " and ".join(sorted(world.value for world in target.worlds))
            self.stop(f"target {target.name} runs in {supported} only; saw --world {self.option('world')}")
        return chosen

    def target(self) -> Any:
        """The target under test. Stops the session if it is not available."""
        if self._target is None:
            from harness.scenario.model import ClaimsError, TargetError
            from harness.targets import resolve

            self._check_options()
            try:
                self._target = resolve(self.option("target"))
            except (ClaimsError, TargetError) as error:
                self.stop(error)
        return self._target

    def _check_options(self) -> None:
        from harness.scenario.validation import nearest

        world, seed, proxy = self.option("world"), self.option("seed"), self.option("toxiproxy")
        if world not in ("sim", "live", "all"):
            self.stop(f"--world {world!r} is unknown; {nearest(world, ('sim', 'live', 'all'))}")
        if not seed.isdecimal():
            self.stop(f"--seed {seed!r}: expected a whole number from 0 up")
        if self.option("tolerate") not in ("", "inconclusive"):
            self.stop(f"--tolerate {self.option('tolerate')!r}: only inconclusive can be tolerated")
        if self.option("time-scale") != "auto" and not TIME_SCALE.fullmatch(self.option("time-scale")):
            self.stop(f"--time-scale {self.option('time-scale')!r}: expected auto, or a number from 1 to 100")
        if proxy not in ("embedded", "real") and not proxy.startswith(("http://", "https://")):
            self.stop(f"--toxiproxy {proxy!r}: expected embedded, real or a URL such as http://127.0.0.1:8474")

    def judge(self, item: Any, world: Any) -> Any:
        """The record of one property in one world (sim or live); stops the session if the target cannot run."""
        from harness.scenario.model import ClaimsError, TargetError

        if self._judge is None:
            self._judge = self._make_judge()
        try:
            return self._judge.judge(item, world)
        except (ClaimsError, TargetError) as error:
            self.stop(error)

    def timeseries_of(self, record: Any) -> Any:
        """The time series of a record's run; None for a run without faults or membership changes."""
        from reports.run_timeseries import run_timeseries

        history = self._judge.history_of(record)
        if history is None or not history.scenario.timeline:
            return None
        if record.history not in self.timeseries:
            self.timeseries[record.history] = run_timeseries(history)
        return self.timeseries[record.history]

    def _make_judge(self) -> Any:
        from harness.judge import Judge
        from harness.scenario.model import World
        from harness.sim.world import play

        worlds = {World.SIM: play, World.LIVE: self._play_live}
        return Judge(self.target(), int(self.option("seed")), worlds, self.show_event, self._time_scale())

    def _time_scale(self) -> float:
        """The factor for live runs; says so if the machine is busy."""
        if not any(world.value == "live" for world in self.worlds()):
            return 1.0
        from harness.targets.checked import scaled

        if self.option("time-scale") != "auto":
            factor = float(self.option("time-scale"))
            if factor != 1.0 and scaled(self.target(), factor) is None:
                self.stop(f"--time-scale {factor:g}: the settings of {self.target().name} are fixed; leave it out")
            return factor
        from harness.live.machine import observed_machine

        machine = observed_machine()
        if machine.is_busy:
            line = machine.warning(fixed=scaled(self.target(), machine.time_scale) is None)
            self.lines.append(line)
            self._print(line)
        return machine.time_scale

    def show_event(self, event: Any) -> None:
        """Print a line for an event of a run, with -vv."""
        if self.config.option.verbose < EVENTS_VERBOSITY or self.is_worker:
            return
        from reports.progress import progress_line

        if line := progress_line(event):
            self._print(line)

    def _print(self, line: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    def _play_live(self, target: Any, scenario: Any, seed: int) -> Any:
        if self._live is None:
            from harness.live.session import LiveSession

            self._live = LiveSession(toxiproxy=self.option("toxiproxy"), listener=self.show_event)
            # pytest runs cleanups at every end of the session, Ctrl-C included.
            self.config.add_cleanup(self._live.close)
        return self._live.play(target, scenario, seed)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Run live properties last, so that cheap failures show first; keep the order otherwise."""
        items.sort(key=lambda item: getattr(item, "world", "") == "live")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the records of a report as rows; with xdist this is how those of the workers arrive."""
        if report.when == "call":
            self.timeseries.update(value for name, value in report.user_properties if name == "steelyard-timeseries")  # type: ignore[misc]
            self.rows += [value for name, value in report.user_properties if name == "steelyard"]  # type: ignore[misc]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Merge the state of an xdist worker into the controller's."""
        output = getattr(node, "workeroutput", {}).get("steelyard", {})
        self.suite_files += output.get("suite_files", 0)
        if output.get("stopped"):
            self.stopped = output["stopped"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit code of the session from its outcomes."""
        if self.is_worker:
            output = {"suite_files": self.suite_files, "stopped": self.stopped}
            self.config.workeroutput["steelyard"] = output  # type: ignore[attr-defined]
            return
        if self.stopped:
            session.exitstatus = 2
            self.lines.append(f"steelyard: error: {self.stopped}")
        judged = [row for row in self.rows if row["outcome"] != "unsupported"]
        ran_none = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
        if self.stopped or self.config.option.collectonly or not (ran_none or exitstatus <= 1):
            return
        if self.suite_files and not judged and (self.rows or ran_none):
            reason = f"all {len(self.rows)} are unsupported" if self.rows else "none was collected or selected"
            self.lines.append(f"No property was judged: {reason}.")
            session.exitstatus = session.exitstatus if exitstatus == 1 else 2
        live = [row["outcome"] for row in judged if row["world"] == "live"]
        count = live.count("inconclusive")
        if self.option("tolerate") and count > TOO_MANY_INCONCLUSIVE * len(live):
            self.lines.append(f"{count} of {len(live)} live outcomes are inconclusive; at most a fifth is tolerated.")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table of all records and the messages of the session."""
        if self.rows:
            from reports.rows import record_of
            from reports.terminal import as_text

            writer = self.config.get_terminal_writer()
            terminalreporter.section("Steelyard")
            rows = sorted(self.rows, key=lambda row: (row["world"] == "live", row["property"]))
            records, verbose = list(map(record_of, rows)), self.config.option.verbose > 0
            terminalreporter.write(as_text(records, writer.fullwidth, writer.hasmarkup, verbose, self.timeseries))
        for line in self.lines:
            terminalreporter.write_line(line)

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        """Keep live properties on one worker with every distribution mode except `each`."""
        chosen = yield
        if config.getoption("dist") == "each":
            return chosen
        from harness.plugin.one_worker import LiveOnOneWorker, live_scheduler_of

        return LiveOnOneWorker(chosen, lambda: live_scheduler_of(config, log, chosen))


STATE = pytest.StashKey[SessionState]()
