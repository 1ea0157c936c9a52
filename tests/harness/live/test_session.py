"""Live runs that fail in the middle: errors, later runs, and clean-up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from unittest.mock import Mock

import pytest

from harness.evidence.history import History, empty_requests
from harness.evidence.records import Rows
from harness.judge import Judge
from harness.live.balancer import Balancer
from harness.live.load.load_process import LoadProcess
from harness.live.process.child import Child
from harness.live.run_queue import counted
from harness.live.session import LiveSession, check_recorded
from harness.load.job import LoadJob
from harness.property.declare import Property, declare
from harness.property.findings import Findings, held
from harness.property.verdict import Outcome, Record
from harness.scenario.arrival_rates import Poisson
from harness.scenario.arrivals import draw
from harness.scenario.model import Chats, Failure, HarnessError, Load, Scenario, TargetError, World
from harness.targets.base import Target
from harness.targets.reference import ReferenceTarget
from tests.harness.live.helpers import PATIENCE_S, ROOT, traffic, until
from tests.processes import group, runs, tree

SEED = 11
LONG_S = 2.5
IN_THE_MIDDLE_S = 0.4
"""Delay after the job is submitted; the first request is due after 0.15 s."""


def property_of(scenario: Scenario) -> Property:
    @declare("live.short.answered", scenario=lambda claims: scenario, attempts=False)
    def answered(history: History, claims: object) -> Findings:
        """Every request is answered."""
        lost = int((~history.answered()).sum())
        yield held(lost == 0, at_s=0.0, observed=lost, bound=0, exact=True)

    return answered


class Judged:
    """Judges short traffic live, and collects the histories."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self.histories: list[History] = []

    def play(self, target: Target, scenario: Scenario, seed: int) -> History:
        self.histories.append(self._session.play(target, scenario, seed))
        return self.histories[-1]

    def judge(self, seconds: float, target: Target | None = None) -> Record:
        judge = Judge(target or ReferenceTarget(), SEED, {World.LIVE: self.play})
        return judge.judge(property_of(traffic(seconds)), World.LIVE)


@pytest.fixture
def before() -> set[int]:
    """This process's descendants before a session was opened."""
    return tree(os.getpid())


@pytest.fixture
def session(before: set[int], children: list[Child]) -> Iterator[LiveSession]:
    """A session; after its close no process, thread or file of it may remain."""
    threads = threading.active_count()
    with LiveSession() as opened:
        yield opened
    assert tree(os.getpid()) == before
    until(lambda: not any(group(child.pid) for child in children))
    assert threading.active_count() == threads
    assert not opened._folder.exists()


@pytest.fixture
def judged(session: LiveSession) -> Judged:
    return Judged(session)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """All children started in a test, in order."""
    started: list[Child] = []
    begin = Child.__init__

    def note(self: Child, *words: object, **options: object) -> None:
        begin(self, *words, **options)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(Child, "__init__", note)
    return started


Strike = Callable[[str, Signals], None]


