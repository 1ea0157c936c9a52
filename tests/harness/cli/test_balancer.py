"""`steelyard balancer` as a command: how it starts, what it refuses, where it listens, how it stops."""

from __future__ import annotations

import socket
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest

from tests.harness.cli.test_commands import steelyard
from tests.harness.live.balancers import balancing, plain_backends
from tests.harness.live.helpers import HOST, PATIENCE_S
from tests.processes import listening

URL = "http://127.0.0.1:9001"


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_it_serves_until_it_is_told_to_stop(tmp_path: Path, number: Signals) -> None:
    with (
        plain_backends(tmp_path, 2) as backends,
        balancing(tmp_path, [backends[0].url, f"two={backends[1].url}#weight=2"]) as balancer,
    ):
        assert balancer.call(x_request_id="first").body == b'{"id": "first"}'
        rows = balancer.ask("GET", "/backends")[1]
        assert [(row["id"], row["weight"], row["state"]) for row in rows] == [
            (backends[0].url.removeprefix("http://"), 1, "ready"),
            ("two", 2, "ready"),
        ]
        balancer.child.signal(number)
        assert balancer.child.wait(PATIENCE_S)
        assert balancer.child.status == 0


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with balancing(tmp_path, [URL]) as balancer:
        assert listening(balancer.child.pid) == {(HOST, balancer.port), (HOST, balancer.admin_port)}


@pytest.mark.parametrize("name", ["breaker", "retry,hedge"])
def test_mechanisms_can_be_switched_off(tmp_path: Path, name: str) -> None:
    with plain_backends(tmp_path, 1) as backends, balancing(tmp_path, [backends[0].url], "--without", name) as balancer:
        assert balancer.call().status == 200
        (row,) = balancer.ask("GET", "/backends")[1]
        assert row["breaker"] == (None if name == "breaker" else "closed")


def test_retries_are_off_without_them(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        dead = f"http://{HOST}:{holder.getsockname()[1]}"
        with balancing(tmp_path, [dead], "--without", "retry, hedge", "--without", "health-checks") as balancer:
            assert balancer.call().status == 502
            assert balancer.metrics()["steelyard_retries_total",] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "ftp://h:1"], "scheme ftp is not supported, only http"),
        (["--backend", "127.0.0.1:9001"], "expected [NAME=]http://HOST:PORT[#weight=W]"),
        (["--backend", URL, "--backend", URL], "--backend 127.0.0.1:9001 is given twice"),
        (["--backend", URL, "--backend", f"other={URL}"], "--backend 127.0.0.1:9001 is given twice"),
        (["--backend", f"a={URL}", "--backend", "a=http://h:1"], "--backend a is given twice"),
        (["--backend", URL, "--without", "retries"], "--without 'retries' is unknown; did you mean retry"),
        (["--backend", URL, "--without", "retry,,hedge"], "--without '' is unknown; valid: "),
        (["--backend", URL, "--health-path", "health"], "--health-path 'health': expected a path that begins with /"),
        (
            ["--backend", URL, "--port", "7000", "--admin-port", "7000"],
            "--admin-port 7000: expected a port other than --port",
        ),
        (["--backend", URL, "--port", "65535"], "--port 65535 leaves no port for the admin interface"),
        (["--backend", URL, "--drain-deadline-s", "0"], "--drain-deadline-s 0: expected above 0"),
        (["--backend", URL, "--max-connection-age-s", "0"], "--max-connection-age-s 0.0: expected above 0"),
        (["--backend", URL, "--max-connection-requests", "0"], "--max-connection-requests 0: expected 1 or more"),
        (["--backend", URL, "--settings", "nowhere.toml"], "settings file nowhere.toml: cannot be read (No such file"),
        (["--backend", URL, "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid: "),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words: list[str], message: str) -> None:
    done = steelyard("balancer", *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("steelyard: error: ") and message in line
    assert done.stdout == ""


def test_help_names_every_option_whole() -> None:
    """Also at a width of 80 columns."""
    message = steelyard("balancer", "--help", width=80).stdout
    for option in ("--max-connection-age-s", "--max-connection-requests", "--drain-deadline-s", "--health-path"):
        assert option in message


@pytest.mark.parametrize("words", [[], ["--backend", URL, "--prot", "1"], ["--backend", URL, "--port", "x"]])
def test_wrong_usage_is_one_line_and_exit_code_2(words: list[str]) -> None:
    done = steelyard("balancer", *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("steelyard: error: ") and line.endswith("; see steelyard balancer --help")


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_a_taken_port_is_one_line_and_exit_code_2(option: str) -> None:
    with socket.create_server((HOST, 0)) as holder:
        taken = str(holder.getsockname()[1])
        words = ["--port", "0"] if option == "--admin-port" else ["--no-admin"]
        done = steelyard("balancer", "--backend", URL, *words, option, taken)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("steelyard: error: cannot listen on ") and taken in line and "in use" in line
        assert done.stdout == ""
