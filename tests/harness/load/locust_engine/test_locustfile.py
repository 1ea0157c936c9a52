"""The locustfile as users run it: from the command line, with Locust's page, and distributed."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.records import Rows, read_about, read_requests
from harness.load.job import LoadJob
from harness.load.wire import tag_of
from harness.load.workloads.profiles import load_of
from harness.scenario.arrivals import draw
from harness.scenario.model import Connections, Echo, Failure, Load, Stream
from tests.harness.load.conftest import ROOT
from tests.harness.load.locusts import LOCUSTFILE, Page, free_port, locusts, serving, until

HEADLESS = ("--headless", "--only-summary", "--exit-code-on-error", "3")


def assert_whole(rows: Rows, profile: str, rate_per_s: float, duration_s: float, seed: int = 1) -> None:
    """One record for each arrival that the profile draws, all sent and answered."""
    arrivals = draw(load_of(profile, rate_per_s, duration_s), seed)
    assert list(rows["number"]) == list(range(len(arrivals)))
    assert rows["intended_s"].tolist() == [arrival.at_s for arrival in arrivals]
    assert rows["key"].tolist() == [arrival.key for arrival in arrivals]
    assert set(rows["failure"]) == {Failure.NONE}
    assert set(rows["echo"]) == {Echo.OWN}
    assert (rows["sent_s"] >= rows["intended_s"]).all()
    assert len(set(rows["body_hash"])) == len(rows)  # every body holds its own tag


# --- one process --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--profile", "steddy"), "load profile 'steddy' is unknown; did you mean steady"),
        (("--rate", "0"), "'0': expected a number above 0"),
        (("--job", "/no/such/job.json"), "/no/such/job.json: cannot read the job"),
    ],
)
def test_an_invalid_option_is_one_line_and_exit_status_2(options: tuple[str, ...], message: str) -> None:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *HEADLESS, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_host_ends_the_run_with_an_error(tmp_path: Path) -> None:
    with locusts(tmp_path, alone=HEADLESS) as running:
        assert running["alone"].ends() == 1
        assert "--host is missing" in running["alone"].output


def test_more_requests_than_numbers_are_refused_before_they_are_drawn(tmp_path: Path) -> None:
    options = ("--rate", "1e9", "--duration", "1e9", "--host", "http://127.0.0.1:9")
    with locusts(tmp_path, alone=(*HEADLESS, *options)) as running:
        assert running["alone"].ends() == 1
        assert "expected less than 2097152; make it shorter" in running["alone"].output


PLANNED = """
import locust, sys
from types import SimpleNamespace
from harness.load.locust_engine.locustfile import _plan
from harness.scenario.model import SteelyardError

for line in sys.stdin:
    host, _, job = line.rstrip("\\n").partition(" ")
    options = SimpleNamespace(job=job, profile="trace:/no/such/trace" if host == "trace" else "steady", rate=50.0,
                              duration=2.0, seed=1, protocol="http", chats=0, think_time=1.0)
    try:
        plan = _plan(SimpleNamespace(parsed_options=options, host="" if host == "none" else host))
    except SteelyardError as error:
        print(error)
    else:
        print(plan.url, plan.profile, plan.seed, plan.protocol, round(plan.rate_per_s), plan.duration_s)