@pytest.fixture
def strike(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> Iterator[Strike]:
    """Sends a signal, once, in the middle of the next run, to the child whose command contains a word."""
    timers: list[threading.Timer] = []
    begin = LoadProcess.begin

    def arrange(word: str, number: Signals = SIGKILL) -> None:
        def hit() -> None:
            child = next(child for child in reversed(children) if word in child.words)
            os.kill(child.pid, number)

        def begin_and_hit(self: LoadProcess, job: LoadJob, path: Path) -> None:
            begin(self, job, path)
            monkeypatch.setattr(LoadProcess, "begin", begin)
            timers.append(threading.Timer(IN_THE_MIDDLE_S, hit))
            timers[-1].start()

        monkeypatch.setattr(LoadProcess, "begin", begin_and_hit)

    yield arrange
    for timer in timers:
        timer.join()


def assert_works(judged: Judged) -> None:
    record = judged.judge(0.2)
    assert record.outcome is Outcome.PASS, record.reason


# --- deaths in the middle ---------------------------------------------------------------------------------


def test_the_balancer_is_killed(judged: Judged, strike: Strike) -> None:
    strike("harness.proxy.serve", SIGKILL)
    record = judged.judge(LONG_S)
    (history,) = judged.histories
    assert history.died is not None
    assert history.died.startswith("signal SIGKILL; last line: ")
    assert record.outcome is Outcome.FAIL
    assert record.reason == f"the balancer failed during the run: {history.died}"
    requests = history.requests
    assert len(requests) == int(50 * LONG_S)
    assert requests["failure"][0] == Failure.NONE
    assert requests["failure"][-1] in (Failure.NOT_SENT, Failure.REFUSED)


def test_the_balancer_leaves_by_itself(judged: Judged, strike: Strike) -> None:
    strike("harness.proxy.serve", Signals.SIGTERM)
    record = judged.judge(LONG_S)
    assert record.outcome is Outcome.FAIL
    assert record.reason.startswith("the balancer failed during the run: exit status 0; last line: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("harness.load.locust_engine", "the load process ended: signal SIGKILL; last line: "),
        ("mockgpu", "the mock fleet ended: signal SIGKILL; last line: "),
        ("harness.toxiproxy", "the fault proxy ended: signal SIGKILL; last line: "),
    ],
)
def test_one_of_ours_is_killed_and_the_next_run_works(
    judged: Judged, strike: Strike, children: list[Child], word: str, message: str
) -> None:
    strike(word, SIGKILL)
    record = judged.judge(LONG_S)
    assert record.outcome is Outcome.ERROR
    assert record.reason.startswith(message), record.reason
    assert not any(child.status is None for child in children)
    assert_works(judged)
    assert sum("harness.load.locust_engine" in child.words for child in children) == 2, "a fresh load process"


@pytest.mark.slow
def test_a_load_process_that_died_between_runs_is_replaced(judged: Judged, children: list[Child]) -> None:
    assert_works(judged)
    loads = [child for child in children if "harness.load.locust_engine" in child.words]
    os.kill(loads[0].pid, SIGKILL)
    until(lambda: loads[0].status is not None)
    assert_works(judged)
    assert loads[0].stdin.closed
    assert len({history.facts["port_block"] for history in judged.histories}) == 1


def test_a_record_has_what_made_slack_what_each_part_used_and_what_the_balancer_said(judged: Judged) -> None:
    assert_works(judged)
    (history,) = judged.histories
    assert len(history.facts["slack_causes"]) == len(history.slack_s)
    if counted():
        used = history.facts["core_time"]
        assert set(used) == {"the load", "the balancer", "the fault proxy", "a mock"}
        assert all(part["ran_s"] > 0 <= part["waited_s"] for part in used.values())
    assert isinstance(history.facts["balancer_output"], list)


# --- errors before and during a run -----------------------------------------------------------------------


STARTS: tuple[tuple[str, BaseException], ...] = (
    ("harness.live.session.preflight", TargetError("never ready")),
    ("harness.live.session.Balancer", TargetError("refused")),
    ("harness.live.session.FaultInjector.open", HarnessError("no port")),
    ("harness.live.balancer.Balancer.await_listening", KeyboardInterrupt()),
)


