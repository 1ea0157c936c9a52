"""Experiments on toxics that close, drop and cut. See `test_recorded_data_path`."""

from __future__ import annotations

import socket
import time

from tests.harness.toxiproxy.lab import Lab, Lap, Parts, Run, Serve, answers, collect, echo, read, since, trips

PARTS = Parts()
part = PARTS.part


# Slow close.


@part("slow_close", "upstream_closes")
def upstream_closes(lab: Lab) -> list[object]:
    with lab.route(answers(4)) as route:
        route.toxic("slow_close", delay=300)
        client = route.connect()
        start_s = time.monotonic()
        client.sendall(b"x")
        reading = read(client)
        return [*reading.outcome, Lap.between(start_s, reading.arrivals[0][0]), since(start_s)]


@part("slow_close", "client_closes_slowup")
def client_closes(lab: Lab) -> list[list[object]]:
    with lab.route(collect) as route:
        route.toxic("slow_close", "upstream", delay=300)
        client = route.connect()
        client.sendall(b"x")
        route.await_event("data")
        start_s = time.monotonic()
        client.close()
        route.await_event("eof")
        return route.ends_since(start_s)


@part("slow_close", "client_shutwr_slowdown")
def client_stops_writing(lab: Lab) -> list[object]:
    with lab.route(collect) as route:
        route.toxic("slow_close", delay=300)
        client = route.connect()
        client.sendall(b"x")
        route.await_event("data")
        start_s = time.monotonic()
        client.shutdown(socket.SHUT_WR)
        ending = read(client, timeout_s=2).ending
        return [ending, since(start_s), route.ends_since(start_s)]


def changed_during_the_delay(delay_ms: int | None) -> Run:
    """A part that removes a slow_close during its delay (None), or changes the delay to `delay_ms`."""

    def run(lab: Lab) -> list[object]:
        with lab.route(answers(4)) as route:
            toxic = route.toxic("slow_close", delay=3000)
            client = route.connect()
            client.sendall(b"x")
            read(client, 4)
            time.sleep(0.1)
            start_s = time.monotonic()
            if delay_ms is None:
                route.remove(toxic)
            else:
                route.update(toxic, delay=delay_ms)
            return [read(client, timeout_s=4).ending, since(start_s)]

    return run


part("slow_close", "removed_during_delay")(changed_during_the_delay(None))
part("slow_close", "updated_to_200_during_delay")(changed_during_the_delay(200))


# Timeout.


@part("timeout_basic", "down_300")
def timeout_down(lab: Lab) -> list[object]:
    with lab.route(echo) as route:
        route.toxic("timeout", timeout=300)
        client = route.connect()
        start_s = time.monotonic()
        client.sendall(b"x")
        outcome, total = read(client).outcome, since(start_s)
        route.await_event("eof")
        return [*outcome, total, route.observed()]


@part("timeout_basic", "up_300")
def timeout_up(lab: Lab) -> list[object]:
    with lab.route(collect) as route:
        route.toxic("timeout", "upstream", timeout=300)
        client = route.connect()
        start_s = time.monotonic()
        client.sendall(b"x")
        outcome, total = read(client).outcome, since(start_s)
        route.await_event("eof")
        return [*outcome, total, route.observed_with_details()]


@part("timeout_basic", "up_300_idle")
def timeout_idle(lab: Lab) -> list[object]:
    with lab.route(collect) as route:
        route.toxic("timeout", "upstream", timeout=300)
        start_s = time.monotonic()
        return [read(route.connect()).ending, since(start_s)]


