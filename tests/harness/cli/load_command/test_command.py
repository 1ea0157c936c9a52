"""`steelyard load` as a process, against a small server: figures, exit codes, the file, Ctrl-C."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.cli.load_command.command import _replay
from harness.evidence.records import Rows, read_about, read_requests
from harness.live.load import ad_hoc as load_run
from harness.live.load.ad_hoc import Played
from harness.scenario.model import ClaimsError, Failure
from tests.harness.load.rows import rows_of

ROOT = Path(__file__).parents[4]
LEAN = ROOT / "tests" / "harness" / "load" / "lean_server.py"
COMMAND = [sys.executable, "-c", "from harness.cli import main; main()", "load"]
LONG_S = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(LEAN)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lean:
        assert lean.stdout
        yield f"http://127.0.0.1:{int(lean.stdout.readline())}"
        lean.communicate()


def load(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`, where it writes its file."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [*COMMAND, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONG_S)


def written(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "steelyard-load.json").read_text())
    return summary


@pytest.mark.slow
def test_both_engines_play_the_same_load_and_write_the_same_files(url: str, tmp_path: Path) -> None:
    found = {}
    for engine in ("aiohttp", "locust"):
        options = ("--profile", "spike", "--rate", "40", "--duration", "2.4", "--seed", "5", "--records", "all.bin")
        bounds = ("--fail-if", "errors > 1%", "--fail-if", "p99 > 30s")
        done = load(tmp_path, *options, *bounds, "--engine", engine, "--target", url)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = found[engine] = read_requests(tmp_path / "all.bin")
        assert 50 < len(rows) < 150
        assert set(rows["failure"]) == {Failure.NONE}
        assert f"{len(rows):,} sent, {len(rows):,} good, 0 failed" in done.stdout
        assert "ok        errors > 1%: it is 0 %" in done.stdout
        assert "written to steelyard-load.json" in done.stdout
        summary = written(tmp_path)
        assert (summary["profile"], summary["rate_per_s"], summary["engine"], summary["target"]) == (
            "spike",
            40.0,
            engine,
            url,
        )
        assert summary["figures"]["good"] == len(rows) and not summary["interrupted"]
        assert [item["broken"] for item in summary["thresholds"]] == [False, False]
        about = read_about(tmp_path / "all.bin")
        assert about["backends"] == ["gpu-0"] and set(rows["answered_by"]) == {0}
        kept = {name: about[name] for name in ("url", "profile", "seed", "engine", "rate_per_s", "protocol")}
        assert kept == {
            "url": url, "profile": "spike", "seed": 5, "engine": engine, "rate_per_s": 40.0, "protocol": "http",
        }  # fmt: skip
        assert done.stderr.splitlines()[0] == "spike, 40/s for 2.4 s"
        if engine == "aiohttp":
            line = r"^[12]/2 s  \d+/s  p50 .* ms, p99 .* ms  0 failed$"
            assert re.search(line, done.stderr, re.MULTILINE), done.stderr
    for column in ("number", "intended_s", "key", "kind", "method", "status", "echo", "failure", "stream"):
        assert (found["aiohttp"][column] == found["locust"][column]).all(), column


def test_a_trace_is_replayed_and_a_broken_threshold_is_exit_code_1(url: str, tmp_path: Path) -> None:
    lines = [json.dumps({"timestamp": number * 10, "input_length": 10, "output_length": 4}) for number in range(50)]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    done = load(tmp_path, "--trace", "trace.jsonl", "--duration", "0.2", "--target", url, "--fail-if", "p50 > 1us")
    assert done.returncode == 1, done.stderr
    assert "FAILED    p50 > 1us: it is " in done.stdout
    summary = written(tmp_path)
    assert summary["figures"]["good"] == 20 and summary["duration_s"] == pytest.approx(0.19)
    assert summary["thresholds"][0]["broken"] is True


def test_a_trace_at_another_rate_or_with_more_of_it(tmp_path: Path) -> None:
    rows = [f"{number * 10},{100 + number},4" for number in range(50)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["sent_at,input,output", *rows]))
    columns = {"time": "sent_at"}
    made, info = _replay(trace, columns, "ms", None, 10.0, None, 1)
    assert sum(stream.requests for stream in made.streams) == 50
    assert info["duration_s"] == pytest.approx(5.0)
    made, info = _replay(trace, columns, None, None, None, None, 1)
    assert info["duration_s"] == pytest.approx(490.0), "numbers without a unit are seconds"
    made, info = _replay(trace, columns, "ms", 3.0, None, None, 1)
    assert sum(stream.requests for stream in made.streams) == 150
    assert (info["duration_s"], info["scale"]) == (pytest.approx(0.49, abs=0.01), 3.0)
    fewer = [_replay(trace, columns, "ms", 0.4, None, None, seed)[0].streams[0].requests for seed in range(8)]
    assert 5 < min(fewer) < max(fewer) < 40, "the seed says which are left out"
    with pytest.raises(ClaimsError, match="no request left"):
        _replay(trace, columns, "ms", 1e-6, 5.0, None, 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_end_the_sending_and_write_what_was(
    url: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [*COMMAND, "--rate", "100", "--duration", "60", "--target", url, "--records", "all.bin"]
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests run in the background ignore SIGINT, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as child:
        assert child.stderr
        guard = threading.Timer(LONG_S, child.kill)
        guard.start()
        while " ms  0 failed" not in child.stderr.readline() and child.poll() is None:
            continue
        assert list((tmp_path / "tmp").iterdir())
        child.send_signal(number)
        out, _ = child.communicate()
        guard.cancel()
    assert child.returncode == code
    assert "interrupted: the figures cover the requests sent" in out
    assert not list((tmp_path / "tmp").iterdir()), "nothing is left behind"
    rows = read_requests(tmp_path / "all.bin")
    summary = written(tmp_path)
    assert summary["interrupted"] is True
    assert 0 < summary["figures"]["sent"] < len(rows)
    assert (rows["failure"] == Failure.NOT_SENT).sum() == summary["figures"]["not_sent"] > 3000


@pytest.mark.slow
def test_a_search_and_its_file(url: str, tmp_path: Path) -> None:
    words = ("--search", "p50 <= 10s", "--from", "40", "--to", "80", "--duration", "1")
    done = load(tmp_path, *words, "--target", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "p50 <= 10s holds at 80/s; no rate up to 80/s was shown to break it" in done.stdout
    summary = written(tmp_path)
    assert summary["holds_per_s"] == 80.0 and summary["broken_per_s"] is None
    assert [(item["rate_per_s"], item["verdict"]) for item in summary["rates"]] == [(40.0, "holds"), (80.0, "holds")]


@pytest.fixture
def slow_url() -> Iterator[str]:
    """A server whose answers take a minute."""
    with subprocess.Popen([sys.executable, str(LEAN), "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lean:
        assert lean.stdout
        yield f"http://127.0.0.1:{int(lean.stdout.readline())}"
        lean.kill()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["aiohttp", "locust"])
def test_no_good_request_is_exit_code_1_with_the_reason(slow_url: str, tmp_path: Path, engine: str) -> None:
    words = ("--profile", "steady", "--rate", "20", "--duration", "500ms", "--timeout", "1600ms")
    done = load(tmp_path, *words, "--engine", engine, "--target", slow_url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "10 sent, 0 good, 10 failed (100 %)" in done.stdout
    assert done.stdout.splitlines()[-1] == "no request was good: 10 timeout; to wait longer than 1.6 s, give --timeout"
    summary = written(tmp_path)
    assert (summary["duration_s"], summary["timeout_s"], summary["figures"]["errors"]) == (0.5, 1.6, {"timeout": 10})
    if engine == "aiohttp":
        assert "\nwaiting for 10 answers  0/s" in done.stderr


@pytest.mark.parametrize("engine", ["aiohttp", "locust"])
def test_the_path_of_a_target_is_put_before_each_request(tmp_path: Path, engine: str) -> None:
    paths = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        words = ("--protocol", "openai", "--rate", "20", "--duration", "0.5", "--engine", engine)
        done = load(tmp_path, *words, "--target", f"http://127.0.0.1:{server.server_port}/some/where/")
        server.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(paths) > 2 and set(paths) == {"/some/where/v1/completions"}


# --- the generator delay ----------------------------------------------------------------------------------


def delayed(by_s: float, service_s: float) -> Rows:
    """Requests of one second that were sent too late, and answered quickly."""
    rows = rows_of([by_s + service_s] * 100)
    rows["sent_s"] = rows["intended_s"] + by_s
    return rows


def played(
    monkeypatch: pytest.MonkeyPatch, folder: Path, rows: Rows, *words: str, interrupted: int = 0
) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and summary of a load with the records `rows`."""

    class Generating:
        def play(self, *_: object) -> Played:
            return Played(rows, {"backends": [], "leaving": [], "nonce": 1, "began_unix_s": 0.0}, interrupted)

    @contextlib.contextmanager
    def generator(engine: str) -> Iterator[Generating]:
        yield Generating()

    monkeypatch.setattr(load_run, "generator", generator)
    monkeypatch.setattr(load_run, "check_reachable", lambda url: None)
    out = folder / "steelyard-load.json"
    done = CliRunner().invoke(app, ["load", "--out", str(out), "--target", "http://127.0.0.1:9", *words])
    return done.exit_code, done.output, json.loads(out.read_text())


