"""Steelyard's loads for Locust: `locust -f harness/load/locust_engine/locustfile.py --profile spike --host http://127.0.0.1:8080`.

With Locust's web page, without (`--headless`), or distributed (`--master`, `--worker`). See docs/load.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from locust import LoadTestShape, User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.event import EventHook
from locust.exception import StopUser
from locust.runners import LocalRunner, MasterRunner, Runner, WorkerRunner

from harness.claims.features import PROTOCOLS
from harness.load.job import LoadJob, text_of
from harness.load.locust_engine.coordinator import Coordinator
from harness.load.locust_engine.messages import Plan
from harness.load.locust_engine.worker import Worker
from harness.load.workloads.profiles import PROFILES, closed_loop_of, load_of, planned, virtual_users_in
from harness.scenario.model import ClaimsError, HarnessError, SteelyardError
from harness.scenario.validation import nearest

DURATION_S = 30.0


class SteelyardUser(User):
    """Represents a worker of the load, or a virtual user of the closed loop, in Locust's figures. Sends nothing itself.

    Locust ends its users at any time; requests in flight and their records must not end with them.
    """

    worker: ClassVar[Worker | None] = None

    @task
    def wait_for_the_end(self) -> None:
        """Wait for the end of the run."""
        if self.worker is not None:
            self.worker.idle.wait()
        raise StopUser


class SteelyardShape(LoadTestShape):
    """As many users as workers or virtual users, until the run ends. Locust's page has no field for their number."""

    coordinator: ClassVar[Coordinator | None] = None

    def tick(self) -> tuple[int, float] | None:
        """Number of users and spawn rate; None ends the test."""
        coordinator = self.coordinator
        if coordinator is None or coordinator.finished:
            return None
        users = max(coordinator.virtual_users, coordinator.size, 1)
        return users, users


def add_arguments(parser: LocustArgumentParser) -> None:
    """Steelyard's own options, on the command line and on Locust's page. `--profile` replaces Locust's own."""
    profile = parser._option_string_actions["--profile"]
    profile.type, profile.default, profile.metavar = _profile, "steady", "NAME"
    profile.help = f"The load to send: {', '.join(PROFILES)}; trace:FILE replays a recorded trace"
    add = parser.add_argument_group("Steelyard").add_argument
    add("--job", type=_job, default="", metavar="FILE", help="Send the load of this job of a live run instead")
    add("--rate", type=_above_0, default=50.0, metavar="PER_SECOND", help="Mean rate of requests per second")
    add(
        "--duration",
        type=_number,
        default=0.0,
        metavar="SECONDS",
        help=f"Length of the load; 0 takes Locust's --run-time, without it {DURATION_S:g}",
    )
    add("--seed", type=int, default=1, help="The same seed gives the same load")
    add("--protocol", type=_protocol, default="http", help=f"Form of the requests: {', '.join(PROTOCOLS)}")
    add("--records", default="", metavar="FILE", help="Write one record for every request to this file")
    add("--chats", type=_count, default=0, help="Closed loop of this number of virtual users; 0: open loop")
    add("--think-time", type=_number, default=1.0, metavar="SECONDS", help="Mean think time of a virtual user")


def set_up(environment: Environment, runner: Runner, **_: Any) -> None:
    """Make this process a coordinator, a worker, or both."""
    options: Any = environment.parsed_options
    if isinstance(runner, LocalRunner | MasterRunner):
        if options.job and not environment.host:
            environment.host = LoadJob.read(Path(options.job)).url  # the page requires one
        # Locust's run time starts before the load and would cut it off; the load ends by itself.
        options.duration = options.duration or options.run_time or DURATION_S
        options.run_time = None
        coordinator = SteelyardShape.coordinator = Coordinator(environment, runner)
        _listen(environment.events.test_start, partial(_begin, coordinator))
        _listen(environment.events.test_stopping, lambda **_: coordinator.stop())
    if isinstance(runner, LocalRunner | WorkerRunner):
        worker = SteelyardUser.worker = Worker(environment, runner)
        _listen(environment.events.test_start, lambda **_: worker.expect())
        _listen(environment.events.quitting, lambda **_: worker.leave())


def _listen(event: EventHook, listener: Callable[..., None]) -> None:
    event.add_listener(listener)  # type: ignore[no-untyped-call]


_listen(events.init_command_line_parser, add_arguments)
_listen(events.init, set_up)


def _begin(coordinator: Coordinator, environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    try:
        coordinator.begin(_plan(environment), options.records)
    except SteelyardError as error:
        coordinator.refuse(str(error))


def _plan(environment: Environment) -> Plan:
    """The plan of a run from Locust's options (command line or page).

    ClaimsError for invalid options; HarnessError for a missing or invalid job file.
    """
    options: Any = environment.parsed_options
    job = LoadJob.read(Path(options.job)) if options.job else None
    if job is not None:
        load = job.load
    elif options.chats:
        load = closed_loop_of(options.profile, options.chats, options.think_time, options.duration)
    else:
        load = load_of(options.profile, options.rate, options.duration)
    requests = planned(load)
    lasts_s = max((stream.end_s for stream in load.streams), default=0.0) if job else options.duration
    users = virtual_users_in(load)
    rate_per_s = requests / max(lasts_s, 1e-9) if job else options.rate
    if users:
        rate_per_s = 0.0  # a closed loop has none
    return Plan(
        run=0,
        profile=f"job:{options.job}" if job else options.profile,
        rate_per_s=rate_per_s,
        duration_s=lasts_s,
        seed=job.seed if job else options.seed,
        nonce=0,
        url=_site(environment.host or (job.url if job else "")),
        protocol=job.protocol if job else options.protocol,
        chats=users,
        think_s=options.think_time,
        worker=0,
        workers=1,
        load=text_of(load),
    )


def _site(host: str) -> str:
    """The URL of --host. ClaimsError unless it is http://HOST:PORT, optionally with a path."""
    if not host:
        raise ClaimsError("--host is missing: expected http://HOST:PORT of the balancer")
    if host.startswith("https:"):
        raise ClaimsError(f"--host {host!r}: https is not supported; give an http://HOST:PORT in front of TLS")
    try:
        parts = urlsplit(host)
        valid = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port
        valid = False
    if not valid or parts.query or parts.fragment or parts.username:
        raise ClaimsError(f"--host {host!r}: expected http://HOST:PORT, with a path before every request's at most")
    return host


def _profile(text: str) -> str:
    if text not in PROFILES and not text.startswith("trace:"):
        raise argparse.ArgumentTypeError(f"load profile {text!r} is unknown; {nearest(text, PROFILES)}")
    return text


def _job(text: str) -> str:
    try:
        if text:
            LoadJob.read(Path(text))
    except HarnessError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _protocol(text: str) -> str:
    if text not in PROTOCOLS:
        raise argparse.ArgumentTypeError(f"protocol {text!r} is unknown; {nearest(text, PROTOCOLS)}")
    return text


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least 0")
    return value


def _above_0(text: str) -> float:
    value = _number(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 0")
    return int(text)