"""

JOB = LoadJob(
    load=Load((Stream("one", 0.0, 100.0, 60), Stream("two", 0.5, 40.0, 20, connections=Connections.ONE))),
    seed=11,
    nonce=3,
    url="http://127.0.0.1:9",
    start_s=12345.0,
    backends=("gpu-1", "gpu-0"),
    out="/no/such/folder/run.records",
    protocol="openai",
    worker=1,
    workers=2,
)


def test_an_invalid_option_is_one_line_and_a_job_names_its_target(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    JOB.write(job)
    http = "expected http://HOST:PORT"
    expected = {
        "none": "--host is missing: " + http,
        "127.0.0.1:80": f"--host '127.0.0.1:80': {http}",
        "localhost:80": f"--host 'localhost:80': {http}",
        "http://h:99999": f"--host 'http://h:99999': {http}",
        "http://h:80/?a=b": f"--host 'http://h:80/?a=b': {http}",
        "https://h:80": "--host 'https://h:80': https is not supported; give an http://HOST:PORT",
        "trace": "/no/such/trace: cannot read the trace",
        "http://h:80/path": "http://h:80/path steady 1 http 50 2.0",
        f"none {job}": f"http://127.0.0.1:9 job:{job} 11 openai 80 1.0",
        f"http://h:80 {job}": f"http://h:80 job:{job} 11 openai 80 1.0",
        f"http://h:80 {tmp_path}/none": f"{tmp_path}/none: cannot read the job",
    }
    command = [sys.executable, "-c", PLANNED]
    lines = "".join(f"{line}\n" for line in expected)
    done = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for printed, begin in zip(done.stdout.splitlines(), expected.values(), strict=True):
        assert printed.startswith(begin)


def test_a_form_that_a_protocol_lacks_ends_the_run_with_one_line(tmp_path: Path) -> None:
    options = ("--profile", "mixed", "--protocol", "chat", "--host", "http://127.0.0.1:9")
    with locusts(tmp_path, alone=(*HEADLESS, *options)) as running:
        assert running["alone"].ends() == 1
        assert "--profile mixed with --protocol chat: " in running["alone"].output
        assert "ValueError" not in running["alone"].output


@pytest.mark.slow
def test_the_job_of_a_live_run_is_sent_again(tmp_path: Path) -> None:
    job, out = tmp_path / "job.json", tmp_path / "job.records"
    with serving() as (url, _):
        replace(JOB, url=url, protocol="http").write(job)
        with locusts(tmp_path, alone=(*HEADLESS, "--job", str(job), "--records", str(out))) as running:
            assert running["alone"].ends() == 0, running["alone"].output
    rows, arrivals = read_requests(out), draw(JOB.load, JOB.seed)
    assert list(rows["number"]) == list(range(80))
    for name in ("stream", "key", "connection"):
        assert rows[name].tolist() == [getattr(arrival, name) for arrival in arrivals]
    assert rows["intended_s"].tolist() == [arrival.at_s for arrival in arrivals]
    assert set(rows["failure"]) == {Failure.NONE}
    assert read_about(out)["seed"] == 11


@pytest.mark.slow
def test_a_trace_is_replayed_from_its_file(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "trace.records"
    rows = "".join(f"{number * 0.02:.2f},llama-8b,{number + 1},4\n" for number in range(60))
    trace.write_text(f"time,model,input,output\n{rows}")
    options = ("--profile", f"trace:{trace}", "--rate", "50", "--duration", "1", "--records", str(out))
    with serving() as (url, _), locusts(tmp_path, alone=(*HEADLESS, *options, "--host", url)) as running:
        assert running["alone"].ends() == 0, running["alone"].output
    assert_whole(read_requests(out), f"trace:{trace}", 50.0, 1.0)
    assert len(read_requests(out)) == 50


@pytest.mark.slow
def test_every_arrival_has_a_record(tmp_path: Path) -> None:
    out = tmp_path / "by-hand.records"
    options = ("--profile", "spike", "--rate", "200", "--run-time", "2s", "--seed", "9", "--records", str(out))
    with serving() as (url, _), locusts(tmp_path, alone=(*HEADLESS, *options, "--host", url)) as running:
        assert running["alone"].ends() == 0, running["alone"].output
    assert_whole(read_requests(out), "spike", 200.0, 2.0, seed=9)
    about = read_about(out)
    assert (about["backends"], about["profile"], about["lost"], about["workers"]) == (["gpu-0"], "spike", 0, 1)


@pytest.mark.slow
def test_virtual_users_wait_for_their_answer_and_think(tmp_path: Path) -> None:
    out = tmp_path / "closed-loop.records"
    options = ("--chats", "5", "--think-time", "0.05", "--duration", "2", "--records", str(out))
    with serving() as (url, _), locusts(tmp_path, alone=(*HEADLESS, *options, "--host", url)) as running:
        assert running["alone"].ends() == 0, running["alone"].output
    rows = read_requests(out)
    assert list(rows["number"]) == list(range(len(rows)))
    assert set(rows["failure"]) == {Failure.NONE}
    assert len(rows) > 20
    assert rows["intended_s"].max() < 2.0
    changes = np.concatenate([np.ones(len(rows)), -np.ones(len(rows))])
    order = np.argsort(np.concatenate([rows["sent_s"], rows["end_s"]]), kind="stable")
    assert changes[order].cumsum().max() <= 5


@pytest.mark.slow
def test_the_page_shows_the_rate_and_starts_anew(tmp_path: Path) -> None:
    out, port = tmp_path / "page.records", free_port()
    options: tuple[str, ...] = ("--profile", "steady", "--rate", "300", "--duration", "60", "--records", str(out))
    options += ("--web-host", "127.0.0.1")
    page = Page(port)
    with serving() as (url, _), locusts(tmp_path, web=(*options, "--web-port", str(port), "--host", url)):
        until(lambda: answers(page), lambda: "no page")
        assert page.post("/swarm")["success"]
        until(lambda: page.total["num_requests"] > 1200, lambda: str(page.total))
        # A stall of the machine is over soon; a load that is not the profile's never gets there.
        until(lambda: abs(page.total["total_rps"] / 300.0 - 1.0) <= 0.05, lambda: str(page.total))
        total = page.total
        assert total["state"] == "running"
        assert total["user_count"] == 1
        assert total["num_failures"] == 0
        assert page.post("/stop")["success"]
        first = read_requests(out)
        sent = first[first["failure"] == Failure.NONE]
        assert len(first) == 18_000
        assert len(sent) >= total["num_requests"]
        # The page divides by the time since second 0 of the load, up to the answer that it counted last.
        took_s, last_s = total["num_requests"] / total["total_rps"], np.sort(sent["end_s"])[total["num_requests"] - 1]
        assert last_s / 2 < took_s < last_s + 0.2
        left = ~np.isnan(first["sent_s"])
        assert left[: left.sum()].all()
        assert set(first["failure"][~left]) == {Failure.NOT_SENT}
        out.unlink()
        assert page.post("/swarm", rate="200", duration="2")["success"]
        until(out.exists, lambda: str(page.total))
        until(lambda: page.total["state"] == "stopped", lambda: str(page.total))
        assert page.total["num_requests"] == 400
        assert_whole(read_requests(out), "steady", 200.0, 2.0)
        assert page.post("/swarm", profile="stedy")["success"]
        until(lambda: "stedy" in str(page.get("/exceptions")), lambda: str(page.get("/exceptions")))


def answers(page: Page) -> bool:
    try:
        return bool(page.total)
    except (urllib.error.URLError, OSError):
        return False


# --- distributed --------------------------------------------------------------------------------------------


def shared(port: int, url: str, *options: str) -> dict[str, tuple[str, ...]]:
    """Options of a master and two workers."""
    worker = ("--worker", "--master-port", str(port))
    bound = ("--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port), "--expect-workers", "2")
    return {"one": worker, "two": worker, "master": (*bound, *HEADLESS, *options, "--host", url)}


SERVICE_S = (0.01, 0.11, 0.21, 0.31)
"""Service times of the server; the tag of a request selects one."""

EARLY_S = 0.002
"""Upper bound of the time by which asyncio's timers may fire early."""


