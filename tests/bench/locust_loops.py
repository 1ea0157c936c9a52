"""Loads in a process of its own, as JSON: what they cost and how late they were. Usage: ``locust_loops.py WHICH PORT``.

WHICH ``open``: ``exact`` (an open loop as it is) and ``naps`` (the same, waiting with gevent.sleep), in turns, with
what a record alone costs. ``closed``: ``chats`` (without time to think) and ``plain`` (bare FastHttpUser).
"""

import locust  # noqa: F401, I001  before anything else: it patches the interpreter

import gc
import json
import sys
import time
from functools import partial

import gevent
import numpy as np
from locust import FastHttpUser, constant, task
from locust.env import Environment
from locust.rpc import Message

from harness.evidence import records
from harness.load.locust_engine import engine
from harness.load.results.answer import ExchangeResult, Ledger
from harness.load.results.figures import is_good
from harness.load.job import LoadJob
from harness.load.locust_engine.pacing import Pacer
from harness.load.locust_engine.engine import LocustEngine
from harness.load.workloads.profiles import closed_loop
from harness.load.wire import request_of
from harness.scenario.model import Failure, Keys, Load, Stream

TURNS = {"open": 12, "closed": 6}
RATE, OPEN_REQUESTS = 2000.0, 300
USERS, CLOSED_S = 16, 0.4
BATCHES, RECORDS = 2, 1000
"""A worker hands over what half a second has made."""
LOAD = Load((Stream("load", 0.0, RATE, OPEN_REQUESTS, arrivals="poisson", keys=Keys(20)),))

Figures = dict[str, float]


def _job(port: str, load: Load = LOAD) -> LoadJob:
    return LoadJob(load, 1, 5, f"http://127.0.0.1:{port}", 0.0, ("gpu-0",), "")


def _open(kind: str, port: str) -> Figures:
    environment = Environment()
    environment.create_local_runner()
    vars(engine)["Pacer"] = partial(Pacer, use_timerfd=False) if kind == "naps" else Pacer
    run = LocustEngine(_job(port), environment)
    run.begin(time.monotonic() + 0.05)
    before_s = time.process_time()
    run.send_all()
    cost_s = time.process_time() - before_s
    run.close()
    late_s = np.array(run.ledger.delays_s)
    p50_s, p99_s = np.quantile(late_s, [0.5, 0.99])
    figures = {"p50_s": float(p50_s), "p99_s": float(p99_s), "answered": int(is_good(run.ledger.rows()).sum())}
    return {"cost_s": cost_s / len(late_s), "record_s": _record_s(run), **figures}


def _record_s(run: LocustEngine) -> float:
    """CPU seconds of one record: made, taken and packed into its message to the master.

    Asked of it alone: in two whole loops it would drown in what else differs.
    """
    own = "0" * 13
    answer = ExchangeResult(Failure.NONE, 200, 1.0, 2.0, 3.0, True, b'{"id": "sy-%s"}' % own.encode(), "gpu-0")
    ledger, arrival = Ledger(0.0, ("gpu-0",)), run.arrivals[0]
    packed = 0
    before_s = time.process_time()
    for batch in range(BATCHES):
        for _ in range(RECORDS):
            ledger.add(arrival, own, answer)
        rows = ledger.take()
        data = {"run": 1, "batch": batch, "rows": rows, "backends": ledger.backends, "worker_id": "one"}
        message = Message("steelyard_records", data, "one")  # type: ignore[no-untyped-call]
        packed += len(message.serialize())  # type: ignore[no-untyped-call]
    cost_s = time.process_time() - before_s
    assert packed > BATCHES * RECORDS * records.ROW.size
    return cost_s / (BATCHES * RECORDS)


def _closed(kind: str, port: str) -> Figures:
    environment = Environment(user_classes=[_plain(port)])
    runner = environment.create_local_runner()
    load = Load((Stream("load", 0.0, RATE, round(CLOSED_S * RATE), keys=Keys(20)),))
    users = LocustEngine(_job(port, closed_loop(load, USERS, 0.0)), environment)
    before_s, began_s = time.process_time(), time.monotonic()
    if kind == "chats":
        users.begin(began_s)
        users.send_all()
        users.close()
    else:
        runner.start(USERS, spawn_rate=USERS)
        gevent.sleep(CLOSED_S)
        runner.quit()
    requests = environment.stats.total.num_requests
    assert not environment.stats.errors
    cost_s, took_s = time.process_time() - before_s, time.monotonic() - began_s
    return {"requests_per_s": requests / took_s, "cost_s": cost_s / requests}


def _plain(port: str) -> type[FastHttpUser]:
    arrival = LocustEngine(_job(port), Environment()).arrivals[0]
    request = request_of(arrival, LOAD.key_carrier, 1, 5, "http")

    class Plain(FastHttpUser):
        host = f"http://127.0.0.1:{port}"
        wait_time = constant(0)

        @task
        def ask(self) -> None:
            self.client.post(request.path, data=request.body.decode(), headers=dict(request.headers))

    return Plain


def main() -> None:
    """Run as the arguments say."""
    which, port = sys.argv[1:]
    make, kinds = (_open, ("exact", "naps")) if which == "open" else (_closed, ("chats", "plain"))
    found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    gc.collect()
    gc.freeze()
    for turn in range(TURNS[which] + 1):
        for kind in kinds:
            figures = make(kind, port)
            if turn:  # the first one fills caches
                found[kind].append(figures)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
