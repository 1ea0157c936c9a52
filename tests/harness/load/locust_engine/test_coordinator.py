"""A coordinator and its worker, one faster than the other. In processes of their own, as they import Locust."""

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
# What the load was made of is only told: players need no file and know no profile.
plan = Plan(0, "trace:/no/such/file", 100.0, 300.0, 1, 0, url, "http", 0, 0.0, 0, 1, load)
environment = Environment()
"""

STOPPED_BEFORE_THE_PLAN = """
environment.runner = runner = LocalRunner(environment)
coordinator, worker = Coordinator(environment, runner), Worker(environment, runner)
with gevent.Timeout(60.0):
    coordinator.begin(plan, out)
    coordinator.stop()  # nobody had a chance to say the plan yet
print("ended", coordinator._now.ended.is_set())
"""

OVERTAKEN = """
said = []

class Silent(LocalRunner):
    def send_message(self, msg_type, data=None, client_id=None):
        said.append((msg_type.removeprefix("steelyard_"), data))

environment.runner = runner = Silent(environment)
worker = Worker(environment, runner)

def until(holds):
    while not holds():
        gevent.sleep(0.01)

def heard(kind, run):
    return [data for name, data in said if name == kind and data["run"] == run]

with gevent.Timeout(60.0):
    for run in (1, 2):
        worker._on_plan(replace(plan, run=run).as_data())  # the second one while the first still plays
        until(lambda: heard("ready", run))
        worker._on_go({"run": run, "start_s": monotonic()})
        until(lambda: len(heard("records", run)) > 1)
    worker._on_stop({"run": 2})
    until(lambda: heard("done", 2))
    assert not worker.over.is_set()
    worker._on_thanks({"run": 2})
    until(worker.over.is_set)
for run in (1, 2):
    receipts, done = Receipts(), heard("done", run)[0]
    for batch in heard("records", run):
        receipts.put(batch["batch"], batch["rows"], batch["backends"])
    receipts.told(done["batches"], done["rows"])
    print(run, receipts.complete, receipts.rows)
"""

UNWRITABLE = """
environment.runner = runner = LocalRunner(environment)
try:
    Coordinator(environment, runner).begin(plan, out + "/no/such/folder")
except HarnessError as error:
    print(error)
"""

DEAF = """
from types import SimpleNamespace
from harness.load.locust_engine import coordinator as ours
from harness.scenario.model import Load, Stream

deaf_to = out.rpartition("-")[2]  # a kind of message, and what comes after it

class Deaf(LocalRunner):
    def send_message(self, msg_type, data=None, client_id=None):
        self.deaf = getattr(self, "deaf", False) or (client_id == "deaf" and msg_type == "steelyard_" + deaf_to)
        if client_id != "deaf":
            super().send_message(msg_type, data, client_id)
        elif not self.deaf:
            for told in answers.get(msg_type.removeprefix("steelyard_"), []):
                super().send_message(*told(data))

answers = {
    "clock": [lambda data: ("steelyard_clock_told", {"worker_id": "deaf", "told_s": monotonic(), **data})],
    "plan": [lambda data: ("steelyard_ready", {"worker_id": "deaf", "run": data["run"], "requests": 50, "lasts_s": 1.0,
                                               "error": ""})],
}

ours.SILENT_S = 2.0
environment.runner = runner = Deaf(environment)
coordinator, worker = Coordinator(environment, runner), Worker(environment, runner)
coordinator.worker_ids = lambda: [runner.client_id, "deaf"]
if deaf_to == "clock":  # which only a master asks for
    ours.MasterRunner = Deaf
    runner.clients = dict.fromkeys(coordinator.worker_ids(), SimpleNamespace(state="ready"))
plan = replace(plan, load=text_of(Load((Stream("short", 0.0, 100.0, 100, timeout_s=0.5),))))
with gevent.Timeout(60.0):
    coordinator.begin(plan, out)
    coordinator._now.ended.wait()
print(*(told["msg"] for told in runner.exceptions.values()))
"""

TWICE = """
class Echo(LocalRunner):
    def send_message(self, msg_type, data=None, client_id=None):
        if client_id == "echo":  # is said nothing, and says what the other one says
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
print(*(told["msg"] for told in runner.exceptions.values()))
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run.records"


def says(script: str, url: str, out: Path) -> str:
    """What a script behind `BEGIN` prints."""
    command = [sys.executable, "-c", BEGIN + script, url, str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stop_before_there_is_a_plan_stops(out: Path) -> None:
    with serving() as (url, _):
        assert says(STOPPED_BEFORE_THE_PLAN, url, out) == "ended True\n"
    rows = read_requests(out)
    assert len(rows) == 30_000
    assert set(rows["failure"]) == {Failure.NOT_SENT}


@pytest.mark.slow
def test_a_run_that_another_one_overtakes_is_handed_over_whole_and_so_is_the_other(out: Path) -> None:
    with serving() as (url, _):
        assert says(OVERTAKEN, url, out).splitlines() == ["1 True 30000", "2 True 30000"]


def test_a_file_that_cannot_be_written_is_said_before_the_run(out: Path) -> None:
    told = says(UNWRITABLE, "http://127.0.0.1:9", out)
    assert told == f"--records {out}/no/such/folder: cannot be written; expected a file in a folder that can\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaf_to", "told", "left"),
    [
        ("clock", "before the load began; nothing was sent", 0),
        ("plan", "before the load began; nothing was sent", 0),
        ("go", "and with them the records of 50 or more requests; what came before is in the file", 50),
    ],
)
def test_who_says_no_word_any_more_is_given_up(tmp_path: Path, deaf_to: str, told: str, left: int) -> None:
    out = tmp_path / f"deaf-to-{deaf_to}"
    with serving() as (url, _):
        said = says(DEAF, url, out)
    assert said.startswith(f"1 of 2 workers were lost {told}")
    assert (len(read_requests(out)) if out.exists() else 0) == left


def test_a_request_with_two_records_is_said_and_all_of_them_are_in_the_file(out: Path) -> None:
    with serving() as (url, _):
        said = says(TWICE, url, out)
    assert said.startswith("10 requests have more than one record (the first: number 0)")
    assert sorted(read_requests(out)["number"]) == sorted([*range(0, 20, 2)] * 2)
