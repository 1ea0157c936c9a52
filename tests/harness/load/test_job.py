"""The job file; reading it must not import gevent or Locust."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.load.job import LoadJob, load_in, text_of
from harness.scenario.model import Connections, HarnessError, Keys, Kind, Load, Method, Stream

JOB = LoadJob(
    load=Load(
        (
            Stream("plain", 0.0, 100.0, 10),
            Stream(
                "other",
                1.5,
                200.0,
                20,
                keys=Keys(4, "zipf", 1.2),
                arrivals="poisson",
                kind=Kind.UPDATE,
                methods=(Method.POST, Method.GET),
                connections=Connections.ONE,
            ),
        ),
        key_carrier="json:session.id",
    ),
    seed=7,
    nonce=12345,
    url="http://127.0.0.1:8080",
    start_s=1234.5678901234567,
    backends=("gpu-0", "gpu-1"),
    out="run.records",
    protocol="http",
)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    JOB.write(tmp_path / "job.json")
    again = LoadJob.read(tmp_path / "job.json")
    assert again == JOB
    stream = again.load.streams[1]
    assert isinstance(stream.kind, Kind) and isinstance(stream.connections, Connections)
    assert all(isinstance(method, Method) for method in stream.methods)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="cannot read the job") as caught:
        LoadJob.read(tmp_path / "job.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "many"}, "seed: saw 'many', expected a whole number"),
        ({"load": {"streams": [{"name": "x"}]}}, "load.streams[0].start_s is missing; expected a number"),
        ({"workers": 0}, "workers: saw 0, expected a whole number of at least 1"),
        ({"nonce": 1 << 31}, "nonce: saw 2147483648, expected a whole number of at least 0 and below 2147483648"),
        ({"url": "gpu:80"}, "url: saw 'gpu:80', expected http://HOST:PORT"),
        ({"protocol": "htp"}, "protocol: saw 'htp'; did you mean http"),
        ({"backends": 3}, "backends: saw 3, expected a list"),
        ({"sed": 3}, "sed is unknown; did you mean seed"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "job.json"
    JOB.write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(HarnessError, match=re.escape(f"not a job of the load process: {message}")) as caught:
        LoadJob.read(path)
    assert "\n" not in str(caught.value)


def test_not_json_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{\n")
    with pytest.raises(HarnessError, match="not a job") as caught:
        LoadJob.read(tmp_path / "job.json")
    assert "\n" not in str(caught.value)


def test_the_job_imports_neither_gevent_nor_locust() -> None:
    program = """
import sys
import harness.load, harness.load.job, harness.load.wire
sys.exit(", ".join({"gevent", "locust", "geventhttpclient"} & set(sys.modules)) or 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])


def test_the_page_shows_how_to_write_the_job_of_a_property(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "load.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    job = LoadJob.read(tmp_path / "job.json")
    assert len(job.load.streams) == 3
    assert load_in(text_of(job.load)) == job.load
