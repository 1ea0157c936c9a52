"""The admin interface of a running balancer: its answers and the effect of each edit."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.live.balancers import BalancerProcess, PlainBackend, balancing, plain_backends
from tests.harness.live.helpers import PATIENCE_S, until


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PlainBackend]]:
    with plain_backends(tmp_path_factory.mktemp("backends"), 2) as started:
        yield started


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, backends: list[PlainBackend]) -> Iterator[BalancerProcess]:
    with balancing(tmp_path_factory.mktemp("balancer"), [backends[0].url]) as started:
        yield started


@pytest.fixture
def balancer(running: BalancerProcess, backends: list[PlainBackend]) -> BalancerProcess:
    """The shared balancer, with the backends a and b."""
    items = [{"id": name, "url": item.url} for name, item in zip("ab", backends, strict=True)]
    assert running.ask("PUT", "/backends", []) == (200, {})
    assert running.ask("PUT", "/backends", items) == (200, {})
    return running


def ids(balancer: BalancerProcess) -> list[str]:
    return [row["id"] for row in balancer.ask("GET", "/backends")[1]]


def row(name: str, url: str, **more: Any) -> dict[str, Any]:
    usual = {"weight": 1.0, "state": "ready", "draining": False, "in_flight": 0, "ready": True, "breaker": "closed"}
    return {"id": name, "url": url, **usual, "score": 1.0, **more}


def test_the_list(balancer: BalancerProcess, backends: list[PlainBackend]) -> None:
    rows = [row("a", backends[0].url), row("b", backends[1].url)]
    assert balancer.ask("GET", "/backends") == (200, rows)
    assert balancer.ask("GET", "/backends/b") == (200, rows[1])


def test_join_and_leave(balancer: BalancerProcess, backends: list[PlainBackend]) -> None:
    url = backends[1].url
    assert balancer.ask("POST", "/backends", {"url": url}) == (201, row(url.removeprefix("http://"), url))
    joined = balancer.ask(
        "POST", "/backends", {"id": "c", "host": "127.0.0.1", "port": backends[1].ports[0], "weight": 2}
    )
    assert joined == (201, row("c", url, weight=2))
    assert len(ids(balancer)) == 4
    status, answer = balancer.ask("POST", "/backends", {"id": "c", "url": url})
    assert status == 409 and answer == {"error": "backend 'c' is already listed; remove it first or use another id"}
    assert balancer.ask("DELETE", "/backends/c") == (200, {"id": "c", "in_flight": 0})
    assert balancer.ask("DELETE", f"/backends/{url.removeprefix('http://')}")[0] == 200
    assert ids(balancer) == ["a", "b"]


def test_traffic_follows_joins_and_leaves(balancer: BalancerProcess) -> None:
    balancer.ask("DELETE", "/backends/a")
    balancer.ask("DELETE", "/backends/b")
    assert balancer.call().status == 503


def test_an_edit_keeps_what_is_known_of_the_others(balancer: BalancerProcess, backends: list[PlainBackend]) -> None:
    for number in range(40):
        assert balancer.call(x_model_id=f"m-{number}").status == 200
    before = {key: value for key, value in balancer.metrics().items() if key[0] == "steelyard_picks_total"}
    assert sum(before.values()) == 40 and len(before) == 2
    balancer.ask("POST", "/backends", {"id": "c", "url": backends[0].url})
    balancer.ask("PATCH", "/backends/c", {"weight": 3})
    balancer.ask("POST", "/backends/c/drain")
    balancer.ask("DELETE", "/backends/c")
    after = {key: value for key, value in balancer.metrics().items() if key[0] == "steelyard_picks_total"}
    assert after == before


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_weigh(balancer: BalancerProcess, method: str) -> None:
    status, answer = balancer.ask(method, "/backends/a", {"weight": 0})
    assert (status, answer["weight"]) == (200, 0)
    for number in range(20):
        balancer.call(x_model_id=f"m-{number}")
    metrics = balancer.metrics()
    assert metrics["steelyard_picks_total", "a"] == 0
    assert metrics["steelyard_picks_total", "b"] == 20
    assert metrics["steelyard_backend_weight", "a"] == 0
    assert balancer.ask(method, "/backends/a", {"weight": 1.5})[1]["weight"] == 1.5


def test_drain(balancer: BalancerProcess, backends: list[PlainBackend]) -> None:
    balancer.ask("DELETE", "/backends/b")
    answers: list[Any] = []
    client = threading.Thread(
        target=lambda: answers.append(balancer.call(path="/stream?chunks=50&gap_s=0.02", x_request_id="drained"))
    )
    client.start()
    backends[0].when("drained", "asked")
    status, answer = balancer.ask("POST", "/backends/a/drain")
    assert (status, answer["state"], answer["in_flight"]) == (200, "draining", 1)
    assert balancer.call().status == 503, "new request accepted"
    assert balancer.ask("POST", "/backends/a/drain?wait_s=0.05")[1]["state"] == "draining"
    answer = balancer.ask("POST", "/backends/a/drain?wait_s=20")[1]
    assert (answer["state"], answer["ready"], answer["in_flight"]) == ("drained", False, 0)
    client.join(PATIENCE_S)
    assert answers[0].status == 200 and answers[0].body.count(b"data:") == 50
    assert balancer.ask("GET", "/backends/a")[1]["state"] == "drained"
    assert balancer.metrics()["steelyard_backend_draining", "a"] == 1
    balancer.ask("PUT", "/backends", [{"id": "a", "url": backends[0].url}])
    assert balancer.ask("GET", "/backends/a")[1]["state"] == "ready"
    assert balancer.call().status == 200


def test_the_whole_list_can_say_who_drains(balancer: BalancerProcess, backends: list[PlainBackend]) -> None:
    items = [{"id": name, "url": item.url} for name, item in zip("ab", backends, strict=True)]
    assert balancer.ask("PUT", "/backends", [items[0] | {"draining": True}, items[1]]) == (200, {})
    assert balancer.ask("GET", "/backends/a")[1]["state"] == "drained"
    before = balancer.metrics()["steelyard_picks_total", "a"]
    for number in range(20):
        assert balancer.call(x_model_id=f"m-{number}").status == 200
    assert balancer.metrics()["steelyard_picks_total", "a"] == before
    balancer.ask("PUT", "/backends", items)
    assert balancer.ask("GET", "/backends/a")[1]["state"] == "ready"


def test_a_leaver_finishes_and_is_forgotten(balancer: BalancerProcess, backends: list[PlainBackend]) -> None:
    balancer.ask("DELETE", "/backends/b")
    answers: list[Any] = []
    client = threading.Thread(
        target=lambda: answers.append(balancer.call(path="/stream?chunks=20&gap_s=0.02", x_request_id="leaver"))
    )
    client.start()
    backends[0].when("leaver", "asked")
    assert balancer.ask("DELETE", "/backends/a") == (200, {"id": "a", "in_flight": 1})
    assert balancer.metrics()["steelyard_backends_remembered",] == 1
    client.join(PATIENCE_S)
    assert answers[0].body.count(b"data:") == 20
    until(lambda: balancer.metrics()["steelyard_backends_remembered",] == 0)
    assert "a" not in {label for name, *labels in balancer.metrics() for label in labels}


def test_an_id_at_another_address_starts_anew(balancer: BalancerProcess, backends: list[PlainBackend]) -> None:
    balancer.ask("DELETE", "/backends/b")
    assert balancer.call().status == 200
    assert balancer.metrics()["steelyard_picks_total", "a"] == 1
    balancer.ask("PUT", "/backends", [{"id": "a", "url": backends[1].url}])
    assert balancer.metrics()["steelyard_picks_total", "a"] == 0
    assert balancer.call(x_request_id="moved").status == 200
    backends[1].when("moved", "answered")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/backends/nobody", b"", 404, "no backend 'nobody'; GET /backends lists them"),
        ("DELETE", "/backends/nobody", b"", 404, "no backend 'nobody'"),
        ("PATCH", "/backends/nobody", b'{"weight": 1}', 404, "no backend 'nobody'"),
        ("POST", "/backends/nobody/drain", b"", 404, "no backend 'nobody'"),
        ("POST", "/backends", b"{", 400, "expected an object of url"),
        ("POST", "/backends", b"[]", 400, "expected an object of url"),
        ("POST", "/backends", b'"a"', 400, "expected an object of url"),
        ("POST", "/backends", b"{}", 400, "'id' is missing"),
        ("POST", "/backends", b'{"url": "ftp://h:1"}', 400, "only http"),
        ("POST", "/backends", b'{"url": "http://h:1", "wait": 1}', 400, "unknown 'wait'"),
        ("PATCH", "/backends/a", b"", 400, 'expected {"weight": NUMBER}'),
        ("PATCH", "/backends/a", b"[1]", 400, 'expected {"weight": NUMBER}'),
        ("PATCH", "/backends/a", b'{"weight": -1}', 400, "weight -1 of a: expected from 0 to 100"),
        ("PATCH", "/backends/a", b'{"weight": NaN}', 400, "weight nan of a"),
        ("PATCH", "/backends/a", b'{"weight": "2"}', 400, "weight '2' of a: expected a number"),
        ("POST", "/backends/a/drain?wait_s=soon", b"", 400, "wait_s 'soon': expected seconds"),
        ("POST", "/backends/a/drain?wait_s=-1", b"", 400, "wait_s '-1': expected seconds"),
        ("POST", "/backends/a/drain?wait=1", b"", 400, "'wait' is unknown; expected wait_s"),
        ("PUT", "/backends", b'[{"url": "http://h:1"}, {"url": "http://h:1"}]', 400, "occurs twice"),
        ("DELETE", "/backends", b"", 405, "DELETE /backends: expected GET, HEAD, POST, PUT"),
        ("GET", "/other", b"", 404, "GET /other: Not Found"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(
    balancer: BalancerProcess, method: str, path: str, body: bytes, status: int, message: str
) -> None:
    before = balancer.ask("GET", "/backends")
    answer = balancer.ask_raw(method, path, body)
    assert answer.status == status
    document = json.loads(answer.body)
    assert set(document) == {"error"} and message in document["error"] and "\n" not in document["error"]
    assert balancer.ask("GET", "/backends") == before


def test_without_an_admin_interface(tmp_path: Path, backends: list[PlainBackend]) -> None:
    with balancing(tmp_path, [backends[0].url], "--no-admin") as bare:
        assert bare.admin == ""
        assert bare.call().status == 200