def assert_measured(path: Path) -> None:
    """Nine tenths of the requests were answered, and the times of each are its own.

    Noise of the machine only adds to a time, equally to long and short ones: no time may be less than the service time
    of its request, and the medians must be as far apart as the service times.
    """
    rows, nonce = read_requests(path), read_about(path)["nonce"]
    answered = rows[rows["failure"] == Failure.NONE]
    assert len(answered) >= 0.9 * len(rows), np.unique(rows["failure"], return_counts=True)
    assert set(answered["echo"]) == {Echo.OWN} and set(answered["status"]) == {200}
    assert len(set(answered["body_hash"])) == len(answered)  # every body holds its own tag
    tags = (f"sy-{tag_of(nonce, int(number)):013x}".encode() for number in answered["number"])
    chosen = np.array([zlib.crc32(tag) % len(SERVICE_S) for tag in tags])
    took_s, service_s = answered["end_s"] - answered["sent_s"], np.array(SERVICE_S)[chosen]
    assert (took_s >= service_s - EARLY_S).all()
    medians_s = np.array([np.median(took_s[chosen == number]) for number in range(len(SERVICE_S))])
    print(f"{len(answered)} of {len(rows)} answered, medians {medians_s.round(4)} s, late by", end=" ")
    print(np.quantile(answered["sent_s"] - answered["intended_s"], (0.5, 0.99)).round(4), "s")
    assert np.diff(medians_s) == pytest.approx(np.diff(SERVICE_S), abs=0.02)


