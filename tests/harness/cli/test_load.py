"""`steelyard load` as a process of its own, against a small server: figures, exit codes, the file, Ctrl-C."""

from __future__ import annotations

import http.server
import json
import os
import re
import select
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
from harness.cli.load import _load, _seconds
from harness.cli.load_view import View, found_line, news_line, none_good_line, step_line, summary_lines
from harness.load.figures import figures_of
from harness.load.profiles import PROFILES
from harness.load.search import Search, Seen, Verdict, goal_of
from harness.load.thresholds import threshold_of
from harness.model import ClaimsError, Failure
from harness.records import read_requests
from tests.harness.load.rows import rows_of, unsent

ROOT = Path(__file__).parents[3]
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
    """The command in `folder`, where its file goes."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [*COMMAND, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONG_S)


def written(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "steelyard-load.json").read_text())
    return told


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
        assert "kept    errors > 1%: it is 0 %" in done.stdout
        assert "written to steelyard-load.json" in done.stdout
        told = written(tmp_path)
        assert (told["profile"], told["rate_per_s"], told["engine"], told["target"]) == ("spike", 40.0, engine, url)
        assert told["figures"]["good"] == len(rows) and not told["interrupted"]
        assert [item["broken"] for item in told["thresholds"]] == [False, False]
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
    assert "BROKEN  p50 > 1us: it is " in done.stdout
    told = written(tmp_path)
    assert told["figures"]["good"] == 20 and told["duration_s"] == pytest.approx(0.19)
    assert told["thresholds"][0]["broken"] is True


def test_a_trace_at_another_rate(tmp_path: Path) -> None:
    lines = [json.dumps({"timestamp": number * 10, "input_length": 10, "output_length": 4}) for number in range(50)]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    made, said = _load("poisson", tmp_path / "trace.jsonl", 10.0, None)
    assert sum(stream.requests for stream in made.streams) == 50
    assert said["duration_s"] == pytest.approx(5.0)


def test_ctrl_c_ends_the_sending_and_writes_what_was(url: str, tmp_path: Path) -> None:
    command = [*COMMAND, "--rate", "100", "--duration", "60", "--target", url, "--records", "all.bin"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background have SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as child:
        assert child.stderr
        guard = threading.Timer(LONG_S, child.kill)
        guard.start()
        while " ms  0 failed" not in child.stderr.readline() and child.poll() is None:
            continue
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate()
        guard.cancel()
    assert child.returncode == 130
    assert "interrupted: the figures are of what was sent" in out
    rows = read_requests(tmp_path / "all.bin")
    told = written(tmp_path)
    assert told["interrupted"] is True
    assert 0 < told["figures"]["sent"] < len(rows)
    assert (rows["failure"] == Failure.NOT_SENT).sum() == told["figures"]["not_sent"] > 3000


def test_a_search_and_its_file(url: str, tmp_path: Path) -> None:
    words = ("--search", "p50 <= 10s", "--from", "40", "--to", "80", "--duration", "1")
    done = load(tmp_path, *words, "--target", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "p50 <= 10s holds at 80/s; no rate up to 80/s was shown to break it" in done.stdout
    told = written(tmp_path)
    assert told["holds_per_s"] == 80.0 and told["broken_per_s"] is None
    assert [(item["rate_per_s"], item["verdict"]) for item in told["rates"]] == [(40.0, "holds"), (80.0, "holds")]


def test_a_search_in_words() -> None:
    def found(*seen: tuple[float, Verdict, str]) -> str:
        made = Search(goal_of(threshold_of("p99 <= 5ms")), 40.0, 80.0)
        made.seen = [Seen(rate, 100, 1, 1.0, verdict, why) for rate, verdict, why in seen]
        return found_line(made)

    holds, broken, unknown = Verdict.HOLDS, Verdict.BROKEN, Verdict.OPEN
    assert "is broken at 40/s already; begin lower with --from" in found((40.0, broken, ""))
    assert "could not be shown at 40/s" in found((40.0, unknown, ""))
    assert "holds at 40/s and is broken at 80/s" in found((40.0, holds, ""), (80.0, broken, ""))
    assert "above it late" in found((40.0, holds, ""), (80.0, unknown, "late"))
    assert "could not be decided at 40/s: 3 unsent; begin lower" in found((40.0, unknown, "3 unsent"))
    assert "not one limit" in found((80.0, holds, ""), (60.0, broken, ""))
    line = step_line(Seen(40.0, 2000, 3, 1.0, holds, ""))
    assert "40/s  holds" in line and "3 of 2,000 over the bound (0.15 %)" in line


def test_a_generator_that_is_late_itself_is_named_as_the_reason() -> None:
    search = Search(goal_of(threshold_of("p50 <= 1ms")), 40.0, 80.0)
    while (step := search.next_step()) is not None:
        search.tell(rows_of([0.002] * (step.requests + 40), step.rate_per_s))  # sent 1 ms late
    line = found_line(search)
    assert "p50 <= 1ms could not be decided at 40/s: the generator was 1 ms late itself; take a larger bound" in line
    assert "begin lower" not in line


def test_after_the_end_of_sending_it_says_what_it_waits_for() -> None:
    news: dict[str, Any] = {
        "at_s": 3.9,
        "sent": 89,
        "ended": 0,
        "dropped": 0,
        "failed": 0,
        "failed_now": 0,
        "per_s": 0.0,
    }
    news |= {"p50_s": None, "p99_s": None}
    assert news_line(news, 4.0) == "4/4 s  0/s  p50 -, p99 -  0 failed"
    assert news_line(news | {"at_s": 10.0}, 4.0).startswith("waiting for 89 answers  0/s  ")
    assert news_line(news | {"at_s": 10.0, "ended": 88}, 4.0).startswith("waiting for 1 answer  0/s  ")


def test_a_summary_tells_the_timeout_and_who_gave_up_on_purpose() -> None:
    rows = rows_of([0.01] * 4)
    rows["failure"][:2] = Failure.TIMEOUT
    first, _, timeout, errors, *_ = summary_lines(figures_of(rows, {0}), 2.5)
    assert first == "requests    4 sent, 2 good, 1 failed (25 %), 1 given up on purpose"
    assert timeout == "timeout     2.5 s is the longest that a client waits for its whole answer"
    assert errors == "errors      1 timeout"
    assert none_good_line(figures_of(rows[:2], {0}), 2.5) == (
        "no request was good: 1 timeout, 1 given up on purpose; to wait longer than 2.5 s, give --timeout"
    )
    assert none_good_line(figures_of(unsent(rows)), 2.5) == "no request was good: none was sent, of 4"


@pytest.fixture
def slow_url() -> Iterator[str]:
    """A server whose answers take a minute."""
    with subprocess.Popen([sys.executable, str(LEAN), "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lean:
        assert lean.stdout
        yield f"http://127.0.0.1:{int(lean.stdout.readline())}"
        lean.kill()


@pytest.mark.parametrize("engine", ["aiohttp", "locust"])
def test_no_good_request_is_exit_code_1_with_the_reason(slow_url: str, tmp_path: Path, engine: str) -> None:
    words = ("--profile", "steady", "--rate", "20", "--duration", "500ms", "--timeout", "1600ms")
    done = load(tmp_path, *words, "--engine", engine, "--target", slow_url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "10 sent, 0 good, 10 failed (100 %)" in done.stdout
    assert done.stdout.splitlines()[-1] == "no request was good: 10 timeout; to wait longer than 1.6 s, give --timeout"
    told = written(tmp_path)
    assert (told["duration_s"], told["timeout_s"], told["figures"]["errors"]) == (0.5, 1.6, {"timeout": 10})
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


@pytest.mark.parametrize(
    ("text", "value_s"), [("10", 10.0), ("0.5", 0.5), ("10s", 10.0), ("500ms", 0.5), (" 2m", 120.0), ("1e2", 100.0)]
)
def test_times_with_and_without_a_unit(text: str, value_s: float) -> None:
    assert _seconds("--duration", text) == pytest.approx(value_s)


def until_shown(terminal: int, text: str) -> str:
    """What a terminal was shown until `text` was."""
    shown = b""
    while text.encode() not in shown:
        assert select.select([terminal], [], [], LONG_S)[0], f"no {text!r} in {shown!r}"
        shown += os.read(terminal, 1 << 16)
    return shown.decode()


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    news = {"at_s": 5.0, "per_s": 199.6, "p50_s": 0.0051, "p99_s": 1.234, "failed": 12, "failed_now": 2, "dropped": 0}
    with os.fdopen(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with View("spike, 200/s for 10 s", 10.0) as view:
            view.look(0.2, None)
            view.look(5.0, news)
            view.look(5.3, None)  # between two pieces of news the last one stays
            shown = until_shown(master, "failed (+2)")
        with View("silent", 10.0) as view:
            view.look(12.0, None)
            shown += until_shown(master, "waiting for answers")
    os.close(master)
    assert "spike, 200/s for 10 s" in shown and "━" in shown
    assert "waiting for answers" in shown
    assert "5/10 s  200/s  p50 5.1 ms, p99 1.23 s  12 failed (+2)" in shown


def refused(folder: Path, *words: str) -> str:
    """The one line of an attempt that must end with exit code 2 and write nothing."""
    done = CliRunner().invoke(app, ["load", "--out", str(folder / "out.json"), *words])
    assert isinstance(done.exception, ClaimsError), (done.output, done.exception)
    assert not (folder / "out.json").exists() or not (folder / "out.json").read_text()
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_help_lists_the_profiles() -> None:
    done = CliRunner().invoke(app, ["load", "--profile", "help"])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()] == list(PROFILES)
    assert "A rush of five times the usual rate" in done.output


def test_nothing_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = load(tmp_path, "--target", nowhere)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("steelyard: ") and "no connection (Connection refused); nothing was sent" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--profile", "spyke"), "did you mean"),
        (("--fail-if", "p99 > 5"), "no unit"),
        (("--protocol", "grpc"), "--protocol 'grpc' is unknown"),
        (("--profile", "mixed", "--protocol", "openai"), "with --protocol openai: protocol openai knows POST"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--trace", "t.csv", "--profile", "spike"), "--trace t.csv says all that --profile spike would; leave one"),
        (("--rate", "0"), "expected a number above 0"),
        (("--duration", "0"), "--duration '0': expected a time above 0"),
        (("--duration", "nan"), "expected a time above 0"),
        (("--duration", "10x"), "or with its unit, as in 500ms"),
        (("--timeout", "-1"), "--timeout '-1': expected a time above 0"),
        (("--search", "p99 > 5ms"), "no upper bound"),
        (("--search", "p99 <= 5ms", "--from", "9", "--to", "3"), "the lower first"),
        (("--search", "p99 <= 5ms", "--rate", "3"), "leave out --rate"),
        (("--search", "p99 <= 5ms", "--profile", "spike"), "expected one of a constant rate"),
        (("--out", "no/such/folder/x.json"), "give a file that can be written"),
        (("--target", "https://127.0.0.1:1"), "expected http://HOST:PORT"),
        (("--target", "127.0.0.1:80"), "expected http://HOST:PORT"),
        (("--target", "http://127.0.0.1:99999"), "expected http://HOST:PORT"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    target = () if "--target" in words else ("--target", "http://127.0.0.1:9")
    assert told in refused(tmp_path, *words, *target)
