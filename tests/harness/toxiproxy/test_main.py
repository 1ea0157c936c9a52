"""The process: start, reported address, and exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.toxiproxy.client import FaultProxy
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import ServerProcess

COMMAND = [sys.executable, "-m", "harness.toxiproxy"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """Run a process that is expected to exit by itself."""
    return subprocess.run(
        [*COMMAND, *options], cwd=rig.ROOT, capture_output=True, text=True, timeout=rig.LONG_S, check=False
    )


def test_a_taken_port_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("--port", str(port))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("steelyard: error: ")
    assert f"127.0.0.1:{port}" in line
    assert "address already in use" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_even_with_live_connections(number: signal.Signals) -> None:
    backend = rig.Backend(rig.echo)
    with ServerProcess() as server:
        created = FaultProxy("127.0.0.1", server.port).create("p", "", f"127.0.0.1:{backend.port}")
        with rig.connect(int(created.listen.rpartition(":")[2])) as client:
            rig.round_trip_s(client)
            server.process.send_signal(number)
            assert server.process.wait(rig.LONG_S) == 0
            assert rig.read_to_end(client) == (b"", "EOF")
    backend.close()


def test_a_configuration_file_is_populated(tmp_path: Path) -> None:
    config = tmp_path / "proxies.json"
    config.write_text(json.dumps([{"name": "a", "upstream": "127.0.0.1:1"}]))
    with ServerProcess("--config", str(config)) as server:
        assert FaultProxy("127.0.0.1", server.port).proxy("a").enabled


@pytest.mark.parametrize("content", [None, "{", '[{"name": "a"}]', '[{"name": "a", "upstream": "u", "listen": "x"}]'])
def test_a_bad_configuration_file_is_one_line_and_exit_code_2(tmp_path: Path, content: str | None) -> None:
    config = tmp_path / "proxies.json"
    if content is not None:
        config.write_text(content)
    result = run("--port", "0", "--config", str(config))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("steelyard: error: ")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG")
def test_it_exits_with_its_parent() -> None:
    parent_code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen({[*COMMAND, '--port', '0', '--with-parent']!r}, stdout=subprocess.PIPE)\n"
        "print(child.pid, child.stdout.readline().decode().split()[1], flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], cwd=rig.ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child_pid, address = parent.stdout.readline().split()
    parent.kill()
    parent.communicate()

    def has_exited() -> bool:
        try:
            rig.connect(int(address.rpartition(":")[2])).close()
        except ConnectionRefusedError:
            return True
        return False

    rig.wait_until(has_exited, f"the fault proxy {child_pid} to exit")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG")
def test_it_does_not_start_if_the_given_process_is_not_its_parent() -> None:
    result = run("--port", "0", "--with-parent", str(os.getppid()))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("steelyard: error: ")


def test_the_seed_determines_the_connections_a_toxic_applies_to() -> None:
    def draws(seed: str) -> list[bool]:
        backend = rig.Backend(rig.echo)
        dropped = []
        with ServerProcess("--seed", seed) as server:
            proxy = FaultProxy("127.0.0.1", server.port)
            created = proxy.create("p", "", f"127.0.0.1:{backend.port}")
            proxy.add_toxic("p", "limit_data", {"bytes": 0}, toxicity=0.5)
            for _ in range(24):
                with rig.connect(int(created.listen.rpartition(":")[2])) as client:
                    client.sendall(b"x")
                    dropped.append(client.recv(1) == b"")
        backend.close()
        return dropped

    first = draws("5")
    assert len(set(first)) == 2
    assert draws("5") == first
