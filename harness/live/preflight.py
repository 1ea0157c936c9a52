"""Before the run: every backend is seen through the balancer with this run's nonce, and which tags survive the way.

A balancer that still answers from an earlier configuration would give false verdicts, so answers alone do not count:
the backends' own logs must show the tag of a request of ours, and that it was answered well. Its traffic uses keys of
its own; afterwards the fleet is reset.
"""

from __future__ import annotations

import http.client
import time

import numpy as np

from harness.evidence.records import Rows
from harness.live.balancer import Balancer
from harness.live.evidence import own_numbers
from harness.live.fleet import FleetProcess
from harness.live.process.http import call
from harness.load.wire import request_of
from harness.scenario.arrivals import Arrival
from harness.scenario.model import DiedError, Kind, Load, Method
from mockgpu.server.attempt_log import RowKind, RowOutcome

READY_S = 15.0
BATCH = 8
"""Requests before the logs are looked at: each may cost a backend the loading of a model."""

PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05
"""Between rounds that brought nothing new, doubled each time: a balancer that still starts needs the core itself."""

CARRIER_BITS = {"header:x-mock-tag": 1, "header:x-request-id": 2, "json:seed": 4, "prompt-suffix": 8}


def preflight(
    balancer: Balancer,
    fleet: FleetProcess,
    backends: tuple[str, ...],
    load: Load,
    protocol: str,
    nonce: int,
    correlate: tuple[str, ...],
) -> bool:
    """Return when all `backends` have been seen; True if requests can be told apart by a tag in `correlate`.

    A backend is seen when it has given a request a status of 2xx. TargetError if that takes more than `READY_S`, or
    if the balancer ends; HarnessError if the mocks themselves fail.
    """
    allowed = sum(CARRIER_BITS.get(name, 0) for name in correlate)
    deadline_s = time.monotonic() + READY_S
    number = 0
    seen: dict[str, int] = {}
    refused: dict[str, int] = {}
    answered = 0
    last = ""
    pause_s = PAUSE_S
    while time.monotonic() < deadline_s:
        for _ in range(BATCH):
            failure = _probe(balancer.url, load, protocol, nonce, number)
            answered += failure is None
            last = f"; {failure}" if failure else last
            number += 1
            try:
                balancer.check()
            except DiedError:
                raise balancer.not_ready(f"it ended after {number} requests{last}") from None
        fleet.check()
        known = len(seen)
        for name in backends:
            _look(name, fleet.rows(name), nonce, seen, refused)
        if len(seen) == len(backends):
            return all(mask & allowed for mask in seen.values())
        pause_s = PAUSE_S if len(seen) > known else min(2 * pause_s, LONGEST_PAUSE_S)
        time.sleep(pause_s)
    missing = ", ".join(name for name in backends if name not in seen)
    answers = "".join(f"; {name} answered {status}" for name, status in refused.items() if name not in seen)
    raise balancer.not_ready(
        f"{missing} not seen through it after {READY_S:.0f} s and {number} requests, {answered} of them well answered"
        f"{answers}{last or '; does its configuration name the addresses of these backends?'}"
    )


def _look(name: str, rows: Rows, nonce: int, seen: dict[str, int], refused: dict[str, int]) -> None:
    """Note in `seen` what tags a well answered request of ours bore at a backend, else in `refused` what it got."""
    own = own_numbers(rows, nonce) >= 0
    # Nothing survived on these: the backend can be used, but its attempts can't be told apart.
    bare = (rows["tag"] == 0) & np.isin(rows["kind"], (RowKind.INFERENCE, RowKind.FOREIGN))
    well = (rows["outcome"] == RowOutcome.ANSWERED) & (rows["status"] // 100 == 2)
    if (own & well).any():
        seen[name] = seen.get(name, 0) | int(np.bitwise_or.reduce(rows["carriers"][own & well]))
    elif (bare & well).any():
        seen.setdefault(name, 0)
    elif len(others := rows[(own | bare) & (rows["outcome"] != RowOutcome.OPEN)]):
        refused[name] = int(others["status"][-1])


def _probe(url: str, load: Load, protocol: str, nonce: int, number: int) -> str | None:
    """Send one request; a word on what went wrong, if anything did."""
    arrival = Arrival(
        number=number,
        stream=0,
        at_s=0.0,
        kind=Kind.INFERENCE,
        method=Method.POST,
        key=number,
        prompt_tokens=4,
        output_tokens=1,
        connection=-1,
        fresh=True,
        timeout_s=2.0,
    )
    wire = request_of(arrival, load.key_carrier, seed=-1 - nonce, nonce=nonce, protocol=protocol)
    try:
        answer = call(wire.method, url.rstrip("/") + wire.path, wire.body, dict(wire.headers), timeout_s=2.0)
    except (OSError, http.client.HTTPException) as error:
        return f"last failure: {type(error).__name__}: {error}"
    return None if answer.status < 400 else f"last answer: {answer.status}"
