"""A running environment: fleet, fault proxy, balancer, and an optional light load.

Its state is observed from outside, in the backends' logs and by its own clients; the balancer is never queried.
"""

from __future__ import annotations

import http.client
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.claims.features import Limits
from harness.evidence.run_events import Listener, StepEffective, ignore
from harness.live.balancer import Balancer
from harness.live.deployment import deployment_after, proxy_addresses
from harness.live.faults.command_words import KINDS, describe, duration, kind_of, parse
from harness.live.faults.injector import FaultInjector
from harness.live.faults.on_demand import ActiveFaults
from harness.live.fleet import FleetProcess
from harness.live.load.background import BackgroundLoad
from harness.live.process.http import accepts, call
from harness.live.process.open_files import require_open_files
from harness.live.process.ports import HOST, port_block
from harness.scenario.faults import Drain, Join, Leave, Membership, Weigh
from harness.scenario.model import ClaimsError, DiedError, HarnessError, Load, Scenario, SteelyardError
from harness.scenario.validation import nearest
from harness.targets.base import Deployment, Target
from harness.targets.checked import for_live
from mockgpu.gpu.catalogue import GPUS, Gpu, Model, Setup, SetupError, setup_of

READY_S = 15.0
LATE_S = 1.0
"""After this time a line says that the balancer is not ready yet."""
QUICK = Setup(Gpu("quick", 2_000, 16, 256, update_s=0.002), Model("quick", 100, 0.2, 20_000.0, 0.002))
"""Backends for interactive use: about 35 ms per answer, twenty models per GPU, 0.2 s to load a model."""


