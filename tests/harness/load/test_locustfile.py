"""The locustfile as its users run it: by hand, with Locust's page, and distributed."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import numpy as np
import pytest

from harness.arrivals import draw
from harness.load.profiles import load_of
from harness.model import Echo, Failure
from harness.records import Rows, read_about, read_requests
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
    ("options", "told"),
    [
        (("--profile", "steddy"), "load profile 'steddy' is unknown; did you mean steady"),
        (("--rate", "0"), "'0': expected a number above 0"),
    ],
)
def test_a_bad_word_is_one_line_and_exit_status_2(options: tuple[str, ...], told: str) -> None:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *HEADLESS, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_host_ends_the_run_with_an_error(tmp_path: Path) -> None:
    with locusts(tmp_path, alone=HEADLESS) as running:
        assert running["alone"].ends() == 1
        assert "--host is missing" in running["alone"].said


def test_more_requests_than_numbers_are_refused_before_they_are_drawn(tmp_path: Path) -> None:
    options = ("--rate", "1e9", "--duration", "1e9", "--host", "http://127.0.0.1:9")
    with locusts(tmp_path, alone=(*HEADLESS, *options)) as running:
        assert running["alone"].ends() == 1
        assert "expected less than 2097152; make it shorter" in running["alone"].said


def test_by_hand_every_arrival_becomes_a_record(tmp_path: Path) -> None:
    out = tmp_path / "by-hand.records"
    options = ("--profile", "spike", "--rate", "200", "--run-time", "2s", "--seed", "9", "--records", str(out))
    with serving() as (url, _), locusts(tmp_path, alone=(*HEADLESS, *options, "--host", url)) as running:
        assert running["alone"].ends() == 0, running["alone"].said
    assert_whole(read_requests(out), "spike", 200.0, 2.0, seed=9)
    about = read_about(out)
    assert (about["backends"], about["profile"], about["lost"], about["workers"]) == (["gpu-0"], "spike", 0, 1)


def test_chats_wait_for_their_answer_and_think(tmp_path: Path) -> None:
    out = tmp_path / "chats.records"
    options = ("--chats", "5", "--think-time", "0.05", "--duration", "2", "--records", str(out))
    with serving() as (url, _), locusts(tmp_path, alone=(*HEADLESS, *options, "--host", url)) as running:
        assert running["alone"].ends() == 0, running["alone"].said
    rows = read_requests(out)
    assert list(rows["number"]) == list(range(len(rows)))
    assert set(rows["failure"]) == {Failure.NONE}
    assert len(rows) > 20
    assert rows["intended_s"].max() < 2.0
    changes = np.concatenate([np.ones(len(rows)), -np.ones(len(rows))])
    order = np.argsort(np.concatenate([rows["sent_s"], rows["end_s"]]), kind="stable")
    assert changes[order].cumsum().max() <= 5


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


SERVICE_S = ("0.01", "0.11", "0.21", "0.31")
"""The server keeps each request waiting for one of these, which one is chance."""


def histogram(rows: Rows) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], float]:
    """Shares of latencies by tenths of a second, and the share that the machine's noise may have moved.

    A latency is to be a little more than one of `SERVICE_S`; half a tenth more, and it may be in a wrong tenth.
    """
    latency_s = rows["end_s"] - rows["intended_s"]
    tenths = np.nan_to_num(latency_s * 10, nan=9.0)
    shares = np.bincount(np.minimum(tenths, 9).astype(int), minlength=10) / len(rows)
    late = ~(rows["sent_s"] - rows["intended_s"] <= 0.05) | ~((latency_s - 0.01) % 0.1 <= 0.05)
    return shares, float(np.mean(late))


def test_two_workers_lose_none_of_50_000_records_and_measure_the_same(tmp_path: Path) -> None:
    out, alone = tmp_path / "shared.records", tmp_path / "alone.records"
    options = ("--profile", "steady", "--rate", "4000", "--duration", "12.5", "--records", str(out))
    with serving(*SERVICE_S) as (url, _):
        with locusts(tmp_path, **shared(free_port(), url, *options)) as running:
            # 3: requests that a busy machine sent so late that the run was over; they have their records all the same.
            assert running["master"].ends(120.0) in (0, 3), running["master"].said
            assert [running[name].ends() for name in ("one", "two")] == [0, 0]
        rest = ("--profile", "steady", "--rate", "1000", "--duration", "2", "--records", str(alone), "--host", url)
        with locusts(tmp_path, alone=(*HEADLESS, *rest)) as running:
            assert running["alone"].ends() == 0, running["alone"].said
    rows, single = read_requests(out), read_requests(alone)
    assert list(rows["number"]) == list(range(50_000))
    about = read_about(out)
    assert about["lost"] == 0
    assert [player["rows"] for player in about["players"]] == [25_000, 25_000]
    (many, moved), (few, moved_alone) = histogram(rows), histogram(single)
    print("shares by 0.1 s", many[:6].round(3), few[:6].round(3), "late", moved, moved_alone)
    if set(rows["failure"]) == {Failure.NONE}:
        assert_whole(rows, "steady", 4000.0, 12.5)
    chance = 4.5 * float(np.sqrt(0.25 * 0.75 * (1 / len(rows) + 1 / len(single))))
    assert np.abs(many - few).max() <= chance + moved + moved_alone


def test_of_three_workers_one_dies_and_one_leaves_and_what_they_had_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "third.records"
    options = ("--profile", "steady", "--rate", "150", "--duration", "3", "--records", str(out))
    each = shared(free_port(), "", *options)
    with serving() as (url, _):
        each = {**each, "three": each["one"], "master": (*each["master"], "--host", url, "--expect-workers", "3")}
        with locusts(tmp_path, **each) as running:
            for name in ("one", "two"):
                running[name].says("plays")
            time.sleep(1.2)
            running["one"].child.kill()
            running["two"].child.terminate()
            assert running["master"].ends() == 1
            said = running["master"].said
    assert "does not answer any more" in said
    assert "left before the end and abandoned" in said
    assert "1 of 3 workers were lost" in said
    rows, about = read_requests(out), read_about(out)
    assert about["lost"] == 450 - len(rows)
    assert sorted(player["rows"] for player in about["players"])[1:] == [150, 150]  # all but the dead one's
    assert 0 < about["lost"] < 150
    unsent = rows[rows["failure"] == Failure.NOT_SENT]
    assert 0 < len(unsent) < 150
    assert len(set(unsent["number"] % 3)) == 1
    assert set(rows["failure"]) <= {Failure.NONE, Failure.NOT_SENT, Failure.OTHER}
