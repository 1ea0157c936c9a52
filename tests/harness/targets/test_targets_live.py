"""All forms of targets judged live: a policy, a claims file with nginx, and a user's own nginx."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from signal import SIGQUIT

import pytest
from jinja2 import Template

from harness.judge import Judge
from harness.live.process.child import Child
from harness.live.process.http import accepts
from harness.live.session import LiveSession
from harness.property.declare import Property, catalogue
from harness.property.verdict import Outcome, Record
from harness.scenario.faults import Drain, Join, Leave, Weigh
from harness.scenario.model import TargetError, World
from harness.targets import resolve
from harness.targets.nginx import NginxTarget
from tests.harness.live.helpers import HOST, PATIENCE_S, free_ports, traffic, until

SEED = 11
REPEAT = "affinity.repeat.same-backend"
LEAVE = "affinity.leave.only-departed-keys-move"

POLICY = """
from harness.balancer.picking.ring import HashRing
from harness.claims.features import Affinity

class Ring:
    claims = (Affinity(virtual_nodes=150),)
    def __init__(self):
        self.ring = HashRing(150)
    def update_backends(self, backends):
        self.ring.set_members([backend.id for backend in backends])
    def report_result(self, backend_id, latency_s, error):
        pass
    def pick(self, request):
        return self.ring.owner(request.model, lambda name: True)

class Raises(Ring):
    count = 0
    def pick(self, request):
        self.count += 1
        if self.count > 200:
            raise RuntimeError("out of ideas")
        return super().pick(request)
