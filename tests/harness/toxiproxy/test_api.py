"""The control API beyond the recorded transcript: our differences, our extension, and changes under way."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from harness.toxiproxy.client import FaultProxy
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import Backend, ServerProcess

Behind = Callable[[Callable[[socket.socket], object]], tuple[Backend, int]]


def ask(server: ServerProcess, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """One request with a JSON body (or bytes as they are); the status, and the JSON or text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=rig.LONG_S)
    try:
        connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text


@pytest.mark.parametrize("path", ["/proxies", "/populate", "/proxies/p", "/proxies/p/toxics"])
@pytest.mark.parametrize("body", [b"\xff\xfe", b'{"name":', b"[[[[", b"NaN", b"\0" * 100, b"[" * 100_000])
def test_garbage_is_a_bad_request_and_nothing_more(
    server: ServerProcess, behind: Behind, path: str, body: bytes
) -> None:
    behind(rig.echo)
    status, answer = ask(server, "POST", path, body)
    assert status == 400
    assert answer["error"].startswith("bad request body: ")
    assert list(ask(server, "GET", "/proxies")[1]) == ["p"]


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("bandwidth", {"rate": -1}),
        ("slicer", {}),
        ("slicer", {"average_size": -1, "size_variation": -1}),
        ("slicer", {"average_size": 10, "size_variation": 11}),
    ],
)
def test_values_that_crash_toxiproxy_are_refused(
    server: ServerProcess, behind: Behind, kind: str, attributes: dict[str, int]
) -> None:
    behind(rig.echo)
    status, answer = ask(server, "POST", "/proxies/p/toxics", {"type": kind, "attributes": attributes})
    assert (status, answer["status"]) == (400, 400)
    assert ask(server, "GET", "/proxies/p/toxics") == (200, [])


def test_an_update_to_a_value_that_crashes_toxiproxy_changes_nothing(server: ServerProcess, behind: Behind) -> None:
    behind(rig.echo)
    ask(server, "POST", "/proxies/p/toxics", {"type": "slicer", "attributes": {"average_size": 10, "delay": 7}})
    update = {"attributes": {"average_size": 0, "delay": 9}, "toxicity": 0.5}
    assert ask(server, "PATCH", "/proxies/p/toxics/slicer_downstream", update)[0] == 400
    _, toxic = ask(server, "GET", "/proxies/p/toxics/slicer_downstream")
    assert (toxic["attributes"]["average_size"], toxic["attributes"]["delay"], toxic["toxicity"]) == (10, 7, 1)


def test_a_new_upstream_drops_the_connections_to_the_old_one(
    server: ServerProcess, behind: Behind, backend_with: Callable[[Callable[[socket.socket], object]], Backend]
) -> None:
    _, port = behind(rig.echo)
    new = backend_with(rig.echo)
    with rig.connect(port) as client:
        rig.round_trip_s(client)
        status, answer = ask(server, "PATCH", "/proxies/p", {"upstream": f"127.0.0.1:{new.port}"})
        assert (status, answer["listen"]) == (200, f"127.0.0.1:{port}")
        assert rig.read_to_end(client) == (b"", "EOF")
    with rig.connect(port) as client:
        rig.round_trip_s(client)
    assert new.accepted == 1


def test_a_proxy_that_can_not_be_replaced_stays_disabled_as_it_was(
    server: ServerProcess, behind: Behind, proxy: FaultProxy
) -> None:
    _, port = behind(rig.echo)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wish = {"name": "p", "listen": f"127.0.0.1:{taken.getsockname()[1]}", "upstream": "127.0.0.1:1"}
        status, answer = ask(server, "POST", "/populate", [wish])
    assert (status, answer["proxies"]) == (500, None)
    kept = proxy.proxy("p")
    assert (kept.listen, kept.enabled) == (f"127.0.0.1:{port}", False)


def test_connections_are_listed_for_one_proxy_or_all_and_forgotten_on_demand(
    server: ServerProcess, behind: Behind
) -> None:
    _, port = behind(rig.echo)
    with rig.connect(port) as client:
        rig.round_trip_s(client)
        status, answer = ask(server, "GET", "/connections")
        (entry,) = answer["connections"]
        assert (status, answer["forgotten"]) == (200, 0)
        assert entry == {
            "proxy": "p",
            "opened_s": entry["opened_s"],
            "closed_s": None,
            "bytes_up": 4,
            "bytes_down": 4,
            "ended": None,
        }
        assert ask(server, "DELETE", "/connections")[0] == 204
        assert len(ask(server, "GET", "/connections?proxy=p")[1]["connections"]) == 1  # it has yet to end
        assert ask(server, "GET", "/connections?proxy=other")[1]["connections"] == []
    rig.wait_until(lambda: ask(server, "GET", "/connections")[1]["connections"][0]["ended"] == "client", "the end")
    ask(server, "DELETE", "/connections")
    assert ask(server, "GET", "/connections")[1]["connections"] == []
    assert ask(server, "POST", "/connections")[0] == 405