@pytest.mark.slow
def test_an_error_at_the_start_leaves_nothing_but_the_load_process(
    session: LiveSession, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    for function, error in STARTS:
        with monkeypatch.context() as patch:
            patch.setattr(function, Mock(side_effect=error))
            with pytest.raises(type(error)):
                session.play(ReferenceTarget(), traffic(0.2), SEED)
        left = [child.words for child in children if child.status is None]
        assert all("harness.load.locust_engine" in words for words in left), left
    assert session.play(ReferenceTarget(), traffic(0.2), SEED).answered().all()
    assert sum("harness.load.locust_engine" in child.words for child in children) == 1, "kept from run to run"


@pytest.mark.slow
def test_an_interrupt_in_the_middle_leaves_nothing_and_the_next_run_works(
    session: LiveSession, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threading.active_count()
    checks = 0
    check, begin = Balancer.check, LoadProcess.begin

    def interrupt(self: Balancer) -> None:
        nonlocal checks
        checks += 1
        if checks == 8:
            raise KeyboardInterrupt
        check(self)

    def begin_and_arm(self: LoadProcess, job: LoadJob, path: Path) -> None:
        begin(self, job, path)
        monkeypatch.setattr(Balancer, "check", interrupt)  # not before: the preflight checks too

    monkeypatch.setattr(LoadProcess, "begin", begin_and_arm)
    with pytest.raises(KeyboardInterrupt):
        session.play(ReferenceTarget(), traffic(LONG_S), SEED)
    assert [child.words for child in children if child.status is None] == []
    assert threading.active_count() == threads
    history = session.play(ReferenceTarget(), traffic(0.3), SEED)
    assert history.answered().all()
    assert len(history.requests) == 15


# --- the end of the whole process -------------------------------------------------------------------------

SCRIPT = """
import signal
import sys
from harness.live.load.load_process import LoadProcess
from harness.live.session import LiveSession, check_recorded
from harness.scenario.faults import Kill
from harness.targets import resolve
from tests.harness.live.helpers import traffic

signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background ignores it
begin = LoadProcess.begin

def reporting_begin(self, job, path):
    begin(self, job, path)
    print("running", flush=True)

LoadProcess.begin = reporting_begin
with LiveSession() as session:
    session.play(resolve(sys.argv[1]), traffic(60.0, Kill("gpu-1", 59.0)), int(sys.argv[2]))
"""


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a one-minute live run, with temporary files in `tmp_path`; killed at the end."""
    words = [sys.executable, "-c", SCRIPT, request.param, str(SEED + 7)]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "running\n", process.communicate()[1]
            yield process
        finally:
            process.kill()


def family_of(script: subprocess.Popen[str]) -> set[int]:
    """All descendants of the script, and the members of their groups."""
    found = tree(script.pid)
    assert len(found) >= 6  # load, fleet with two backends, fault proxy, balancer
    return found.union(*(group(pid) for pid in found))


@pytest.mark.parametrize("script", ["reference"], indirect=True)
@pytest.mark.parametrize(("number", "message"), [(SIGINT, "KeyboardInterrupt"), (SIGTERM, "TerminatedError: SIGTERM")])
def test_ctrl_c_and_sigterm_leave_nothing(
    script: subprocess.Popen[str], tmp_path: Path, number: Signals, message: str
) -> None:
    family = family_of(script)
    script.send_signal(number)
    _, errors = script.communicate(timeout=PATIENCE_S * 2)
    assert script.returncode != 0
    assert errors.rstrip().endswith(message)
    until(lambda: not any(map(runs, family)), 1.0)  # what was killed may take a moment to be gone
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["nginx"], indirect=True)  # has workers that the kernel's signal does not reach
def test_sigkill_leaves_no_process(script: subprocess.Popen[str]) -> None:
    family = family_of(script)
    script.kill()
    script.wait(PATIENCE_S)
    until(lambda: not any(map(runs, family)))
    with suppress(ValueError):
        script.communicate(timeout=PATIENCE_S)


# --- what the load process recorded -----------------------------------------------------------------------


def recorded(scenario: Scenario, chatted: int) -> Rows:
    """Rows of an open loop, followed by rows of virtual users."""
    arrivals = draw(scenario.load, SEED)
    rows = empty_requests(len(arrivals) + chatted)
    rows["stream"] = [arrival.stream for arrival in arrivals] + [1] * chatted
    return rows


def test_every_request_of_the_open_loop_has_to_be_recorded_and_those_of_chats_follow() -> None:
    scenario = traffic(1.0)
    (stream,) = scenario.load.streams
    chats = replace(stream, name="chats", chats=Chats(2, 0.1, 1.0))
    both = replace(scenario, load=replace(scenario.load, streams=(stream, chats)))
    rows = recorded(both, 7)
    check_recorded(rows, both, SEED)
    check_recorded(rows[:-7], both, SEED)
    with pytest.raises(HarnessError, match=f"recorded {len(rows) - 8} requests, {len(rows) - 7} were to be sent"):
        check_recorded(rows[1:], both, SEED)
    twice = rows.copy()
    twice["number"][-1] = twice["number"][-2]
    with pytest.raises(HarnessError, match="twice, or left one out"):
        check_recorded(twice, both, SEED)


def test_a_shape_has_as_many_requests_as_were_drawn() -> None:
    (stream,) = traffic(1.0).load.streams
    shaped = replace(traffic(1.0), load=Load((replace(stream, shape=Poisson(200.0, 1.0)),)))
    rows = recorded(shaped, 0)
    assert len(rows) != stream.requests
    check_recorded(rows, shaped, SEED)