"""

TEMPLATE = """
{% if root %}user root;{% endif %}
daemon off;
worker_processes 1;
pid {{ workdir }}/nginx.pid;
events { worker_connections 1024; }
http {
    access_log off;
    client_body_temp_path {{ workdir }}/body; proxy_temp_path {{ workdir }}/proxy; fastcgi_temp_path {{ workdir }}/fcgi;
    uwsgi_temp_path {{ workdir }}/uwsgi; scgi_temp_path {{ workdir }}/scgi;
    upstream fleet {
        hash $http_x_model_id consistent;
{% for backend in backends %}        server {{ backend.host }}:{{ backend.port }};
{% endfor %}    }
    server { listen {{ host }}:{{ port }}; location / { proxy_pass http://fleet; } }
}
"""

CLAIMS = """
[claims.affinity]
key = "header:x-model-id"
algorithm = "ring"
virtual_nodes = 160
"""


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession() as opened:
        yield opened


@pytest.fixture(scope="module")
def nginx() -> str:
    """Path of an nginx binary."""
    return NginxTarget()._binary


def judged(session: LiveSession, target: str, name: str) -> Record:
    (item,) = [item for item in catalogue() if item.name == name]
    assert isinstance(item, Property)
    return Judge(resolve(target), SEED, {World.LIVE: session.play}).judge(item, World.LIVE)


def template(root: bool) -> str:
    return TEMPLATE.replace("{% if root %}user root;{% endif %}", "user root;" if root else "")


# --- Python code ------------------------------------------------------------------------------------------


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module of policies, importable here and in child processes."""
    name = f"policies_of_{SEED}"
    (tmp_path / f"{name}.py").write_text(POLICY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return name


@pytest.mark.slow
def test_a_policy_and_one_that_raises(session: LiveSession, policies: str) -> None:
    record = judged(session, f"python:{policies}:Ring", REPEAT)
    assert record.outcome is Outcome.PASS, record.reason
    record = judged(session, f"python:{policies}:Raises", REPEAT)
    assert record.outcome is Outcome.FAIL
    assert record.reason == (
        "the balancer failed during the run: exit status 3; last line: the gateway raised RuntimeError: out of ideas"
        f" ({policies}.py:21, on RequestArrived)"
    )


# --- claims files -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_claims_file_with_a_template(session: LiveSession, nginx: str, tmp_path: Path) -> None:
    (tmp_path / "nginx.conf.j2").write_text(template(os.geteuid() == 0))
    words = f'["{nginx}", "-p", "{{workdir}}", "-e", "{{workdir}}/error.log", "-c", "{{config}}"'
    file = tmp_path / "mine.toml"
    file.write_text(
        '[balancer]\nname = "mine"\nversion = "1"\n[run]\nconfig = "nginx.conf.j2"\n'
        f'start = {words}]\nreload = {words}, "-s", "reload"]\n{CLAIMS}'
    )
    record = judged(session, str(file), REPEAT)
    assert (record.outcome, record.target, record.version) == (Outcome.PASS, "mine", "1"), record.reason
    history = session.play(resolve(str(file)), traffic(2.0, Leave("gpu-1", 0.5)), SEED)
    (leave,) = history.steps
    assert leave.took_effect
    before = history.attempts["start_s"] < leave.asked_s
    after = history.attempts["start_s"] > leave.effective_s + 0.5  # a reload takes effect at the end of its command
    assert set(history.attempts["backend"][before]) == {0, 1}
    assert set(history.attempts["backend"][after]) == {0}


@pytest.mark.slow
def test_nginx_drains_weighs_and_takes_back(session: LiveSession) -> None:
    # Weight 5 against 1 is five sixths of the keys instead of a half: unambiguous with a hundred keys.
    drain, weigh, join = Drain("gpu-1", 0.5), Weigh("gpu-0", 2.0, 5), Join("gpu-1", 4.0)
    steps = traffic(5.5, drain, weigh, join, backends=3, keys=400, rate_per_s=100.0)
    history = session.play(NginxTarget(), steps, SEED)
    drained, weighed, back = history.steps
    sent_s, first = history.requests["sent_s"], history.first_backends()

    def among(start_s: float, end_s: float) -> list[int]:
        return [int(backend) for backend in first[(sent_s > start_s) & (sent_s < end_s)]]

    assert history.answered().all()
    assert set(among(0.0, drained.asked_s)) == {0, 1, 2} == set(among(back.effective_s, 5.5))
    assert set(among(drained.effective_s, back.asked_s)) == {0, 2}
    equal, heavier = among(drained.effective_s, weighed.asked_s), among(weighed.effective_s, back.asked_s)
    assert min(len(equal), len(heavier)) >= 20
    assert heavier.count(0) / len(heavier) > equal.count(0) / len(equal) + 0.1


def test_a_balancer_of_ones_own_at_fixed_addresses(session: LiveSession, nginx: str, tmp_path: Path) -> None:
    port, *listen = free_ports(4)
    config = tmp_path / "nginx.conf"
    backends = [{"host": HOST, "port": each} for each in listen]
    text = Template(template(os.geteuid() == 0)).render(workdir=tmp_path, host=HOST, port=port, backends=backends)
    config.write_text(text)
    file = tmp_path / "mine.toml"
    addresses = ", ".join(f'"{HOST}:{each}"' for each in listen)
    file.write_text(
        f'[balancer]\nname = "mine"\nurl = "http://{HOST}:{port}"\n[backends]\nlisten = [{addresses}]\n{CLAIMS}'
    )
    words = (nginx, "-p", str(tmp_path), "-e", str(tmp_path / "error.log"), "-c", str(config))
    child = Child(words, tmp_path / "nginx.log")
    try:
        until(lambda: accepts(HOST, port))
        record = judged(session, str(file), REPEAT)
        assert record.outcome is Outcome.PASS, record.reason
        record = judged(session, str(file), LEAVE)
        assert (record.outcome, record.reason) == (Outcome.UNSUPPORTED, "cannot change membership")
        assert child.status is None, "left running, for it is not ours"
    finally:
        child.stop(SIGQUIT)
    assert child.wait(PATIENCE_S)


def test_a_fixed_address_that_is_taken(session: LiveSession, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as holder:
        taken = holder.getsockname()[1]
        free, port = free_ports(2)
        file = tmp_path / "mine.toml"
        file.write_text(
            f'[balancer]\nurl = "http://{HOST}:{port}"\n[backends]\nlisten = ["{HOST}:{free}", "{HOST}:{taken}"]\n'
            f"{CLAIMS}"
        )
        with pytest.raises(TargetError, match=rf"^{HOST}:{taken} is taken; \[backends\] listen needs it for our own"):
            judged(session, str(file), REPEAT)
