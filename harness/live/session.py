"""The live world: plays scenarios over real sockets. One load process per session; everything else is new for each run.

A run: lock ports; start fleet, fault proxy and balancer; calibrate; preflight; play load and faults on one timeline;
collect; reconcile; stop. All started processes are stopped in every case.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from harness.evidence.history import History, empty_requests
from harness.evidence.records import Rows, read_requests
from harness.evidence.run_events import Listener, PhaseBegan, ignore
from harness.evidence.steps import steps_seen
from harness.live.balancer import Balancer
from harness.live.deployment import deployment_after, proxy_addresses
from harness.live.evidence import attempts_of, connections_of, health_checks_of, reconcile, residency_of
from harness.live.faults.injector import FaultInjector
from harness.live.faults.timeline_runner import LiveTimelineRunner
from harness.live.fleet import FleetProcess
from harness.live.load.load_process import LoadProcess
from harness.live.preflight import preflight
from harness.live.process.open_files import require_open_files
from harness.live.process.ports import HOST, PortBlock, port_block
from harness.live.process.session_dir import session_folder, take_sigterm
from harness.live.slack import BALANCER, Sentinel, SlackMeter
from harness.load.job import LoadJob
from harness.scenario.arrivals import draw
from harness.scenario.fault_schedule import Due, conflict, schedule
from harness.scenario.faults import Membership, ProcessFault
from harness.scenario.model import AdapterError, ClaimsError, DiedError, HarnessError, Scenario, TargetError
from harness.targets.base import Deployment, LiveTarget, Target
from harness.targets.checked import for_live

LEAD_S = 0.15
"""From submitting the job to second 0 of the run: the load process must have drawn its schedule by then."""

GRACE_S = 6.0
"""Time the load process has to report after the end of its schedule and its longest timeout."""

NONCE_BITS = 31


class LiveSession:
    """State shared by runs. `toxiproxy`: "embedded", "real" (toxiproxy-server from PATH) or the URL of one.

    `listener` is called with the phases and steps of each run as they happen, from several threads. TargetError if the
    machine does not allow enough open files.
    """

    def __init__(self, toxiproxy: str = "embedded", listener: Listener = ignore) -> None:
        require_open_files()
        self._toxiproxy = toxiproxy
        self._listener = listener
        self._restore_sigterm = take_sigterm()
        self._folder = session_folder()
        self._load: LoadProcess | None = None
        self._runs = 0

    def __enter__(self) -> LiveSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the load process, remove the session's folder, and restore the SIGTERM handler."""
        if self._load is not None:
            self._load.stop()
            self._load = None
        shutil.rmtree(self._folder, ignore_errors=True)
        self._restore_sigterm()

    def play(self, target: Target, scenario: Scenario, seed: int) -> History:
        """Play `scenario` against `target`.

        ClaimsError for conflicting steps, TargetError if the target does not become ready, HarnessError if a part of
        the harness fails.
        """
        message = conflict(scenario.timeline)
        if message:
            raise ClaimsError(f"scenario {scenario.name}: {message}")
        live = for_live(target)
        self._runs += 1
        workdir = self._folder / f"run-{self._runs}"
        workdir.mkdir()
        workdir.chmod(0o755)
        self._folder.chmod(0o755)  # workers of a balancer may run as another user
        if self._load is not None and not self._load.alive:
            self._load.stop()  # closes its pipes
            self._load = None
        if self._load is None:
            self._load = LoadProcess(self._folder)
        with ExitStack() as stack:
            run = _Run(self._toxiproxy, self._load, live, scenario, seed, self._runs, workdir, stack, self._listener)
            return run.play()


