"""The control API beyond the recorded transcript: deliberate differences, the extension, and live changes."""

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
    """Send a request with a JSON body (bytes are sent unchanged); returns status and JSON or text of the answer."""
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
def test_garbage_is_a_bad_request_without_side_effects(
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
        request = {"name": "p", "listen": f"127.0.0.1:{taken.getsockname()[1]}", "upstream": "127.0.0.1:1"}
        status, answer = ask(server, "POST", "/populate", [request])
    assert (status, answer["proxies"]) == (500, None)
    unchanged = proxy.proxy("p")
    assert (unchanged.listen, unchanged.enabled) == (f"127.0.0.1:{port}", False)


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
        assert len(ask(server, "GET", "/connections?proxy=p")[1]["connections"]) == 1  # it is still open
        assert ask(server, "GET", "/connections?proxy=other")[1]["connections"] == []
    rig.wait_until(lambda: ask(server, "GET", "/connections")[1]["connections"][0]["ended"] == "client", "the end")
    ask(server, "DELETE", "/connections")
    assert ask(server, "GET", "/connections")[1]["connections"] == []
    assert ask(server, "POST", "/connections")[0] == 405


PROXY_BODY = b'{"name":"requested","upstream":"127.0.0.1:1","listen":"127.0.0.1:0"}'


@pytest.mark.parametrize("kind", rig.KINDS)
def test_a_client_that_waits_for_100_continue_gets_it(kind: str) -> None:
    """No 100 for an immediate refusal, a request without body, or HTTP/1.0."""
    with rig.start_server(kind) as server:
        expects = b"host: a\r\nexpect: 100-Continue\r\n"
        length = b"content-length: %d\r\n\r\n" % len(PROXY_BODY)
        go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
        with rig.connect(server.port) as client:
            for status in (b"201", b"409"):
                client.sendall(b"POST /proxies HTTP/1.1\r\n" + expects + length)
                assert rig.read_exactly(client, len(go_on)) == go_on
                client.sendall(PROXY_BODY)
                assert read_answer(client)[0] == status
            client.sendall(b"GET /version HTTP/1.1\r\n" + expects + b"\r\n")
            assert read_answer(client)[0] == b"200"
        for head in (b"POST /nowhere HTTP/1.1\r\n" + expects + length, b"PUT /proxies HTTP/1.1\r\n" + expects + length):
            with rig.connect(server.port) as client:
                client.sendall(head)
                assert read_answer(client)[0] in (b"404", b"405")
        with rig.connect(server.port) as client:
            client.sendall(b"POST /reset HTTP/1.0\r\n" + expects + length + PROXY_BODY)
            assert read_answer(client)[0] == b"204"
        with rig.connect(server.port) as client:
            client.sendall(b"POST /reset HTTP/1.1\r\nhost: a\r\nexpect: the best\r\n" + length + PROXY_BODY)
            status, head = read_answer(client)
            assert (status, b"\r\nconnection: close" in head.lower()) == (b"417", True)


def read_answer(client: socket.socket) -> tuple[bytes, bytes]:
    """Read one answer to its end; returns its status and head."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += rig.read_exactly(client, 1)
    lengths = [
        int(line.partition(b":")[2]) for line in head.lower().splitlines() if line.startswith(b"content-length:")
    ]
    rig.read_exactly(client, sum(lengths))
    return head.split()[1], head


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "none such"])
@pytest.mark.parametrize("kind", rig.KINDS)
def test_a_body_is_not_decoded_whatever_its_content_encoding(kind: str, encoding: str) -> None:
    with rig.start_server(kind) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=rig.LONG_S)
        try:
            for path, status in (("/proxies", 201), ("/nowhere", 404)):
                connection.request("POST", path, PROXY_BODY, {"Content-Encoding": encoding})
                answer = connection.getresponse()
                assert (answer.status, bool(answer.read())) == (status, True)
        finally:
            connection.close()


@pytest.mark.parametrize("path", [b"/proxies", b"/nowhere"])
def test_a_body_with_invalid_chunks_is_refused_and_not_logged(server: ServerProcess, path: bytes) -> None:
    """The fixture checks that the server logged nothing."""
    with rig.connect(server.port) as client:
        client.sendall(b"POST %s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" % path)
        assert read_answer(client)[0] in (b"400", b"404")