def test_a_condition_that_only_our_own_lateness_breaks_is_not_the_targets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("--fail-if", "p99 > 500ms", "--fail-if", "throughput < 50/s", "--fail-if", "errors > 1%")
    code, shown, summary = played(monkeypatch, tmp_path, delayed(3.0, 0.009), *words)
    assert code == 2
    assert "WARNING     generator delay, not the target: 3.00 s of 3.01 s latency at p99; service 9 ms" in shown
    assert "UNDECIDED p99 > 500ms: it is 3009 ms, but 9 ms without the generator delay" in shown
    assert "UNDECIDED throughput < 50/s: it is 25.01/s, but 100.1/s without" in shown
    assert "ok        errors > 1%: it is 0 %" in shown
    assert "'p99 > 500ms' and 'throughput < 50/s' could not be judged because of the generator delay" in shown
    assert summary["figures"]["generator_late"] is True
    assert [item["only_generator_late"] for item in summary["thresholds"]] == [True, True, False]
    assert [item["broken"] for item in summary["thresholds"]] == [False] * 3
    assert summary["thresholds"][0]["value_on_time"] == pytest.approx(0.009)


def test_a_condition_that_the_target_breaks_is_exit_code_1_however_late_we_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("--fail-if", "p99 > 500ms", "--fail-if", "ttft p50 > 1s")
    code, shown, summary = played(monkeypatch, tmp_path, delayed(2.0, 0.6), *words)
    assert code == 1
    assert "FAILED    p99 > 500ms: it is 2600 ms" in shown
    assert "UNDECIDED ttft p50 > 1s" in shown and "could not be judged" not in shown
    assert [item["broken"] for item in summary["thresholds"]] == [True, False]