class _Run:
    """One run and the processes it started; `stack` stops them."""

    def __init__(
        self,
        toxiproxy: str,
        load: LoadProcess,
        target: LiveTarget,
        scenario: Scenario,
        seed: int,
        run: int,
        workdir: Path,
        stack: ExitStack,
        listener: Listener,
    ) -> None:
        self._load = load
        self._listener = listener
        self._target = target
        self._scenario = scenario
        self._seed = seed
        self._workdir = workdir
        self._stack = stack
        self._nonces = tuple(_nonce(seed, scenario, run, part) for part in ("preflight", "run"))
        ids = scenario.backend_ids
        self._numbers = {name: number for number, name in enumerate(ids)}
        self._block: PortBlock = stack.enter_context(port_block(seed, len(ids)))
        self._listen = proxy_addresses(target, self._block, ids)
        self._fleet = FleetProcess(self._block, len(ids), scenario.server, workdir, processes=scenario.kills)
        stack.callback(self._fleet.stop)
        self._injector = FaultInjector(toxiproxy, self._block, workdir, seed)
        stack.callback(self._injector.stop)
        self._changes: list[Membership] = []
        self._phases = sorted(scenario.phases, key=lambda phase: phase.start_s)
        self._steps = LiveTimelineRunner(self._injector, self._fleet, seed, listener)
        stack.callback(self._steps.close)
        self._start_s = 0.0

    def _deployment(self) -> Deployment:
        return self._deployment_after(self._changes)

    def _deployment_after(self, changes: Sequence[Membership]) -> Deployment:
        return deployment_after(changes, self._scenario, self._listen, self._block, self._workdir, self._seed)

    def _sentinel(self) -> Sentinel:
        """A sentinel for a backend without process faults, or for the fleet's control port if there is none."""
        faulty = {step.backend for step in self._scenario.timeline if isinstance(step, ProcessFault)}
        healthy = [number for name, number in self._numbers.items() if name not in faulty]
        if not healthy:
            return Sentinel(self._block.fleet_control, "/fleet/ping")
        return Sentinel(self._block.backend(healthy[0]))

    def _check_changes(self) -> None:
        """UnsupportedError if the target cannot make a change of the scenario, AdapterError for an invalid step."""
        steps = sorted(self._scenario.timeline, key=lambda step: step.at_s)
        changes = [step for step in steps if isinstance(step, Membership)]
        for count in range(1, len(changes) + 1):
            try:
                self._target.change(self._deployment_after(changes[:count]))
            except AdapterError:
                raise
            except TargetError:
                pass  # a refused change is reported when it is made

    # --- the run ------------------------------------------------------------------------------------------

    def play(self) -> History:
        """Run the scenario and return its history."""
        self._check_changes()
        balancer = Balancer(self._target, self._deployment(), begin=False)
        self._stack.callback(balancer.stop)
        self._fleet.await_ready()
        self._injector.await_ready()
        for name, number in self._numbers.items():
            self._injector.open(name, self._listen[name], (HOST, self._block.backend(number)))
        balancer.begin()
        self._load.await_ready()
        balancer.await_listening()
        groups = {
            "the load": self._load.group,
            BALANCER: balancer.group,
            "the fault proxy": self._injector.group,
            "a mock": self._fleet.group,
        }
        meter = SlackMeter(self._sentinel(), groups)
        self._stack.callback(meter.stop)
        meter.calibrate()
        members = self._scenario.members(())
        correlated = preflight(
            balancer,
            self._fleet,
            members,
            self._scenario.load,
            self._target.claims.protocol,
            self._nonces[0],
            self._target.correlate,
        )
        self._fleet.reset(self._nonces[1])
        out = self._workdir / "requests.bin"
        try:
            died = self._timeline(balancer, meter, out)
        except BaseException:
            self._load.stop()  # else it would continue during the next run and report this job there
            raise
        meter.stop()
        return self._history(out, balancer, meter, correlated, died)

    def _timeline(self, balancer: Balancer, meter: SlackMeter, out: Path) -> str | None:
        """Play load and steps on one timeline; returns how the balancer ended, None if it runs."""
        self._start_s = self._steps.start_s = time.monotonic() + LEAD_S
        job = LoadJob(
            load=self._scenario.load,
            seed=self._seed,
            nonce=self._nonces[1],
            url=balancer.url,
            start_s=self._start_s,
            backends=self._scenario.backend_ids,
            out=str(out),
            protocol=self._target.claims.protocol,
        )
        self._load.begin(job, self._workdir / "job.json")
        meter.start()
        longest_s = max((stream.timeout_s for stream in self._scenario.load.streams), default=0.0)
        end_s = self._start_s + self._scenario.end_s
        try:
            for due in schedule(self._scenario.timeline):
                self._wait_until(self._start_s + due.at_s, balancer)
                self._carry_out(due, balancer)
            self._wait_until(end_s, balancer)
            self._announce_phases(math.inf)
            self._await_load(end_s + longest_s + GRACE_S, balancer)
            self._steps.finish()
        except DiedError as error:
            self._steps.close()
            self._load.abandon()
            self._await_load(time.monotonic() + longest_s + GRACE_S, None)
            return str(error)
        return None

    def _wait_until(self, at_s: float, balancer: Balancer) -> None:
        """Sleep until `at_s`, checking the child processes."""
        while (left_s := at_s - time.monotonic()) > 0:
            self._check(balancer)
            self._announce_phases(time.monotonic() - self._start_s)
            time.sleep(min(left_s, 0.05))

    def _announce_phases(self, now_s: float) -> None:
        """Tell the listener of the phases that have begun by `now_s` (seconds of the run)."""
        while self._phases and self._phases[0].start_s <= now_s:
            phase = self._phases.pop(0)
            self._listener(PhaseBegan(phase.start_s, phase.name))

    def _check(self, balancer: Balancer | None) -> None:
        self._fleet.check()
        self._injector.check()
        self._steps.check()
        if not self._load.alive:
            self._load.answer(0.0)  # raises with its exit status and last output
            raise HarnessError("the load process ended in the middle of a run")
        if balancer is not None:
            balancer.check()

    def _await_load(self, deadline_s: float, balancer: Balancer | None) -> None:
        while True:
            if (answer := self._load.answer(0.05)) is not None:
                if answer.get("done"):
                    return
                continue
            self._check(balancer)
            if time.monotonic() > deadline_s:
                raise HarnessError("the load process does not report the end of its job")

    def _carry_out(self, due: Due, balancer: Balancer) -> None:
        """Carry out one timeline entry: membership changes synchronously, faults in the background."""
        step = due.step
        if isinstance(step, Membership):
            requested_s = time.monotonic()
            self._changes.append(step)
            balancer.change(self._deployment())
            self._steps.record(due.position, step, requested_s, time.monotonic())
        elif due.heal:
            self._steps.heal(due.position, step)
        else:
            self._steps.begin(due.position, step)

    # --- evidence -----------------------------------------------------------------------------------------

    def _history(self, out: Path, balancer: Balancer, meter: SlackMeter, correlated: bool, died: str | None) -> History:
        requests = read_requests(out)
        check_recorded(requests, self._scenario, self._seed)
        logs = [self._fleet.rows(name) for name in self._scenario.backend_ids]
        attempts, facts = reconcile(requests, attempts_of(logs, self._nonces[1], self._start_s))
        facts["port_block"] = self._block.base
        facts["fault_proxy"] = {"kind": self._injector.kind, "version": self._injector.version}
        steps = steps_seen(self._steps.ledger, self._numbers)
        slack = meter.slack(self._scenario, requests, attempts, steps, self._start_s)
        facts["slack_causes"] = slack.causes
        facts["core_time"] = meter.core_time()
        facts["balancer_output"] = balancer.last_lines()
        return History(
            scenario=self._scenario,
            seed=self._seed,
            requests=requests if len(requests) else empty_requests(0),
            attempts=attempts,
            health_checks=health_checks_of(logs, self._start_s),
            residency=residency_of(logs, self._start_s),
            connections=connections_of(self._injector.connections(), self._numbers, self._start_s),
            steps=steps,
            slack_s=slack.by_second_s,
            correlated=correlated,
            died=died,
            facts=facts,
        )


def check_recorded(requests: Rows, scenario: Scenario, seed: int) -> None:
    """HarnessError unless every open-loop request is recorded and all numbers (virtual users' too) are consecutive."""
    closed_loop = np.array([stream.chats is not None for stream in scenario.load.streams], dtype=bool)
    expected, recorded = len(draw(scenario.load, seed)), int(np.count_nonzero(~closed_loop[requests["stream"]]))
    if recorded != expected:
        raise HarnessError(f"the load process recorded {recorded} requests, {expected} were to be sent")
    if (requests["number"] != np.arange(len(requests))).any():
        raise HarnessError("the load process recorded a request twice, or left one out")


def _nonce(seed: int, scenario: Scenario, run: int, part: str) -> int:
    """A 31-bit number that marks one run's requests; never 0, which means any nonce."""
    text = f"{seed}/{scenario.digest()}/{run}/{part}/{time.monotonic_ns()}"
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    return drawn % ((1 << NONCE_BITS) - 1) + 1
