"""`steelyard toxiproxy`, run as a process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.toxiproxy.client import FaultProxy

ROOT = Path(__file__).parent.parent.parent.parent
COMMAND = [sys.executable, "-c", "from harness.cli import main; main()", "toxiproxy"]
LONG_S = 20.0


@contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The ready command, and its port."""
    child = subprocess.Popen(
        [*COMMAND, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        ready = child.stdout.readline()
        assert ready.startswith("ready 127.0.0.1:"), child.communicate()
        yield child, int(ready.rpartition(":")[2])
    finally:
        child.kill()
        child.communicate()


def refused(*options: str) -> str:
    """The error line of a command that must fail with exit code 2."""
    done = subprocess.run([*COMMAND, *options], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0_and_without_a_word(number: signal.Signals) -> None:
    with running("--port", "0") as (child, port):
        assert FaultProxy("127.0.0.1", port).version() == "2.12.0"
        child.send_signal(number)
        assert child.communicate(timeout=LONG_S) == ("", "")
        assert child.returncode == 0


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--port", str(port))
    assert line.startswith(f"steelyard: error: can't serve the control API on 127.0.0.1:{port}")
    assert "address already in use" in line
    assert "choose another --port" in line


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_an_impossible_port_is_one_line(port: str) -> None:
    assert "choose another --port" in refused("--port", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_one_line(host: str) -> None:
    assert f"on {host}:0" in refused("--host", host, "--port", "0")


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '[{"name": "a"}]', '[{"name": "a", "upstream": 1}]'])
def test_a_bad_configuration_is_one_line(tmp_path: Path, content: str | None) -> None:
    config = tmp_path / "proxies.json"
    if content is not None:
        config.write_text(content, encoding="utf-8")
    line = refused("--port", "0", "--config", str(config))
    assert str(config) in line


def test_a_port_of_the_configuration_that_is_taken_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "proxies.json"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config.write_text(json.dumps([{"name": "a", "listen": listen, "upstream": "127.0.0.1:1"}]), encoding="utf-8")
        assert listen in refused("--port", "0", "--config", str(config))


def test_options_do_what_they_say(tmp_path: Path) -> None:
    config = tmp_path / "proxies.json"
    config.write_text(json.dumps([{"name": "a", "upstream": "127.0.0.1:1"}]), encoding="utf-8")
    options = ("--config", str(config), "--seed", "1", "--proxy-metrics", "--runtime-metrics")
    with running("--port", "0", "--host", "localhost", *options) as (_, port):
        assert FaultProxy("127.0.0.1", port).proxy("a").enabled
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
        connection.request("GET", "/metrics")
        assert b"process_cpu_seconds_total" in connection.getresponse().read()
        connection.close()
