import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from mockgpu.api.tags import tag_of
from mockgpu.faults.kinds import KINDS
from mockgpu.server.attempt_log import LogRow, RowKind, RowOutcome, read_rows
from tests.processes import runs

NONCE = 9
SERVE = [sys.executable, "-m", "mockgpu", "serve", "--gpu", "tiny", "--model", "tiny"]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def call(port: int, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"x-mock-token": token} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s, "timed out"
        time.sleep(0.005)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Running:
    """A fleet in its own process, as its ready line describes it."""

    process: subprocess.Popen[str]
    ports: list[int]
    pids: list[int]
    control: int
    folder: Path

    def complete(self, backend: int = 0, number: int = 1, **fields: Any) -> dict[str, Any]:
        body = {"model": "m", "prompt": "a b", "max_tokens": 2, "seed": tag_of(NONCE, number)} | fields
        status, answer = call(self.ports[backend], "POST", "/v1/completions", body)
        assert status == 200
        data: dict[str, Any] = json.loads(answer)
        return data

    def step(self, path: str, body: Any = None) -> int:
        return call(self.control, "POST", path, body)[0]

    def rows(self, backend: int) -> list[LogRow]:
        status, data = call(self.control, "GET", f"/fleet/gpu-{backend}/log")
        assert status == 200
        return [row for row in read_rows(data) if row.kind in (RowKind.INFERENCE, RowKind.FOREIGN)]

    def states(self) -> list[str]:
        return [each["state"] for each in json.loads(call(self.control, "GET", "/fleet")[1])]


@contextlib.contextmanager
def fleet(tmp_path: Path, *options: str, backends: int = 2) -> Iterator[Running]:
    ports = free_ports(backends)
    command = [*SERVE, "--ports", ",".join(map(str, ports)), "--nonce", str(NONCE), *options]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    pids: list[int] = []
    try:
        word, _, data = process.stdout.readline().partition(" ")
        assert word == "ready"
        ready = json.loads(data)
        pids = [each["pid"] for each in ready["backends"]]
        assert [each["id"] for each in ready["backends"]] == [f"gpu-{n}" for n in range(backends)]
        assert [each["port"] for each in ready["backends"]] == ports
        yield Running(process, ports, pids, ready["control_port"], tmp_path)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        until(lambda: not any(runs(pid) for pid in pids))


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_all_backends_serve_and_are_reset_together(tmp_path: Path, options: tuple[str, ...]) -> None:
    with fleet(tmp_path, *options) as it:
        for backend in range(2):
            assert it.complete(backend)["backend"] == f"gpu-{backend}"
            assert [row.kind for row in it.rows(backend)] == [RowKind.INFERENCE]
            status, later = call(it.control, "GET", f"/fleet/gpu-{backend}/log?first=1000")
            assert (status, read_rows(later)) == (200, [])
            assert call(it.control, "GET", f"/fleet/gpu-{backend}/log?first=-1")[0] == 400
        assert it.states() == ["alive", "alive"]
        assert it.step("/fleet/reset", {"nonce": NONCE + 1}) == 200
        for backend in range(2):
            assert it.rows(backend) == []
            it.complete(backend)
            assert [row.kind for row in it.rows(backend)] == [RowKind.FOREIGN]
        assert call(it.control, "GET", "/fleet/ping") == (200, b"{}")
        assert it.step("/fleet/reset", {"nonce": -1}) == 400
        assert it.step("/fleet/gpu-7/kill") == 404


def test_a_fleet_of_one_process_kills_nothing(tmp_path: Path) -> None:
    with fleet(tmp_path) as it:
        assert it.step("/fleet/gpu-0/kill") == 409
        assert it.step("/fleet/gpu-0/pause") == 409
        assert it.step("/fleet/gpu-0/resume") == 409
        assert it.states() == ["alive", "alive"]
        assert it.pids == [it.process.pid] * 2


