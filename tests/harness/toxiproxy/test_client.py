"""The client: its results with the embedded server, and its errors with misbehaving servers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests
import toxiproxy.api

from harness.toxiproxy.client import FaultProxy, FaultProxyError, RemoteToxic
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import Backend, ServerProcess

Behind = Callable[[Callable[[socket.socket], object]], tuple[Backend, int]]
Answers = dict[tuple[str, str], tuple[int, str]]


def fails(action: Callable[[], object]) -> str:
    """The error text of an action that must fail; it has one line."""
    with pytest.raises(FaultProxyError) as caught:
        action()
    (line,) = str(caught.value).splitlines()
    return line


# With the embedded server.


def test_the_version_is_that_of_the_protocol(proxy: FaultProxy) -> None:
    assert proxy.version() == "2.12.0"


def test_a_created_proxy_has_its_real_address(proxy: FaultProxy) -> None:
    created = proxy.create("p", "localhost:0", "127.0.0.1:1")
    assert created.listen.startswith("127.0.0.1:")
    assert not created.listen.endswith(":0")
    assert (created.name, created.upstream, created.enabled) == ("p", "127.0.0.1:1", True)
    assert proxy.proxy("p") == created


def test_a_proxy_can_be_created_disabled(proxy: FaultProxy) -> None:
    assert not proxy.create("p", "127.0.0.1:0", "127.0.0.1:1", enabled=False).enabled
    proxy.enable("p")
    assert proxy.proxy("p").enabled


def test_creating_twice_fails(proxy: FaultProxy) -> None:
    proxy.create("p", "127.0.0.1:0", "127.0.0.1:1")
    assert "choose another name" in fails(lambda: proxy.create("p", "127.0.0.1:0", "127.0.0.1:1"))


def test_creating_on_a_taken_port_fails(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "address already in use" in fails(lambda: proxy.create("p", listen, "127.0.0.1:1"))


def test_enabling_on_a_taken_port_fails(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.echo)
    proxy.disable("p")
    with socket.create_server(("127.0.0.1", port)):
        assert "address already in use" in fails(lambda: proxy.enable("p"))
    assert not proxy.proxy("p").enabled


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a?b", "a%b", "a#b", "é", "a\n"])
def test_names_that_break_urls_are_refused(proxy: FaultProxy, name: str) -> None:
    assert "choose another" in fails(lambda: proxy.create(name, "127.0.0.1:0", "127.0.0.1:1"))
    assert "choose another" in fails(lambda: proxy.delete(name))


@pytest.mark.parametrize(
    "action",
    [
        lambda proxy: proxy.delete("none"),
        lambda proxy: proxy.enable("none"),
        lambda proxy: proxy.toxics("none"),
        lambda proxy: proxy.add_toxic("none", "noop", {}),
        lambda proxy: proxy.update_toxic("none", "noop_downstream", {}),
        lambda proxy: proxy.remove_toxic("none", "noop_downstream"),
    ],
)
def test_an_unknown_proxy_fails(proxy: FaultProxy, action: Callable[[FaultProxy], object]) -> None:
    assert "404" in fails(lambda: action(proxy))


def test_toxics_are_added_updated_listed_and_removed(behind: Behind, proxy: FaultProxy) -> None:
    behind(rig.echo)
    added = proxy.add_toxic("p", "latency", {"latency": 5}, toxicity=0.25)
    assert added == RemoteToxic("latency_downstream", "latency", "downstream", 0.25, {"latency": 5, "jitter": 0})
    up = proxy.add_toxic("p", "noop", {}, stream="upstream", toxic_name="mine")
    assert proxy.toxics("p") == [up, added]
    updated = proxy.update_toxic("p", "latency_downstream", {"jitter": 2})
    assert updated == RemoteToxic("latency_downstream", "latency", "downstream", 0.25, {"latency": 5, "jitter": 2})
    assert proxy.update_toxic("p", "mine", toxicity=0.5).toxicity == 0.5
    proxy.remove_toxic("p", "latency_downstream")
    assert [toxic.name for toxic in proxy.toxics("p")] == ["mine"]
    assert "404" in fails(lambda: proxy.remove_toxic("p", "latency_downstream"))
    assert "409" in fails(lambda: proxy.add_toxic("p", "noop", {}, stream="upstream", toxic_name="mine"))
    assert "no such toxic" in fails(lambda: proxy.update_toxic("p", "gone", {}))
    assert "400" in fails(lambda: proxy.add_toxic("p", "noop", {}, stream="sideways"))


@pytest.mark.parametrize(
    ("kind", "attributes", "hint"),
    [
        ("delay", {}, "check its spelling"),
        ("latency", {"latencey": 5}, "check its spelling"),
        ("latency", {"latency": 5.0}, "round it"),
        ("latency", {"latency": True}, "round it"),
        ("bandwidth", {"rate": -1}, "crash"),
        ("slicer", {}, "crash"),
        ("slicer", {"average_size": 5, "size_variation": 6}, "crash"),
    ],
)
def test_bad_toxics_are_not_even_sent(
    behind: Behind, proxy: FaultProxy, kind: str, attributes: dict[str, int], hint: str
) -> None:
    behind(rig.echo)
    assert hint in fails(lambda: proxy.add_toxic("p", kind, attributes))
    assert proxy.toxics("p") == []


def test_an_update_is_checked_together_with_unchanged_attributes(behind: Behind, proxy: FaultProxy) -> None:
    behind(rig.echo)
    proxy.add_toxic("p", "slicer", {"average_size": 5})
    assert "crash" in fails(lambda: proxy.update_toxic("p", "slicer_downstream", {"size_variation": 6}))


def test_reset_enables_and_removes(behind: Behind, proxy: FaultProxy) -> None:
    behind(rig.echo)
    proxy.add_toxic("p", "noop", {})
    proxy.disable("p")
    proxy.reset()
    assert (proxy.proxy("p").enabled, proxy.toxics("p")) == (True, [])


def test_all_proxies_can_be_deleted(proxy: FaultProxy) -> None:
    for name in ("a", "b"):
        proxy.create(name, "127.0.0.1:0", "127.0.0.1:1")
    proxy.delete_all()
    assert "404" in fails(lambda: proxy.proxy("a"))


def test_clients_of_two_servers_are_independent(server: ServerProcess, proxy: FaultProxy) -> None:
    with ServerProcess() as other_server:
        other = FaultProxy("127.0.0.1", other_server.port)
        proxy.create("here", "127.0.0.1:0", "127.0.0.1:1")
        other.create("there", "127.0.0.1:0", "127.0.0.1:1")
        assert proxy.proxy("here").enabled
        assert "404" in fails(lambda: other.proxy("here"))


def test_the_environments_proxies_are_ignored(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert proxy.version() == "2.12.0"


def test_the_library_is_restored(proxy: FaultProxy) -> None:
    before = toxiproxy.api.APIConsumer.port
    proxy.version()
    assert toxiproxy.api.APIConsumer.port == before
    assert toxiproxy.api.requests is requests


# With misbehaving servers.


@pytest.fixture
def scripted() -> Iterator[Callable[[Answers], FaultProxy]]:
    """Factory of servers with fixed answers by (method, path), 404 otherwise; returns a client."""
    servers = []

    def start(answers: Answers) -> FaultProxy:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, text = answers.get((self.command, self.path), (404, "404 page not found\n"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        return FaultProxy("127.0.0.1", server.server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def proxy_json(enabled: bool) -> str:
    return f'{{"name":"p","listen":"127.0.0.1:1","upstream":"u:1","enabled":{str(enabled).lower()},"toxics":[]}}'


@pytest.mark.parametrize(
    "text", ["2.5.0", '{"version": "2.5.0"}\\n', '{"version": "2.5.0"}\n'], ids=["plain", "broken", "json"]
)
def test_every_form_of_version_is_understood(scripted: Callable[[Answers], FaultProxy], text: str) -> None:
    assert scripted({("GET", "/version"): (200, text)}).version() == "2.5.0"


def test_a_server_built_from_source_has_no_number(scripted: Callable[[Answers], FaultProxy]) -> None:
    assert scripted({("GET", "/version"): (200, '{"version": "git"}\n')}).version() == "git"


def test_a_version_of_something_else_fails(scripted: Callable[[Answers], FaultProxy]) -> None:
    assert "check the port" in fails(scripted({("GET", "/version"): (200, "hello")}).version)


@pytest.mark.parametrize("status", [403, 405, 500, 503])
def test_statuses_that_the_library_overlooks_fail(scripted: Callable[[Answers], FaultProxy], status: int) -> None:
    proxy = scripted({("GET", "/proxies/p"): (200, proxy_json(False)), ("POST", "/proxies/p"): (status, "why\nnot")})
    assert f"saw {status} why" in fails(lambda: proxy.enable("p"))


def test_a_server_that_wrongly_reports_enabled_fails(scripted: Callable[[Answers], FaultProxy]) -> None:
    proxy = scripted({("GET", "/proxies/p"): (200, proxy_json(False)), ("POST", "/proxies/p"): (200, proxy_json(True))})
    assert "saw enabled=False, expected enabled=True" in fails(lambda: proxy.enable("p"))


def test_a_real_toxiproxy_has_no_connections(scripted: Callable[[Answers], FaultProxy]) -> None:
    proxy = scripted({})
    assert proxy.connections() == []
    proxy.clear_connections()


def test_missing_evidence_fails(scripted: Callable[[Answers], FaultProxy]) -> None:
    proxy = scripted({("GET", "/connections"): (200, '{"connections":[],"forgotten":3}')})
    assert "3 connections forgotten" in fails(proxy.connections)


@pytest.mark.parametrize("text", ["[]", "{}", "7", '{"connections":[{}],"forgotten":0}'])
def test_answers_of_the_wrong_shape_fail(scripted: Callable[[Answers], FaultProxy], text: str) -> None:
    proxy = scripted({("GET", "/proxies/p"): (200, text), ("GET", "/connections"): (200, text)})
    assert "expected a fault proxy's answer" in fails(lambda: proxy.proxy("p"))
    assert "expected a fault proxy's answer" in fails(proxy.connections)


def test_an_answer_that_is_no_json_fails(scripted: Callable[[Answers], FaultProxy]) -> None:
    assert "check that a fault proxy runs there" in fails(
        lambda: scripted({("GET", "/proxies/p"): (200, "hi")}).proxy("p")
    )


def test_no_server_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert f"127.0.0.1:{port}" in fails(FaultProxy("127.0.0.1", port).version)


def test_a_server_that_hangs_fails_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start_s = time.monotonic()
        hung = FaultProxy("127.0.0.1", silent.getsockname()[1], timeout_s=0.2)
        assert "no answer within 0.2 s" in fails(lambda: hung.disable("p"))
        assert time.monotonic() - start_s < rig.LONG_S
