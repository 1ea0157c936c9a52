"""`steelyard up` as a process: it serves, `steelyard fault` controls it, and it cleans up."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from harness import cli
from harness.live.process.child import children_of
from harness.live.process.http import HttpResponse, call
from tests.harness.cli.test_commands import ROOT
from tests.harness.live.helpers import PATIENCE_S, Call, RawBackend, fine, free_ports, until
from tests.processes import runs, tree

START_S = 60.0
"""Timeout for the start of five to eight processes at once on a busy machine."""
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Tests run in the background of a shell ignore SIGINT, which children inherit."""
COMMAND = [sys.executable, "-c", f"{INTERRUPTIBLE}; from harness.cli import main; main()"]


class Said(NamedTuple):
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_command(folder: Path, *words: str) -> Said:
    """Run a command in this process (faster), with `folder` for temporary files."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["steelyard", *words])
        patch.setattr(tempfile, "tempdir", str(folder))
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Said(code, out.getvalue(), error.getvalue())


class Up:
    """A running `steelyard up`; `lines` is its output so far."""

    def __init__(self, folder: Path, *words: str) -> None:
        """Start it with these options; its temporary files go to `folder`."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "COLUMNS": "200"}
        self.folder = folder
        self.process = subprocess.Popen(
            [*COMMAND, "up", *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                self.lines.append(line.rstrip())

    def await_up(self) -> None:
        """Return when it has printed its first snapshot."""
        until(lambda: self.saw("s: backends") or self.process.poll() is not None, START_S)
        assert self.process.poll() is None, self.end()

    def saw(self, pattern: str) -> bool:
        """Whether a line of its output matches."""
        return any(re.search(pattern, line) for line in list(self.lines))

    def url(self, what: str) -> str:
        """One of the URLs of its first lines."""
        return next(line.split()[1] for line in self.lines if line.split()[:1] == [what])

    def fault(self, *words: str) -> Said:
        """Run `steelyard fault` for this environment."""
        return run_command(self.folder, "fault", *words)

    def ask(self, model: str = "m") -> HttpResponse:
        """Send a client request."""
        url = f"{self.url('balancer')}/v1/models/{model}/answer"
        return call("GET", url, headers={"x-model-id": model}, timeout_s=PATIENCE_S)

    def end(self, number: signal.Signals | None = None) -> str:
        """Send a signal and wait for its end; returns its standard error."""
        if number is not None:
            self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        return self.close()

    def close(self) -> str:
        """Close its pipes after its end; returns its standard error."""
        self._reader.join()
        if self.process.stderr is None or self.process.stderr.closed:
            return ""
        with self.process.stderr as said:
            return said.read()


@contextmanager
def up(folder: Path, *words: str) -> Iterator[Up]:
    """The ready command; killed at the end if it still runs."""
    running = Up(folder, "--backends", "2", *words)
    try:
        running.await_up()
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        running.close()


def left(folder: Path) -> list[Path]:
    """The remaining temporary files, except the (empty) folder of run locks."""
    return [path for path in folder.rglob("*") if path != folder / f"steelyard-{os.getuid()}"]


def gone(family: set[int]) -> bool:
    return not any(runs(pid) for pid in family)


@pytest.mark.slow
def test_nginx_from_start_to_ctrl_c(tmp_path: Path) -> None:
    with up(tmp_path, "--target", "nginx", "--rate", "20") as running:
        family = tree(running.process.pid)
        assert len(family) >= 6  # fleet with two backends, fault proxy, master and worker of nginx
        assert running.saw("^up: nginx 1.") and not running.saw("^  admin")
        assert running.saw("steelyard fault add gpu-1 latency --latency-ms 800 --for 10s")
        assert running.ask().status == 200
        for backend in ("gpu-0", "gpu-1"):
            done = running.fault("add", backend, "latency", "--latency-ms", "500")
            assert (done.returncode, done.stderr) == (0, "")
            assert re.fullmatch(rf"latency on {backend} in force after .*, until: .* latency\n", done.stdout)
        began_s = time.monotonic()
        assert running.ask().status == 200
        assert time.monotonic() - began_s >= 0.495
        until(lambda: running.saw("gpu-0 .*faulted: latency 500 ms.*gpu-1 .*faulted: latency 500 ms"))
        assert running.fault("clear").stdout.splitlines() == ["latency on gpu-0 cleared", "latency on gpu-1 cleared"]
        for backend in ("gpu-0", "gpu-1"):
            assert running.fault("add", backend, "kill").returncode == 0
        assert running.ask().status == 502  # refused at every backend
        until(lambda: running.saw("gpu-0 .*dead; faulted: kill"))
        assert running.end(signal.SIGINT) == ""
        assert running.process.returncode == 0
        assert running.lines[-1] == "stopping"
        assert gone(family) and left(tmp_path) == []


def test_a_part_that_dies_ends_it_with_one_line(tmp_path: Path) -> None:
    with up(tmp_path, "--rate", "0") as running:
        family = tree(running.process.pid)
        (balancer,) = (pid for pid in children_of(running.process.pid) if "harness.proxy.serve" in command(pid))
        os.kill(balancer, signal.SIGKILL)
        assert re.fullmatch(r"steelyard: error: the balancer ended: signal SIGKILL; .*\n", running.end())
        assert running.process.returncode == 1
        assert gone(family) and left(tmp_path) == []


def command(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline())


@pytest.mark.slow
def test_a_terminal_gets_the_live_view(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "COLUMNS": "120", "LINES": "40"}
    words = [*COMMAND, "up", "--backends", "1", "--seconds", "1.2", "--rate", "20", "--name", "seen"]
    with subprocess.Popen(
        words, cwd=ROOT, env={**environment, "TERM": "xterm"}, stdout=terminal, stderr=terminal
    ) as child:
        os.close(terminal)
        shown = b""
        while select.select([master], [], [], PATIENCE_S)[0]:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
        assert child.wait(PATIENCE_S) == 0
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "steelyard fault add --name seen gpu-0 latency" in text
    assert "seen from outside" in text and "in GPU memory" in text and "own load: " in text
    assert re.search(r"gpu-0 +100% █████ ", text)
    assert left(tmp_path) == []


def running_already(folder: Path, port: int) -> str:
    """Path of a claims file for an external balancer with three backends."""
    listen = ", ".join(f'"127.0.0.1:{number}"' for number in free_ports(3))
    file = folder / "gateway.toml"
    file.write_text(
        f'[balancer]\nname = "acme-gateway"\nurl = "http://127.0.0.1:{port}"\n[backends]\nlisten = [{listen}]\n'
        "[claims.failover]\nwithin_s = 0.5\n"
    )
    return str(file)


async def not_yet(call: Call) -> None:
    """Answer of a balancer without backends."""
    await call.answer(status="503 Service Unavailable")


@pytest.mark.slow
def test_a_file_says_how_many_backends_and_what_is_waited_for_is_said(tmp_path: Path) -> None:
    balancer = RawBackend(not_yet)
    running = Up(tmp_path, "--target", running_already(tmp_path, balancer.port), "--rate", "0")
    try:
        until(lambda: running.saw(f"^waiting for acme-gateway at http://127.0.0.1:{balancer.port}$"), START_S)
        balancer.behave = fine
        running.await_up()
        assert running.saw("^up: acme-gateway over 3 backends$")
        assert running.saw("gpu-2 0%, 0 in flight, idle")
        assert running.end(signal.SIGINT) == ""
    finally:
        running.process.kill()
        running.process.wait()
        running.close()
        balancer.close()


def test_other_numbers_of_backends_than_the_files_are_refused(tmp_path: Path) -> None:
    file = running_already(tmp_path, free_ports(1)[0])
    for number in ("2", "4"):
        done = run_command(tmp_path, "up", "--target", file, "--backends", number)
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == f"steelyard: error: --backends {number}: acme-gateway names 3 addresses; leave --backends out\n"
        )


def test_a_fault_proxy_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.live.faults.injector.START_S", 0.1)
        done = run_command(tmp_path, "up", "--toxiproxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("; start toxiproxy-server there, or leave --toxiproxy out\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "ngin"], "no target 'ngin'; did you mean nginx?"),
        (["--gpu", "h100-80g"], "--gpu h100-80g --model llama-8b: unknown gpu"),
        (["--toxiproxy", "elsewhere:1"], "--toxiproxy elsewhere:1: expected embedded, real"),
        (["--toxiproxy", "127.0.0.1:99999"], "--toxiproxy 127.0.0.1:99999: expected embedded, real"),
        (["--name", "a/b"], "--name 'a/b': expected"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    done = run_command(tmp_path, "up", *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("steelyard: error: ") and message in line
    assert left(tmp_path) == []


def test_help_names_every_option_whole(tmp_path: Path) -> None:
    message = run_command(tmp_path, "up", "--help").stdout
    for option in ("--target", "--backends", "--toxiproxy", "--gpu", "--model", "--rate", "--seconds", "--plain"):
        assert option in message