def test_kill_and_restart(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes") as it, ThreadPoolExecutor() as pool:
        it.complete(0, number=1)
        cut = pool.submit(it.complete, 0, number=2, max_tokens=1_000_000)
        until(lambda: len(it.rows(0)) == 2)
        assert it.step("/fleet/gpu-0/kill") == 200
        # Reaped before the answer: the port is free.
        assert not psutil.pid_exists(it.pids[0])
        assert not accepts(it.ports[0])
        assert isinstance(cut.exception(20), OSError)
        assert it.states() == ["dead", "alive"]
        assert it.step("/fleet/gpu-0/kill") == 409
        assert [row.outcome for row in it.rows(0)] == [RowOutcome.ANSWERED, RowOutcome.OPEN]

        assert it.step("/fleet/gpu-0/restart") == 200
        assert accepts(it.ports[0])
        assert it.states() == ["alive", "alive"]
        it.complete(0, number=3)
        # A client may receive its answer shortly before the row is complete.
        until(lambda: it.rows(0)[-1].outcome is RowOutcome.ANSWERED)
        rows = it.rows(0)
        assert [row.tag for row in rows] == [tag_of(NONCE, number) for number in (1, 2, 3)]
        assert [row.outcome for row in rows] == [RowOutcome.ANSWERED, RowOutcome.OPEN, RowOutcome.ANSWERED]
        assert {row.kind for row in rows} == {RowKind.INFERENCE}
        assert rows[2].cold == 1

        assert it.step("/fleet/reset", {"nonce": NONCE}) == 200
        assert it.rows(0) == []
        # A living process is replaced.
        assert it.step("/fleet/gpu-1/restart") == 200
        assert not runs(it.pids[1])
        assert it.complete(1)["backend"] == "gpu-1"


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_faults_are_passed_on_to_the_backend(tmp_path: Path, options: tuple[str, ...]) -> None:
    def faults(it: Running, backend: int) -> list[tuple[str, int]]:
        status, data = call(it.control, "GET", f"/fleet/gpu-{backend}/faults")
        assert status == 200
        return [(each["kind"], each["hits"]) for each in json.loads(data)["faults"]]

    with fleet(tmp_path, *options) as it:
        change = {"set": [{"kind": "status", "status": 500, "first": 1}, {"kind": "slow", "factor": 2}]}
        status, data = call(it.control, "POST", "/fleet/gpu-0/faults", change)
        assert (status, [each["kind"] for each in json.loads(data)["faults"]]) == (200, ["status", "slow"])
        assert call(it.ports[0], "POST", "/v1/completions", {"max_tokens": 1})[0] == 500
        it.complete(0)
        it.complete(1)
        assert faults(it, 0) == [("status", 1), ("slow", 1)]
        assert faults(it, 1) == []
        assert call(it.control, "POST", "/fleet/gpu-0/faults", {"clear": ["slow"]})[0] == 200
        assert faults(it, 0) == [("status", 1)]
        status, data = call(it.control, "POST", "/fleet/gpu-0/faults", {"set": [{"kind": "melt"}]})
        assert (status, json.loads(data)["error"]) == (
            400,
            f"unknown fault 'melt', expected one of: {', '.join(KINDS)}",
        )
        assert it.step("/fleet/gpu-7/faults", change) == 404
        assert it.step("/fleet/reset", {"nonce": NONCE}) == 200
        assert faults(it, 0) == []


def test_faults_end_with_their_process(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes", backends=1) as it:
        change = {"set": [{"kind": "status", "status": 500}]}
        assert it.step("/fleet/gpu-0/faults", change) == 200
        assert it.step("/fleet/gpu-0/kill") == 200
        assert it.step("/fleet/gpu-0/faults", change) == 409
        assert call(it.control, "POST", "/fleet/gpu-0/faults", {"clear": "all"}) == (200, b'{"faults": []}')
        assert it.step("/fleet/gpu-0/restart") == 200
        assert call(it.control, "GET", "/fleet/gpu-0/faults") == (200, b'{"faults": []}')
        it.complete(0)


def test_a_kill_from_outside_shows_and_a_reset_reaches_the_next_life(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes") as it:
        it.complete(0)
        os.kill(it.pids[0], signal.SIGKILL)
        until(lambda: it.states() == ["dead", "alive"])
        assert [row.tag for row in it.rows(0)] == [tag_of(NONCE, 1)]
        assert it.step("/fleet/reset", {"nonce": NONCE + 1}) == 200
        assert it.rows(0) == []
        assert it.step("/fleet/gpu-0/restart") == 200
        it.complete(0)
        assert [row.kind for row in it.rows(0)] == [RowKind.FOREIGN]


def test_the_token_guards_every_control_port(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes", "--token", "t0ken", backends=1) as it:
        assert call(it.control, "GET", "/fleet")[0] == 403
        assert call(it.control, "GET", "/fleet", token="t0ken")[0] == 200  # noqa: S106
        assert call(it.ports[0], "GET", "/mock/ping")[0] == 403
        assert call(it.ports[0], "GET", "/mock/ping", token="t0ken")[0] == 200  # noqa: S106
        # Process lists do not show the token.
        assert "t0ken" not in " ".join(psutil.Process(it.pids[0]).cmdline())


def test_an_interrupt_ends_all_with_exit_code_0_as_sigterm_does(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes") as it:
        it.process.send_signal(signal.SIGINT)
        assert it.process.wait(20) == 0
        assert not any(runs(pid) for pid in it.pids)
        assert list(tmp_path.iterdir()) == []


def test_no_child_survives_a_fleet_that_is_killed(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes") as it:
        os.kill(it.pids[1], signal.SIGSTOP)  # not even a stopped one
        it.process.kill()
        it.process.wait()
        until(lambda: not any(runs(pid) for pid in it.pids))


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_with_parent_nothing_survives_the_parent(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = [*SERVE, "--ports", str(free_ports(1)[0]), "--with-parent", *options]
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(sys.argv[1:]); time.sleep(60)"  # ends only when killed
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    try:
        ready = json.loads(parent.stdout.readline().removeprefix("ready "))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    pids = [ready["pid"], *(each["pid"] for each in ready["backends"])]
    until(lambda: not any(runs(pid) for pid in pids))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path, options: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = f"{free_ports(1)[0]},{port}"
        done = subprocess.run(
            [*SERVE, "--ports", ports, *options],
            capture_output=True,
            text=True,
            timeout=30,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert f"port {port} on 127.0.0.1 is taken" in line
    assert "loads when" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "message"),
    [("nohost.invalid", "host nohost.invalid is not known here"), ("192.0.2.7", "host 192.0.2.7 is not an address of")],
)
def test_a_host_that_is_none_is_named(host: str, message: str) -> None:
    done = subprocess.run([*SERVE, "--host", host, "--port", "29201"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mockgpu: error: {message}") and "port" not in line


def test_long_loads_are_told_once_it_listens() -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mockgpu", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        assert served.stdout and served.stdout.readline().startswith("ready ")
        served.terminate()
        _, error = served.communicate(timeout=60)
    (line,) = error.splitlines()
    assert line.startswith("mockgpu: a model loads on its first request") and "llama-8b 14 s" in line
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and f"port {port} on 127.0.0.1 is taken" in line