@pytest.mark.slow
def test_two_workers_lose_none_of_50_000_records_and_measure_as_one_process_does(tmp_path: Path) -> None:
    out, alone = tmp_path / "shared.records", tmp_path / "alone.records"
    steady = ("--profile", "steady", "--records")
    with serving(*map(str, SERVICE_S)) as (url, _):
        shares = shared(free_port(), url, *steady, str(out), "--rate", "2500", "--duration", "20")
        with locusts(tmp_path, **shares) as running:
            status = running["master"].ends(120.0)
            assert [running[name].ends() for name in ("one", "two")] == [0, 0]
            output = running["master"].output
        rest = ("--rate", "1250", "--duration", "2", "--host", url)  # as much in a second as either worker
        with locusts(tmp_path, alone=(*HEADLESS, *steady, str(alone), *rest)) as running:
            assert running["alone"].ends() in (0, 3), running["alone"].output
    rows, arrivals = read_requests(out), draw(load_of("steady", 2500.0, 20.0), 1)
    assert list(rows["number"]) == list(range(50_000))
    assert rows["intended_s"].tolist() == [arrival.at_s for arrival in arrivals]
    assert rows["key"].tolist() == [arrival.key for arrival in arrivals]
    failed = ~np.isin(rows["failure"], (Failure.NONE, Failure.NOT_SENT))
    assert status == 0 or (status == 3 and failed.any()), output
    about = read_about(out)
    assert about["lost"] == 0
    assert [worker["rows"] for worker in about["players"]] == [25_000, 25_000]
    for path in (out, alone):
        assert_measured(path)


@pytest.mark.slow
def test_of_three_workers_one_dies_and_one_leaves_and_what_they_had_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "third.records"
    options = ("--profile", "steady", "--rate", "150", "--duration", "3", "--records", str(out))
    each = shared(free_port(), "", *options)
    with serving() as (url, _):
        each = {**each, "three": each["one"], "master": (*each["master"], "--host", url, "--expect-workers", "3")}
        with locusts(tmp_path, **each) as running:
            for name in ("one", "two"):
                running[name].wait_for_output("sending requests")
            time.sleep(1.2)
            running["one"].child.kill()
            running["two"].child.terminate()
            assert running["master"].ends() == 1
            output = running["master"].output
    assert "does not answer; the others continue" in output
    assert "left before the end and abandoned" in output
    assert "1 of 3 workers were lost" in output
    rows, about = read_requests(out), read_about(out)
    assert about["lost"] == 450 - len(rows)
    assert sorted(worker["rows"] for worker in about["players"])[1:] == [150, 150]  # all but the dead one's
    assert 0 < about["lost"] < 150
    unsent = rows[rows["failure"] == Failure.NOT_SENT]
    assert 0 < len(unsent) < 150
    assert len(set(unsent["number"] % 3)) == 1
    assert set(rows["failure"]) <= {Failure.NONE, Failure.NOT_SENT, Failure.OTHER}
