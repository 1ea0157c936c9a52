"""A conductor and its player where one is quicker than the other. In processes of their own, as they import Locust."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.model import Failure
from harness.records import read_requests
from tests.harness.load.conftest import ROOT
from tests.harness.load.locusts import serving

BEGIN = """
import locust, sys, gevent
from dataclasses import replace
from time import monotonic
from locust.env import Environment
from locust.runners import LocalRunner
from harness.load.conductor import Conductor
from harness.load.messages import Plan, Receipts
from harness.load.player import Player
from harness.model import HarnessError

url, out = sys.argv[1:]
plan = Plan(0, "steady", 100.0, 300.0, 1, 0, url, "http", 0, 0.0, 0, 1)
environment = Environment()
"""

STOPPED_BEFORE_THE_PLAN = """
environment.runner = runner = LocalRunner(environment)
conductor, player = Conductor(environment, runner), Player(environment, runner)
with gevent.Timeout(60.0):
    conductor.begin(plan, out)
    conductor.stop()  # nobody had a chance to say the plan yet
print("ended", conductor._now.ended.is_set())
"""

OVERTAKEN = """
said = []

class Silent(LocalRunner):
    def send_message(self, msg_type, data=None, client_id=None):
        said.append((msg_type.removeprefix("steelyard_"), data))

environment.runner = runner = Silent(environment)
player = Player(environment, runner)

def until(holds):
    while not holds():
        gevent.sleep(0.01)

def heard(kind, run):
    return [data for name, data in said if name == kind and data["run"] == run]

with gevent.Timeout(60.0):
    for run in (1, 2):
        player._on_plan(replace(plan, run=run).as_data())  # the second one while the first still plays
        until(lambda: heard("ready", run))
        player._on_go({"run": run, "start_s": monotonic()})
        until(lambda: len(heard("records", run)) > 1)
    player._on_stop({"run": 2})
    until(lambda: heard("done", 2))
    assert not player.over.is_set()
    player._on_thanks({"run": 2})
    until(player.over.is_set)
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
    Conductor(environment, runner).begin(plan, out + "/no/such/folder")
except HarnessError as error:
    print(error)
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


def test_a_run_that_another_one_overtakes_is_handed_over_whole_and_so_is_the_other(out: Path) -> None:
    with serving() as (url, _):
        assert says(OVERTAKEN, url, out).splitlines() == ["1 True 30000", "2 True 30000"]


def test_a_file_that_cannot_be_written_is_said_before_the_run(out: Path) -> None:
    told = says(UNWRITABLE, "http://127.0.0.1:9", out)
    assert told == f"--records {out}/no/such/folder: cannot be written; expected a file in a folder that can\n"
