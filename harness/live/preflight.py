"""Preflight: check that the balancer reaches every backend, and which request tags it forwards.

A balancer that still runs an earlier configuration would cause false verdicts, so answers alone are not enough: each
backend's own log must show a request with this run's nonce and a 2xx answer. Preflight requests use their own keys;
afterwards the fleet is reset.
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
"""Requests sent before the logs are read: each may make a backend load a model."""

PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05
"""Pause between rounds without progress, doubled each time: a starting balancer needs the processor core itself."""

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
    """Return when all `backends` have been reached; True if a tag in `correlate` identifies requests at each of them.

    A backend has been reached when it answered a request with a 2xx status. TargetError if that takes more than
    `READY_S`, or if the balancer ends; HarnessError if the mocks themselves fail.
    """
    allowed = sum(CARRIER_BITS.get(name, 0) for name in correlate)
    deadline_s = time.monotonic() + READY_S
    number = 0
    reached: dict[str, int] = {}
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
        known = len(reached)
        for name in backends:
            _inspect_log(name, fleet.rows(name), nonce, reached, refused)
        if len(reached) == len(backends):
            return all(mask & allowed for mask in reached.values())
        pause_s = PAUSE_S if len(reached) > known else min(2 * pause_s, LONGEST_PAUSE_S)
        time.sleep(pause_s)
    missing = ", ".join(name for name in backends if name not in reached)
    answers = "".join(f"; {name} answered {status}" for name, status in refused.items() if name not in reached)
    raise balancer.not_ready(
        f"{missing} not reached through it after {READY_S:.0f} s and {number} requests, {answered} answered well"
        f"{answers}{last or '; does its configuration name the addresses of these backends?'}"
    )


def _inspect_log(name: str, rows: Rows, nonce: int, reached: dict[str, int], refused: dict[str, int]) -> None:
    """Add to `reached` the tags of requests that backend `name` answered well, else to `refused` its last status."""
    own = own_numbers(rows, nonce) >= 0
    # Rows without any tag: the backend can be used, but its attempts cannot be matched with requests.
    untagged = (rows["tag"] == 0) & np.isin(rows["kind"], (RowKind.INFERENCE, RowKind.FOREIGN))
    well = (rows["outcome"] == RowOutcome.ANSWERED) & (rows["status"] // 100 == 2)
    if (own & well).any():
        reached[name] = reached.get(name, 0) | int(np.bitwise_or.reduce(rows["carriers"][own & well]))
    elif (untagged & well).any():
        reached.setdefault(name, 0)
    elif len(others := rows[(own | untagged) & (rows["outcome"] != RowOutcome.OPEN)]):
        refused[name] = int(others["status"][-1])


def _probe(url: str, load: Load, protocol: str, nonce: int, number: int) -> str | None:
    """Send one request; returns a description of the failure, None if there was none."""
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
