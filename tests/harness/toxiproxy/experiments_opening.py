"""Experiments on opening and closing connections, without toxics. See `test_recorded_data_path`."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable
from functools import partial

from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.lab import (
    Event,
    Lab,
    Parts,
    Route,
    answers,
    close_with_reset,
    collect,
    echo,
    extent,
    read,
    since,
    trips,
)

PARTS = Parts()
part = PARTS.part


def fails_with(action: Callable[[], object]) -> str:
    """The errno name of a failed socket action, `timeout`, or `ok`."""
    try:
        action()
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def answer_late(connected: socket.socket, events: list[Event]) -> None:
    """Read to the end and answer 0.2 s later; only a peer that still reads receives it."""
    rig.collect(connected)
    time.sleep(0.2)
    with contextlib.suppress(OSError):
        connected.sendall(bytes(100))


def flood(connected: socket.socket, events: list[Event]) -> None:
    """Send until an error, and record it."""
    try:
        while True:
            connected.sendall(bytes(65536))
    except OSError as error:
        events.append(Event(time.monotonic(), errno.errorcode[error.errno or 0], 0))


@part("half_close")
def half_close(lab: Lab) -> dict[str, object]:
    with lab.route(answer_late) as route:
        outcomes = []
        for port in (route.port, route.backend.port):
            with rig.connect(port) as client:
                client.sendall(b"request")
                start_s = time.monotonic()
                client.shutdown(socket.SHUT_WR)
                outcomes.append((read(client).outcome, since(start_s)))
    return {"via": outcomes[0][0], "t": outcomes[0][1], "direct": outcomes[1][0]}


@part("dial_refused", alone=True)
def dial_refused(lab: Lab) -> dict[str, object]:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    name, port = lab.open(address)
    with rig.connect(port) as silent:
        no_data = read(silent, timeout_s=2).ending
    after_send = "EOF"
    for _ in range(300):  # a race of microseconds: reset only if client data arrives before the proxy closes
        if after_send == "EOF":
            with rig.connect(port) as talker:
                failure = fails_with(partial(talker.sendall, b"GET / HTTP/1.1\r\n\r\n"))
                after_send = read(talker, timeout_s=2).ending if failure == "ok" else failure
    lab.ask("DELETE", f"/proxies/{name}")
    return {"no_data": no_data, "after_send": after_send}


@part("bad_upstream_name")
def bad_upstream_name(lab: Lab) -> dict[str, object]:
    requested = {"name": "unusable", "listen": "127.0.0.1:0", "upstream": "nonsense"}
    status, answer = lab.ask("POST", "/proxies", requested)
    with rig.connect(int(answer["listen"].rpartition(":")[2])) as client:
        ending = read(client, timeout_s=6).ending
    lab.ask("DELETE", "/proxies/unusable")
    return {"create": status, "outcome": ending}


def bind_to(port: int, share: bool) -> socket.socket:
    """A socket bound to a port; with `share` it has SO_REUSEADDR and listens."""
    bound = socket.socket()
    try:
        if share:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        if share:
            bound.listen(1)
    except OSError:
        bound.close()
        raise
    return bound


@part("disable_live")
def disable_live(lab: Lab) -> dict[str, object]:
    observed: dict[str, object] = {}
    with lab.route(echo) as route:
        client = route.connect()
        trips(client, 3)
        route.change(enabled=False)
        observed["idle_client"] = read(client, timeout_s=2).ending
        route.await_event("eof")
        observed["upstream_log"] = route.observed()
        observed["connect"] = fails_with(route.connect)
        observed["plain_bind_no_reuseaddr"] = fails_with(lambda: bind_to(route.port, share=False).close())
        with bind_to(route.port, share=True):
            observed["bind_reuseaddr"] = "ok"
            status, answer = route.change(enabled=True)
            observed["enable_while_taken"] = [status, answer["error"][-22:]]
        status, answer = route.change(enabled=True)
        observed["enable"] = status
        observed["same_port"] = answer["listen"].endswith(f":{route.port}")
        observed["works"] = len(trips(route.connect(), 1)) == 1
    return observed


@part("disable_keeps_toxics")
def disable_keeps_toxics(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        route.toxic("latency", latency=50)
        route.change(enabled=False)
        toxics = route.change(enabled=True)[1]["toxics"]
        return {"n": len(toxics), "rtt": trips(route.connect(), 1)[0]}


@part("disable_busy", alone=True)
def disable_busy(lab: Lab) -> dict[str, object]:
    with lab.route(flood) as route:
        client = route.connect()
        assert read(client, 1).ending == "ok"
        time.sleep(0.3)  # until every buffer is full and the proxy is blocked
        route.change(enabled=False)
        reading = read(client, timeout_s=2)
        route.await_event("ECONNRESET")
        return {"client": reading.ending, "upstream": route.observed(), "client_bytes_gt0": reading.size > 0}


@part("delete_live")
def delete_live(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        client = route.connect()
        trips(client, 3)
        lab.ask("DELETE", route.path)
        ending = read(client, timeout_s=2).ending
        route.await_event("eof")
        return {"client": ending, "upstream": route.observed()}


@part("update_upstream_drops")
def update_upstream_drops(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route, lab.route(echo) as other:
        client = route.connect()
        trips(client, 1)
        status, _ = route.change(upstream=f"127.0.0.1:{other.backend.port}")
        ending = read(client, timeout_s=2).ending
        trips(route.connect(), 1)
        return {"status": status, "client": ending, "new_upstream_conns": other.backend.accepted}


def wait_for_data(route: Route) -> socket.socket:
    """A connection whose first bytes have reached the (collecting) backend."""
    client = route.connect()
    client.sendall(b"abc")
    route.await_event("data")
    return client


@part("peer_close_propagation", "client_fin_to_upstream")
def client_fin_to_upstream(lab: Lab) -> list[list[object]]:
    with lab.route(collect) as route:
        client = wait_for_data(route)
        start_s = time.monotonic()
        client.close()
        route.await_event("eof")
        return route.ends_since(start_s)


@part("peer_close_propagation", "client_rst_to_upstream")
def client_rst_to_upstream(lab: Lab) -> list[str]:
    with lab.route(collect) as route:
        close_with_reset(wait_for_data(route))
        route.await_event("eof")
        return route.observed()[1:]


@part("peer_close_propagation", "upstream_rst_to_client")
def upstream_rst_to_client(lab: Lab) -> str:
    def serve(connected: socket.socket, events: list[Event]) -> None:
        connected.recv(10)
        close_with_reset(connected)

    with lab.route(serve) as route:
        client = route.connect()
        client.sendall(b"x")
        return read(client, timeout_s=2).ending


@part("peer_close_propagation", "upstream_data_then_fin")
def upstream_data_then_fin(lab: Lab) -> list[object]:
    with lab.route(answers(200_000)) as route:
        client = route.connect()
        client.sendall(b"x")
        return read(client, timeout_s=2).outcome


@part("noop_rtt", alone=True)
def noop_rtt(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route, rig.connect(route.backend.port) as direct:
        return {"via": extent(trips(route.connect(), 500)), "direct": extent(trips(direct, 500))}


def hung_dial(lab: Lab) -> dict[str, object]:
    """Disable a proxy whose dial hangs. Not one of the parts: it runs last, because a real server does not recover."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        name, port = lab.open(f"127.0.0.1:{full.getsockname()[1]}")
        client = stack.enter_context(rig.connect(port))
        client.sendall(b"hello")
        ending = read(client, timeout_s=1.5).ending
        start_s = time.monotonic()
        try:
            disabled = [str(lab.ask("PATCH", f"/proxies/{name}", {"enabled": False}, timeout_s=4)[0]), since(start_s)]
        except TimeoutError:
            disabled = ["TimeoutError", since(start_s)]
    return {"client": ending, "disable": disabled, "get_during": lab.ask("GET", "/version", timeout_s=3)[0]}
