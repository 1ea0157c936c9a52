"""`steelyard up` from start to end: a stage, its control interface, and a view until it is told to stop."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console
from rich.live import Live

from harness.live.environment import Environment, EnvironmentOptions
from harness.live.process.session_dir import session_folder, take_sigterm
from harness.live.watch import Watch
from harness.targets.base import Target
from harness.up.control_api import Control
from harness.up.run_lock import DEFAULT_NAME, RunAddress, claimed
from harness.up.view import banner, plain, title_of, view

VIEW_S, PLAIN_S = 0.5, 1.0
LOOK_S = 0.1


def run_up(target: Target, options: EnvironmentOptions, name: str, seconds: float | None, as_lines: bool) -> None:
    """Bring it all up and look at it until Ctrl-C, SIGTERM, or for `seconds`; nothing is left then.

    TargetError if the balancer does not start, HarnessError and DiedError if a part of it fails.
    """
    console = Console(highlight=False)
    before = signal.getsignal(signal.SIGINT)
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGINT, before)
        stack.callback(take_sigterm())
        try:
            _run(target, options, name, seconds, as_lines, console, stack)
        except KeyboardInterrupt:
            console.print("stopping", highlight=False)
        finally:
            signal.signal(signal.SIGINT, _ignore)  # a second Ctrl-C must not break off the clean-up


def _run(
    target: Target,
    options: EnvironmentOptions,
    name: str,
    seconds: float | None,
    as_lines: bool,
    console: Console,
    stack: ExitStack,
) -> None:
    claim = stack.enter_context(claimed(name))
    folder = session_folder()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # workers of a balancer may run as another user
    stage = Environment(target, options, folder, stack)
    control = Control(stage)
    stack.callback(control.close)
    claim.tell(RunAddress(os.getpid(), control.url, control.token))
    title = title_of(target.name, target.version, options.backends)
    shown = "" if name == DEFAULT_NAME else name
    example = stage.names[min(2, len(stage.names) - 1)]
    print(banner(title, stage.url, stage.admin, control.url, shown, example), flush=True)
    watch = Watch(stage)
    end_s = None if seconds is None else time.monotonic() + seconds
    if as_lines:
        _keep(stage, lambda: print(plain(watch.snapshot()), flush=True), PLAIN_S, end_s)
        return
    with Live(console=console, auto_refresh=False) as live:
        _keep(stage, lambda: live.update(view(watch.snapshot(), title, console.width), refresh=True), VIEW_S, end_s)


def _keep(stage: Environment, show: Callable[[], None], every_s: float, end_s: float | None) -> None:
    """Show it every so often and look after its parts, until `end_s` (CLOCK_MONOTONIC)."""
    due_s = time.monotonic()
    while end_s is None or time.monotonic() < end_s:
        stage.check()
        if time.monotonic() >= due_s:
            show()
            due_s = time.monotonic() + every_s
        time.sleep(LOOK_S)


def _ignore(number: int, frame: object) -> None:
    """Not SIG_IGN, which children would inherit."""