@part("timeout_basic", "up_300_with_data_every_50ms_for_1s")
def timeout_restarts(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route:
        route.toxic("timeout", "upstream", timeout=300)
        client = route.connect()
        for _ in range(20):
            client.sendall(b"x")
            time.sleep(0.05)
        start_s = time.monotonic()
        ending = read(client).ending
        return {"send_err": None, "closed_after_last": since(start_s), "outcome": ending}


@part("timeout_basic")
def timeout_zero(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        toxic = route.toxic("timeout", timeout=0)
        client = route.connect()
        client.sendall(b"x")
        ending = read(client, timeout_s=1).ending
        start_s = time.monotonic()
        route.remove(toxic)
        removed = [*read(client, timeout_s=2).outcome, since(start_s)]
        return {"zero": ending, "zero_removed": removed, "new_conn_ok": len(trips(route.connect(), 1))}


@part("timeout_basic", "toxicity0_removed")
def timeout_without_toxicity(lab: Lab) -> str:
    with lab.route(echo) as route:
        toxic = route.toxic("timeout", toxicity=0, timeout=0)
        client = route.connect()
        trips(client, 1)
        route.remove(toxic)
        return read(client, timeout_s=1).ending


@part("timeout_basic", "reset_removes", alone=True)  # a reset affects all proxies
def timeout_reset(lab: Lab) -> str:
    with lab.route(echo) as route:
        route.toxic("timeout", timeout=0)
        client = route.connect()
        client.sendall(b"x")
        time.sleep(0.1)
        lab.ask("POST", "/reset")
        return read(client, timeout_s=1).ending


@part("timeout_basic", "updated_0_to_200")
def timeout_updated(lab: Lab) -> list[object]:
    with lab.route(echo) as route:
        toxic = route.toxic("timeout", timeout=0)
        client = route.connect()
        client.sendall(b"x")
        time.sleep(0.1)
        start_s = time.monotonic()
        route.update(toxic, timeout=200)
        return [read(client, timeout_s=1).ending, since(start_s)]


@part("timeout_basic", "added_live_200")
def timeout_added(lab: Lab) -> list[object]:
    with lab.route(echo) as route:
        client = route.connect()
        trips(client, 1)
        start_s = time.monotonic()
        route.toxic("timeout", timeout=200)
        return [read(client, timeout_s=1).ending, since(start_s)]


@part("timeout_basic", "zero_down_client_close_seen_by_upstream")
def timeout_and_the_clients_end(lab: Lab) -> list[list[object]]:
    with lab.route(collect) as route:
        route.toxic("timeout", timeout=0)
        client = route.connect()
        client.sendall(b"x")
        route.await_event("data")
        start_s = time.monotonic()
        client.close()
        route.await_event("eof")
        return route.ends_since(start_s)


# Reset peer.


def reset(stream: str, serve: Serve, timeout_ms: int = 0, sends: bool = True, late: bool = False) -> Run:
    """A part with a reset_peer; `late`: the toxic is added after the connection was opened."""

    def run(lab: Lab) -> dict[str, object]:
        with lab.route(serve) as route:
            if not late:
                route.toxic("reset_peer", stream, timeout=timeout_ms)
            client = route.connect()
            if late:
                trips(client, 1)
                route.toxic("reset_peer", stream, timeout=timeout_ms)
            start_s = time.monotonic()
            if sends:
                client.sendall(b"x")
            reading = read(client, timeout_s=1.2)
            total = since(start_s)
            if sends:
                for _ in range(100):
                    if route.events:
                        break
                    time.sleep(0.002)
            upstream = route.observed_with_details()
            return {"client": reading.ending, "bytes": reading.size, "t": total, "upstream": upstream}

    return run


for key, run in {
    "down_0": reset("downstream", echo),
    "up_0": reset("upstream", collect),
    "down_200": reset("downstream", echo, 200),
    "up_200": reset("upstream", collect, 200),
    "down_idle": reset("downstream", echo, sends=False),
    "up_idle": reset("upstream", collect, sends=False),
    "down_late": reset("downstream", echo, late=True),
    "up_late": reset("upstream", echo, late=True),
}.items():
    part("reset_peer", key)(run)


@part("reset_peer", "toxicity0_server_closes")
def reset_lingers_for_the_client(lab: Lab) -> list[object]:
    with lab.route(answers(3)) as route:
        route.toxic("reset_peer", toxicity=0, timeout=0)
        client = route.connect()
        client.sendall(b"x")
        return read(client, timeout_s=2).outcome


@part("reset_peer", "toxicity0_client_closes_upstream_sees")
def reset_lingers_for_the_backend(lab: Lab) -> list[str]:
    with lab.route(collect) as route:
        route.toxic("reset_peer", toxicity=0, timeout=0)
        client = route.connect()
        client.sendall(b"x")
        route.await_event("data")
        client.close()
        route.await_event("ECONNRESET")
        return route.observed()


@part("reset_peer", "removed_then_client_close_upstream_sees")
def reset_lingers_after_removal(lab: Lab) -> list[list[object]]:
    with lab.route(echo) as route:
        toxic = route.toxic("reset_peer", toxicity=0, timeout=0)
        client = route.connect()
        trips(client, 1)
        route.remove(toxic)
        trips(client, 1)
        client.close()
        route.await_event("exc")
        return route.observed_with_details()


# Limit data.


def limited(limit: int, *sizes: int) -> Run:
    """A part that requests answers of these sizes in turn, under a limit_data."""

    def run(lab: Lab) -> list[list[object]]:
        with lab.route(answers(*sizes, then_close=False)) as route:
            route.toxic("limit_data", bytes=limit)
            client = route.connect()
            outcomes = []
            for size in sizes:
                client.sendall(b"x")
                reading = read(client, size, timeout_s=0.5)
                outcomes.append(reading.outcome)
                if reading.ending != "ok":
                    break
            outcomes.append(read(client, timeout_s=0.5).outcome)
            return outcomes

    return run


for key, run in {
    "limit10_of_20": limited(10, 20),
    "limit20_of_20": limited(20, 20),
    "limit0": limited(0, 20),
    "limit25_2x10_3x": limited(25, 10, 10, 10),
    "big_100k_of_1M": limited(100_000, 1_000_000),
}.items():
    part("limit_data", key)(run)


@part("limit_data", "update_100_to_40_after_30")
def limit_lowered(lab: Lab) -> list[object]:
    with lab.route(echo) as route:
        toxic = route.toxic("limit_data", bytes=100)
        client = route.connect()
        trips(client, 1, 30)
        route.update(toxic, bytes=40)
        client.sendall(bytes(30))
        return read(client, timeout_s=0.5).outcome


@part("limit_data")
def limit_lowered_below(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        toxic = route.toxic("limit_data", bytes=100)
        client = route.connect()
        trips(client, 1, 50)
        route.update(toxic, bytes=20)
        idle = read(client, timeout_s=0.4).outcome
        client.sendall(b"q")
        return {"update_below_transmitted_idle": idle, "...then_send": read(client, timeout_s=0.4).outcome}


@part("limit_data", "removed_readded_counts_afresh")
def limit_readded(lab: Lab) -> list[object]:
    with lab.route(echo) as route:
        toxic = route.toxic("limit_data", bytes=100)
        client = route.connect()
        trips(client, 1, 50)
        route.remove(toxic)
        trips(client, 1, 100)
        route.toxic("limit_data", bytes=60)
        trips(client, 1, 50)
        client.sendall(bytes(30))
        return read(client, timeout_s=0.5).outcome


@part("limit_data", "upstream10_of_30")
def limit_upstream(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route:
        route.toxic("limit_data", "upstream", bytes=10)
        client = route.connect()
        client.sendall(bytes(30))
        ending = read(client, timeout_s=1).ending
        route.await_event("eof")
        return {"client": ending, "upstream": route.observed_with_details()}


# Chains of several toxics.


def in_a_row(*kinds: str) -> Run:
    """A part with a limit of 10 bytes and a latency of 200 ms, chained in the order of `kinds`."""

    def run(lab: Lab) -> list[list[object]]:
        values = {"limit_data": {"bytes": 10}, "latency": {"latency": 200}}
        with lab.route(collect) as route:
            for kind in kinds:
                route.toxic(kind, "upstream", **values[kind])
            client = route.connect()
            start_s = time.monotonic()
            client.sendall(bytes(20))
            route.await_event("eof")
            return [[event.what, event.detail, Lap.between(start_s, event.at_s)] for event in route.events]

    return run


part("order_matters", "limit_then_latency")(in_a_row("limit_data", "latency"))
part("order_matters", "latency_then_limit")(in_a_row("latency", "limit_data"))


@part("limit_then_slow_close")
def limit_then_slow_close(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        route.toxic("limit_data", bytes=5)
        route.toxic("slow_close", delay=300)
        client = route.connect()
        start_s = time.monotonic()
        client.sendall(bytes(20))
        reading = read(client, timeout_s=2)
        return {"outcome": reading.ending, "n": reading.size, "eof": since(start_s)}