@dataclass(frozen=True, slots=True)
class EnvironmentOptions:
    """Options of an environment. `gpu` and `model` are names in mockgpu's catalogue, both empty for `QUICK` backends.

    `rate_per_s` 0: no load; `models` is the number of model names that the load requests.
    """

    backends: int = 4
    toxiproxy: str = "embedded"
    gpu: str = ""
    model: str = ""
    models: int = 24
    rate_per_s: float = 20.0
    seed: int = 1

    def setup(self) -> Setup:
        """The backends' setup. ClaimsError for names that are not in the catalogue."""
        if not self.gpu and not self.model:
            return QUICK
        gpu, model = self.gpu or "h100-80gb", self.model or "llama-8b"
        try:
            weights_mb = setup_of(gpu, model).default_model.weights_mb
            fit = GPUS[gpu].weights_mb // weights_mb if weights_mb else 1
            return setup_of(gpu, model, max(1, min(math.ceil(self.models / self.backends), fit)))
        except SetupError as error:
            raise ClaimsError(f"--gpu {gpu} --model {model}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Server:
    setup: Setup

    def as_setup(self) -> str:
        return self.setup.to_json()


@contextmanager
def _print_if_slow(line: str) -> Iterator[None]:
    """Print `line` if the body takes longer than `LATE_S`."""
    timer = threading.Timer(LATE_S, print, (line,), {"flush": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # its line must not mix with the next output


class Environment:
    """Starts all parts in `workdir`; `stack` stops them.

    TargetError if the balancer does not start, HarnessError if another part fails.
    """

    def __init__(
        self,
        target: Target,
        options: EnvironmentOptions,
        workdir: Path,
        stack: ExitStack,
        listener: Listener = ignore,
    ) -> None:
        require_open_files()
        self.target = live = for_live(target)
        self.options = options
        self._listener = listener
        self._workdir = workdir
        self.setup = options.setup()
        # Users send any load they like, so the limits of the target are switched off where possible.
        self._scenario = Scenario("up", options.backends, Load(()), off=frozenset({Limits.table}) & live.switches)
        self.names = self._scenario.backend_ids
        self._changes: list[Membership] = []
        self._changing = threading.Lock()
        self._block = stack.enter_context(port_block(options.seed, options.backends))
        self._fleet = FleetProcess(self._block, options.backends, _Server(self.setup), workdir, processes=True)
        stack.callback(self._fleet.stop)
        self._injector = FaultInjector(options.toxiproxy, self._block, workdir, options.seed)
        stack.callback(self._injector.stop)
        self._fleet.await_ready()
        self._injector.await_ready()
        self._listen = proxy_addresses(live, self._block, self.names)
        for number, name in enumerate(self.names):
            self._injector.open(name, self._listen[name], (HOST, self._block.backend(number)))
        self._balancer = Balancer(live, self._deployment())
        stack.callback(self._balancer.stop)
        self.url = self._balancer.url
        with _print_if_slow(f"waiting for {live.name} at {self.url}"):
            self._balancer.await_listening()
            self._await_answer()
        self.active_faults = ActiveFaults(self._injector, self._fleet, options.seed, listener)
        self._start_s = time.monotonic()
        stack.callback(self.active_faults.close)
        self.fleet_control = self._block.fleet_control
        self.load = self._own_load()
        if self.load is not None:
            stack.callback(self.load.stop)
            self.load.start()

    @property
    def admin(self) -> str | None:
        """URL of the balancer's admin interface, None if nothing listens there."""
        return f"http://{HOST}:{self._block.admin}" if accepts(HOST, self._block.admin) else None

    def proxy_address(self, backend: str) -> tuple[str, int]:
        """Host and port of a backend's fault proxy, the address that the balancer has."""
        return self._listen[backend]

    def _own_load(self) -> BackgroundLoad | None:
        options, claims = self.options, self.target.claims
        if not options.rate_per_s:
            return None
        return BackgroundLoad(
            self.url, options.rate_per_s, options.models, claims.key_carrier, claims.protocol, options.seed
        )

    def _deployment(self) -> Deployment:
        return deployment_after(
            self._changes, self._scenario, self._listen, self._block, self._workdir, self.options.seed
        )

    def _await_answer(self) -> None:
        """Wait until a request through the balancer is answered below 500. The request loads no model."""
        deadline_s = time.monotonic() + READY_S
        while True:
            try:
                answer = call("GET", f"{self.url.rstrip('/')}/v1/models", timeout_s=2.0)
                if answer.status < 500:
                    return
                last = f"last answer: {answer.status}"
            except (OSError, http.client.HTTPException) as error:
                last = f"last failure: {type(error).__name__}: {error}"
            try:
                self._balancer.check()
            except DiedError:
                raise self._balancer.not_ready(last) from None
            if time.monotonic() > deadline_s:
                raise self._balancer.not_ready(f"no answer through it after {READY_S:.0f} s; {last}")
            time.sleep(0.02)

    # --- commands -----------------------------------------------------------------------------------------

    def add(self, backend: str, kind: str, words: Sequence[str]) -> tuple[bool, str]:
        """Set a fault or change membership; returns whether it took effect, and a line that reports it.

        ClaimsError for an invalid request (or one invalid at present), another SteelyardError if it fails.
        """
        step = parse(self._known(backend), kind, words)
        return (True, self._change(step)) if isinstance(step, Membership) else self.active_faults.add(step)

    def clear(self, backend: str | None, kind: str | None) -> list[str]:
        """Heal faults and undo membership changes, of one backend or kind where given; returns a line for each."""
        if backend is not None:
            self._known(backend)
        if kind is not None and kind not in KINDS:
            raise ClaimsError(f"no fault {kind!r}; {nearest(kind, KINDS)}")
        lines = self.active_faults.clear(backend, kind)
        for step in self._membership():
            if backend in (None, step.backend) and kind in (None, kind_of(step)):
                undo = Weigh(step.backend, 0.0, 1) if isinstance(step, Weigh) else Join(step.backend, 0.0)
                self._change(undo)
                lines.append(f"{kind_of(step)} of {step.backend} undone")
        return lines

    def listed(self) -> list[dict[str, Any]]:
        """What is in force as rows: backend, kind, told (description), since_s, heals_in_s (None: until cleared)."""
        now_s = time.monotonic()
        rows = self.active_faults.rows(now_s)
        for step in self._membership():
            row = {"backend": step.backend, "kind": kind_of(step), "told": describe(step)}
            rows.append({**row, "since_s": now_s - step.at_s, "heals_in_s": None})
        return rows

    def check(self) -> None:
        """DiedError if the balancer has ended, HarnessError if fleet, fault proxy, load or a heal failed."""
        try:
            self._balancer.check()
        except DiedError as error:
            raise DiedError(f"the balancer ended: {error}") from None
        self._fleet.check()
        self._injector.check()
        if self.active_faults.failed is not None:
            raise HarnessError(f"a fault could not be healed: {self.active_faults.failed}")
        if self.load is not None and self.load.failed is not None:
            raise HarnessError(f"the load failed: {self.load.failed!r}")

    def _known(self, backend: str) -> str:
        if backend not in self.names:
            raise ClaimsError(f"no backend {backend!r}; {nearest(backend, self.names)}")
        return backend

    # --- membership ---------------------------------------------------------------------------------------

    def _change(self, step: Membership) -> str:
        """Change the balancer's membership; returns a line that reports it."""
        with self._changing:
            members, drained = self._scenario.members(self._changes), self._scenario.drained(self._changes)
            is_member, draining = step.backend in members, step.backend in drained
            if isinstance(step, Join) and is_member and not draining:
                raise ClaimsError(f"{step.backend} is a member already")
            if isinstance(step, Leave | Drain) and not is_member:
                raise ClaimsError(f"{step.backend} is no member; steelyard fault add {step.backend} join first")
            if isinstance(step, Drain) and draining:
                raise ClaimsError(f"{step.backend} is drained already")
            requested_s = time.monotonic()
            self._changes.append(replace(step, at_s=requested_s))
            try:
                self._balancer.change(self._deployment())
            except SteelyardError as error:
                del self._changes[-1]
                raise type(error)(f"{self.target.name}: {kind_of(step)} of {step.backend}: {error}") from None
            self._listener(StepEffective(time.monotonic() - self._start_s, type(step).__name__, step.backend))
            return f"{describe(step)} of {step.backend} done after {duration(time.monotonic() - requested_s)}"

    def _membership(self) -> list[Membership]:
        """The changes in force, oldest first."""
        last: dict[tuple[str, bool], Membership] = {}
        for step in list(self._changes):
            last[step.backend, isinstance(step, Weigh)] = step
        return [step for step in last.values() if not isinstance(step, Join) and getattr(step, "weight", 0) != 1]

    def changed_s(self, backend: str) -> float:
        """When (CLOCK_MONOTONIC) the membership of a backend last changed; -inf if it never did."""
        return max((step.at_s for step in list(self._changes) if step.backend == backend), default=-math.inf)

    def membership_status(self, backend: str) -> str:
        """A backend's membership status: left, draining, weight 3, or "" for a plain member."""
        changes = list(self._changes)
        if backend not in self._scenario.members(changes):
            return "left"
        weight = self._scenario.weights(changes)[backend]
        parts = ["draining"] if backend in self._scenario.drained(changes) else []
        return ", ".join([*parts, *([f"weight {weight}"] if weight != 1 else [])])
