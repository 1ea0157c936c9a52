"""`steelyard up`: starts an environment and its control API, and shows a live view until stopped."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console
from rich.live import Live

from harness.evidence.run_events import RunEvent
from harness.live.environment import Environment, EnvironmentOptions
from harness.live.process.session_dir import session_folder, take_sigterm
from harness.live.watch import Watch
from harness.targets.base import Target
from harness.up.control_api import Control
from harness.up.run_lock import DEFAULT_NAME, RunAddress, lock_name
from harness.up.view import banner, plain, title_of, view
from reports.progress import progress_line

VIEW_S, PLAIN_S = 0.5, 1.0
POLL_S = 0.1


def run_up(target: Target, options: EnvironmentOptions, name: str, seconds: float | None, as_lines: bool) -> None:
    """Start everything and show it until Ctrl-C, SIGTERM, or for `seconds`, then clean up.

    TargetError if the balancer does not start, HarnessError and DiedError if a component fails.
    """
    console = Console(highlight=False)
    previous_handler = signal.getsignal(signal.SIGINT)
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGINT, previous_handler)
        stack.callback(take_sigterm())
        try:
            _run(target, options, name, seconds, as_lines, console, stack)
        except KeyboardInterrupt:
            console.print("stopping", highlight=False)
        finally:
            signal.signal(signal.SIGINT, _ignore)  # a second Ctrl-C must not interrupt the clean-up


def _run(
    target: Target,
    options: EnvironmentOptions,
    name: str,
    seconds: float | None,
    as_lines: bool,
    console: Console,
    stack: ExitStack,
) -> None:
    lock = stack.enter_context(lock_name(name))
    folder = session_folder()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # a balancer's workers may run as another user
    events: deque[RunEvent] = deque()
    environment = Environment(target, options, folder, stack, events.append)
    control = Control(environment)
    stack.callback(control.close)
    lock.publish(RunAddress(os.getpid(), control.url, control.token))
    title = title_of(target.name, target.version, options.backends)
    shown_name = "" if name == DEFAULT_NAME else name
    example = environment.names[min(2, len(environment.names) - 1)]
    print(banner(title, environment.url, environment.admin, control.url, shown_name, example), flush=True)
    watch = Watch(environment)
    end_s = None if seconds is None else time.monotonic() + seconds
    if as_lines:

        def show_line() -> None:
            _print_events(events, console)
            print(plain(watch.snapshot()), flush=True)

        _watch_until(environment, show_line, PLAIN_S, end_s)
        return
    with Live(console=console, auto_refresh=False) as live:

        def show_table() -> None:
            _print_events(events, console)  # above the table
            live.update(view(watch.snapshot(), title, console.width), refresh=True)

        _watch_until(environment, show_table, VIEW_S, end_s)


def _print_events(events: deque[RunEvent], console: Console) -> None:
    """Print and remove the events that have arrived."""
    while events:
        console.print(progress_line(events.popleft()), markup=False)


def _watch_until(environment: Environment, show: Callable[[], None], every_s: float, end_s: float | None) -> None:
    """Call `show` every `every_s` seconds and check the environment's processes, until `end_s` (CLOCK_MONOTONIC)."""
    due_s = time.monotonic()
    while end_s is None or time.monotonic() < end_s:
        environment.check()
        if time.monotonic() >= due_s:
            show()
            due_s = time.monotonic() + every_s
        time.sleep(POLL_S)


def _ignore(number: int, frame: object) -> None:
    """Handler that does nothing; unlike SIG_IGN, children do not inherit it."""