def test_who_asks_for_the_lateness_gets_it_and_a_small_one_is_not_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, shown, summary = played(monkeypatch, tmp_path, delayed(0.01, 0.1), "--fail-if", "lateness p99 > 5ms")
    assert code == 1
    assert (
        "FAILED    generator-delay p99 > 5ms: it is 10 ms" in shown and "UNDECIDED" not in shown and "WARN" not in shown
    )
    assert summary["figures"]["generator_late"] is False
    assert played(monkeypatch, tmp_path, delayed(0.01, 0.1), "--fail-if", "p99 > 500ms")[0] == 0


# --- the closed loop --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["aiohttp", "locust"])
def test_chats_are_a_closed_loop_and_say_so(tmp_path: Path, engine: str) -> None:
    with subprocess.Popen([sys.executable, str(LEAN), "0.8"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lean:
        assert lean.stdout
        url = f"http://127.0.0.1:{int(lean.stdout.readline())}"
        words = ("--chats", "40", "--think-time", "0", "--duration", "1", "--profile", "mixed", "--seed", "18")
        done = load(tmp_path, *words, "--records", "all.bin", "--engine", engine, "--target", url)
        lean.communicate()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines()[0] == "mixed, 40 virtual users, think time 0 s, for 1 s"
    assert "\nclosed loop 40 virtual users, think time 0 s on average; latency counts from intended" in done.stdout
    assert re.search(r"^throughput  [\d.]+ good answers/s$", done.stdout, re.MULTILINE), done.stdout
    summary, rows = written(tmp_path), read_requests(tmp_path / "all.bin")
    assert (summary["chats"], summary["think_s"], summary["duration_s"]) == (40, 0.0, 1.0)
    assert summary["figures"]["offered_per_s"] is None and "rate_per_s" not in summary
    assert (rows["intended_s"] < 0.01).sum() == 40 and rows["intended_s"].max() < 1.0
    # Clients that give up on purpose are known, though their numbers are assigned during the run.
    assert summary["figures"]["given_up"] == (rows["failure"] == Failure.TIMEOUT).sum() > 0
    assert summary["figures"]["failed"] == 0


def test_a_search_that_is_interrupted_judges_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("--search", "p99 <= 1s")
    code, shown, summary = played(monkeypatch, tmp_path, delayed(0.001, 0.009), *words, interrupted=signal.SIGTERM)
    assert code == 143
    assert shown.splitlines()[-1] == "interrupted: the search is incomplete" and "begin lower" not in shown
    assert summary["interrupted"] is True and summary["rates"] == []


def test_nothing_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = load(tmp_path, "--target", nowhere)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("steelyard: error: ") and "no connection (Connection refused); nothing was sent" in line
    assert not list(tmp_path.iterdir()), "nothing was made"
