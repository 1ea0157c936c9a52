"""The package in docs/targets.md is installed here, as it stands, and its gateway is run."""

from __future__ import annotations

import re
import shlex
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from harness.claims.features import Failover, Spread
from harness.judge import Judge
from harness.live.session import LiveSession
from harness.property.declare import catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import TargetError, World
from harness.targets import listing, resolve
from harness.targets.base import Address, Deployment, WriteFile
from harness.targets.checked import for_live
from tests.harness.targets.distributions import install
from tests.test_readme import ROOT

PAGE = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
BLOCKS: dict[str, str] = dict(re.findall(r"```(toml|python)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [line for text in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in text.splitlines()]

GATEWAY = """#!{python}
import http.client, itertools, json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

host, port = sys.argv[2].split(":")
turns = itertools.count()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with open(sys.argv[4]) as file:
            backends = json.load(file)
        first = next(turns)
        for turn in range(len(backends)):
            backend = backends[(first + turn) % len(backends)]
            connection = http.client.HTTPConnection(backend[0], backend[1])
            try:
                connection.connect()
            except OSError:
                continue
            headers = {{name: value for name, value in self.headers.items() if name.lower() != "connection"}}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            connection.close()
            return
        self.send_error(502)

    do_GET = do_POST = do_PUT = pass_on

    def log_message(self, *words):
        pass

class Server(ThreadingHTTPServer):
    request_queue_size = 128

Server((host, int(port)), Handler).serve_forever()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's package on the path of modules, its gateway on that of commands; the gateway's path."""
    project = tomllib.loads(BLOCKS["toml"])["project"]
    ((name, value),) = project["entry-points"]["steelyard.targets"].items()
    site = install(tmp_path / "site", project["name"], {name: value}, {"steelyard_acme.py": BLOCKS["python"]})
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "steelyard_acme", raising=False)
    program = tmp_path / "bin" / "acme-gateway"
    program.parent.mkdir()
    program.write_text(GATEWAY.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


def test_the_package_is_found_by_its_entry_point(installed: Path) -> None:
    target = resolve("acme")
    assert (target.name, target.version, target.worlds) == ("acme", "2.1", frozenset({World.LIVE}))
    assert Spread in target.claims and Failover in target.claims
    (row,) = [row for row in listing() if row.usage == "acme[:PATH]"]
    assert (row.summary, row.state, row.claims) == ("Acme's gateway, on PATH or at PATH", "2.1", ("failover", "spread"))
    with pytest.raises(TargetError, match="acme-gateway is not on PATH; give --target acme:PATH"):
        resolve("acme:/nowhere/acme")


def test_what_it_returns_is_valid(installed: Path, tmp_path: Path) -> None:
    backends = (Address("gpu-0", "127.0.0.1", 1), Address("gpu-1", "127.0.0.1", 2, draining=True))
    place = Deployment(tmp_path, "127.0.0.1", 8080, 8081, backends)
    target = for_live(resolve(f"acme:{installed}"))
    launch = target.launch(place)
    assert launch.start[:3] == (str(installed), "--listen", "127.0.0.1:8080")
    assert launch.files == {"acme.json": '[["127.0.0.1", 1, 1]]'}
    assert target.change(place) == (WriteFile("acme.json", '[["127.0.0.1", 1, 1]]'),)


@pytest.mark.live
@pytest.mark.slow
def test_it_is_judged_live(installed: Path) -> None:
    with LiveSession() as session:
        judge = Judge(resolve("acme"), 1, {World.LIVE: session.play})
        for name in ("integrity.answer-belongs-to-request", "spread.one-connection.even"):
            (item,) = [item for item in catalogue() if item.name == name]
            record = judge.judge(item, World.LIVE)
            assert record.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE), record.reason


def test_every_command_of_the_page_names_a_target_that_exists(installed: Path) -> None:
    names = {row.usage.partition("[")[0].partition(":")[0] for row in listing()}
    for words in map(shlex.split, COMMANDS):
        assert "--target" not in words or words[words.index("--target") + 1].partition(":")[0] in names
