"""A coordinator and its worker with messages in an unusual order, in processes of their own: they import Locust."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.evidence.records import read_requests
from harness.scenario.model import Failure
from tests.harness.load.conftest import ROOT
from tests.harness.load.locusts import serving

BEGIN = """
import locust, sys, gevent
from dataclasses import replace
from time import monotonic
from locust.env import Environment
from locust.runners import LocalRunner
from harness.load.locust_engine.coordinator import Coordinator
from harness.load.job import text_of
from harness.load.locust_engine.messages import Plan, Receipts
from harness.load.locust_engine.worker import Worker
from harness.load.workloads.profiles import load_of
from harness.scenario.model import HarnessError

url, out = sys.argv[1:]
load = text_of(load_of("steady", 100.0, 300.0))
# The profile is information only: workers need neither a file nor a profile.
plan = Plan(0, "trace:/no/such/file", 100.0, 300.0, 1, 0, url, "http", 0, 0.0, 0, 1, load)
environment = Environment()
"""

STOPPED_BEFORE_THE_PLAN = """
environment.runner = runner = LocalRunner(environment)
coordinator, worker = Coordinator(environment, runner), Worker(environment, runner)
with gevent.Timeout(60.0):
    coordinator.begin(plan, out)
    coordinator.stop()  # the plan is not sent yet
print("ended", coordinator._now.ended.is_set())
"""

REPLACED = """
sent = []

class Silent(LocalRunner):
    def send_message(self, msg_type, data=None, client_id=None):
        sent.append((msg_type.removeprefix("steelyard_"), data))

environment.runner = runner = Silent(environment)
worker = Worker(environment, runner)

def until(holds):
    while not holds():
        gevent.sleep(0.01)

def messages(kind, run):
    return [data for name, data in sent if name == kind and data["run"] == run]

with gevent.Timeout(60.0):
    for run in (1, 2):
        worker._on_plan(replace(plan, run=run).as_data())  # the second one while the first still runs
        until(lambda: messages("ready", run))
        worker._on_go({"run": run, "start_s": monotonic()})
        until(lambda: len(messages("records", run)) > 1)
    worker._on_stop({"run": 2})
    until(lambda: messages("done", 2))
    assert not worker.idle.is_set()
    worker._on_thanks({"run": 2})
    until(worker.idle.is_set)
for run in (1, 2):
    receipts, done = Receipts(), messages("done", run)[0]
    for batch in messages("records", run):
        receipts.put(batch["batch"], batch["rows"], batch["backends"])
    receipts.announce(done["batches"], done["rows"])
    print(run, receipts.complete, receipts.rows)
"""

UNWRITABLE = """
environment.runner = runner = LocalRunner(environment)
try:
    Coordinator(environment, runner).begin(plan, out + "/no/such/folder")
except HarnessError as error:
    print(error)
"""

SILENT_WORKER = """
from types import SimpleNamespace
from harness.load.locust_engine import coordinator as ours
from harness.scenario.model import Load, Stream

ignored = out.rpartition("-")[2]  # the silent worker ignores this kind of message and all later ones

class WithSilentWorker(LocalRunner):
    def send_message(self, msg_type, data=None, client_id=None):
        self.silent = getattr(self, "silent", False) or (client_id == "silent" and msg_type == "steelyard_" + ignored)
        if client_id != "silent":
            super().send_message(msg_type, data, client_id)
        elif not self.silent:
            for answer in answers.get(msg_type.removeprefix("steelyard_"), []):
                super().send_message(*answer(data))

answers = {
    "clock": [lambda data: ("steelyard_clock_told", {"worker_id": "silent", "told_s": monotonic(), **data})],
    "plan": [lambda data: ("steelyard_ready", {"worker_id": "silent", "run": data["run"], "requests": 50,
                                               "lasts_s": 1.0, "error": ""})],
}

ours.SILENT_S = 2.0
environment.runner = runner = WithSilentWorker(environment)
coordinator, worker = Coordinator(environment, runner), Worker(environment, runner)
coordinator.worker_ids = lambda: [runner.client_id, "silent"]
if ignored == "clock":  # only a master sends it
    ours.MasterRunner = WithSilentWorker
    runner.clients = dict.fromkeys(coordinator.worker_ids(), SimpleNamespace(state="ready"))
plan = replace(plan, load=text_of(Load((Stream("short", 0.0, 100.0, 100, timeout_s=0.5),))))
with gevent.Timeout(60.0):
    coordinator.begin(plan, out)
    coordinator._now.ended.wait()
print(*(error["msg"] for error in runner.exceptions.values()))
"""

DUPLICATING_WORKER = """
class Echo(LocalRunner):
    def send_message(self, msg_type, data=None, client_id=None):
        if client_id == "echo":  # receives nothing, and repeats the messages of the other worker
            return
        super().send_message(msg_type, data, client_id)
        if client_id is None:
            super().send_message(msg_type, {**data, "worker_id": "echo"})

environment.runner = runner = Echo(environment)
coordinator, worker = Coordinator(environment, runner), Worker(environment, runner)
coordinator.worker_ids = lambda: [runner.client_id, "echo"]
with gevent.Timeout(60.0):
    coordinator.begin(replace(plan, load=text_of(load_of("steady", 100.0, 0.2))), out)
    coordinator._now.ended.wait()
print(*(error["msg"] for error in runner.exceptions.values()))
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run.records"


def output_of(script: str, url: str, out: Path) -> str:
    """The output of `BEGIN` followed by `script`."""
    command = [sys.executable, "-c", BEGIN + script, url, str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stop_before_the_plan_stops_the_run(out: Path) -> None:
    with serving() as (url, _):
        assert output_of(STOPPED_BEFORE_THE_PLAN, url, out) == "ended True\n"
    rows = read_requests(out)
    assert len(rows) == 30_000
    assert set(rows["failure"]) == {Failure.NOT_SENT}


@pytest.mark.slow
def test_a_replaced_run_and_its_replacement_deliver_all_records(out: Path) -> None:
    with serving() as (url, _):
        assert output_of(REPLACED, url, out).splitlines() == ["1 True 30000", "2 True 30000"]


def test_an_unwritable_file_is_reported_before_the_run(out: Path) -> None:
    error = output_of(UNWRITABLE, "http://127.0.0.1:9", out)
    assert error == f"--records {out}/no/such/folder: cannot be written; expected a file in a folder that can\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ignored", "consequence", "records"),
    [
        ("clock", "before the load began; nothing was sent", 0),
        ("plan", "before the load began; nothing was sent", 0),
        ("go", "and with them the records of 50 or more requests; the other records are in the file", 50),
    ],
)
def test_a_worker_that_goes_silent_is_lost(tmp_path: Path, ignored: str, consequence: str, records: int) -> None:
    out = tmp_path / f"ignores-{ignored}"
    with serving() as (url, _):
        error = output_of(SILENT_WORKER, url, out)
    assert error.startswith(f"1 of 2 workers were lost {consequence}")
    assert (len(read_requests(out)) if out.exists() else 0) == records


def test_a_request_with_two_records_is_reported_and_both_are_in_the_file(out: Path) -> None:
    with serving() as (url, _):
        error = output_of(DUPLICATING_WORKER, url, out)
    assert error.startswith("10 requests have more than one record (the first: number 0)")
    assert sorted(read_requests(out)["number"]) == sorted([*range(0, 20, 2)] * 2)
