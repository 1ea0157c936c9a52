"""Coordinated omission: a server that stops for 2 s of 10 answers slowly for a fifth of its time.

A closed loop sends nothing while it waits, which hides the stop: each of its users has a single slow answer. An open
loop with latency from the intended time measures the waiting time of users; its expected value can be computed.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.records import read_about, read_requests
from harness.load.workloads.profiles import load_of
from harness.scenario.arrivals import draw
from tests.harness.load.locusts import Locust, serving

RATE, LENGTH_S, STILL_S = 100.0, 10.0, 2.0
PLAIN = Path(__file__).with_name("plain_locustfile.py")


def p99_s(folder: Path, name: str) -> float:
    """The 99th percentile in Locust's own statistics, in seconds."""
    (line,) = json.loads((folder / f"{name}.json").read_text())
    times = np.repeat(*(np.array(column) for column in zip(*line["response_times"].items(), strict=True)))
    return float(np.quantile(times.astype(float), 0.99)) / 1000.0


@pytest.mark.slow
def test_the_99th_percentile_of_a_server_that_stops_for_two_seconds(tmp_path: Path) -> None:
    out = tmp_path / "open.records"
    own = ("--profile", "steady", "--rate", f"{RATE:g}", "--duration", f"{LENGTH_S:g}", "--records", str(out))
    plain = ("--users", "4", "--spawn-rate", "4", "--run-time", f"{LENGTH_S:g}s")
    with serving() as (url, server):
        started = []
        try:
            for name, options in (("open", own), ("plain", plain)):
                common = ("--headless", "--only-summary", "--host", url, "--json-file", str(tmp_path / name))
                file = {"file": PLAIN} if name == "plain" else {}
                started.append(Locust(tmp_path, name, *common, *options, **file))
            started[0].wait_for_output("sending requests")
            time.sleep(4.0)
            server.send_signal(signal.SIGSTOP)
            stopped_s = time.time()
            time.sleep(STILL_S)
            server.send_signal(signal.SIGCONT)
            still_s = time.time() - stopped_s
            assert [locust.ends() for locust in started] == [0, 0], [locust.output for locust in started]
        finally:
            for locust in started:
                locust.close()
    due_s = np.array([arrival.at_s for arrival in draw(load_of("steady", RATE, LENGTH_S), 1)])
    wait_s = stopped_s - read_about(out)["began_unix_s"] + still_s - due_s
    expected_s = float(np.quantile(np.where((wait_s > 0) & (wait_s < still_s), wait_s, 0.0), 0.99))
    rows = read_requests(out)
    recorded_s = float(np.quantile(rows["end_s"] - rows["intended_s"], 0.99))
    locust_s, plain_s = p99_s(tmp_path, "open"), p99_s(tmp_path, "plain")
    print(f"p99: arithmetic {expected_s:.3f} s, records {recorded_s:.3f} s, Locust's page {locust_s:.3f} s, ", end="")
    print(f"plain Locust {plain_s:.3f} s")
    assert np.quantile(rows["sent_s"] - rows["intended_s"], 0.99) < STILL_S / 4  # it sent while it waited for answers
    assert recorded_s == pytest.approx(expected_s, rel=0.1)
    assert locust_s == pytest.approx(expected_s, rel=0.1)
    assert plain_s < expected_s / 4
