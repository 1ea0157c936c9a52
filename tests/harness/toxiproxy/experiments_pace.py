"""Experiments on delay and rate of data: latency and bandwidth. See `test_recorded_data_path`."""

from __future__ import annotations

import time

from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.lab import Lab, Lap, Parts, Route, Run, answers, collect, echo, extent, read, since, trips

PARTS = Parts()
part = PARTS.part


def drip(route: Route, count: int) -> list[float]:
    """Send messages of 1, 2, 3 ... bytes, 30 ms apart, over a new connection; returns their send times (seconds)."""
    client = route.connect()
    time.sleep(0.05)  # exclude the dial from the measurement
    sent_s = []
    for size in range(1, count + 1):
        sent_s.append(time.monotonic())
        client.sendall(bytes(size))
        time.sleep(0.03)
    return sent_s


def arrivals_since(route: Route, start_s: float) -> list[list[object]]:
    """Bytes and time of each read of a collecting backend."""
    return [[event.detail, Lap.between(start_s, event.at_s)] for event in route.events if event.what == "data"]


def await_bytes(route: Route, size: int) -> None:
    """Return when a collecting backend has `size` bytes, or after 3 s."""
    deadline_s = time.monotonic() + 3
    while sum(int(str(e.detail)) for e in route.events if e.what == "data") < size and time.monotonic() < deadline_s:
        time.sleep(0.002)


# Latency.


def latency_one_way(stream: str, latency_ms: int, count: int) -> tuple[str, Run]:
    """Name and function of a part that measures round trips under latency in one direction."""

    def run(lab: Lab) -> dict[str, Lap]:
        with lab.route(echo) as route:
            route.toxic("latency", stream, latency=latency_ms)
            return extent(trips(route.connect(), count))

    return (stream if latency_ms == 100 else f"lat{latency_ms}"), run


for stream, latency_ms, count in (
    ("downstream", 100, 10),
    ("upstream", 100, 10),
    ("downstream", 1, 50),
    ("downstream", 5, 50),
    ("downstream", 20, 25),
):
    key, run = latency_one_way(stream, latency_ms, count)
    part("latency_precision", key)(run)


@part("latency_precision", "both")
def latency_both(lab: Lab) -> dict[str, Lap]:
    with lab.route(echo) as route:
        route.toxic("latency", "upstream", latency=100)
        route.toxic("latency", "downstream", latency=50)
        return extent(trips(route.connect(), 10))


@part("latency_precision")
def connecting_is_not_delayed(lab: Lab) -> dict[str, Lap]:
    laps = {}
    for stream in ("downstream", "upstream"):
        with lab.route(echo) as route:
            route.toxic("latency", stream, latency=100)
            start_s = time.monotonic()
            route.connect()
            laps[f"{stream}_connect"] = since(start_s)
    return laps


def jittered(latency_ms: int, jitter_ms: int) -> Run:
    """A part that measures round trips under latency with jitter."""

    def run(lab: Lab) -> dict[str, Lap]:
        with lab.route(echo) as route:
            route.toxic("latency", latency=latency_ms, jitter=jitter_ms)
            return extent(trips(route.connect(), 60))

    return run


for latency_ms, jitter_ms in ((50, 20), (5, 20), (0, 20), (20, -10)):
    part("latency_jitter", f"{latency_ms}+-{jitter_ms}")(jittered(latency_ms, jitter_ms))


@part("latency_pipelined")
def latency_pipelined(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route:
        route.toxic("latency", "upstream", latency=200)
        sent_s = drip(route, 6)
        await_bytes(route, 21)
        arrived = [event.at_s for event in route.events]
        delays = [Lap.between(sent, at) for sent, at in zip(sent_s, arrived, strict=False)]
        return {"delays": delays, "sizes": [event.detail for event in route.events]}


@part("latency_pipelined")
def latency_and_the_end(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route, lab.route(collect) as idle:
        for each in (route, idle):
            each.toxic("latency", "upstream", latency=200)
        quiet, client = idle.connect(), route.connect()
        time.sleep(0.05)
        start_s = time.monotonic()
        quiet.close()
        idle.await_event("eof")
        eof_delay = idle.ends_since(start_s)[0][1]
        start_s = time.monotonic()
        client.sendall(b"abc")
        client.close()
        route.await_event("eof")
        both = [[event.what, event.detail, Lap.between(start_s, event.at_s)] for event in route.events]
        return {"eof_delay": eof_delay, "send_then_close": both}


@part("latency_two_chained_queued")
def latency_two_chained(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route:
        route.toxic("latency", "upstream", name="first", latency=100)
        route.toxic("latency", "upstream", name="second", latency=100)
        sent_s = drip(route, 6)
        await_bytes(route, 21)
        arrived = [event.at_s for event in route.events]
        delays = [Lap.between(sent, at) for sent, at in zip(sent_s, arrived, strict=False)]
        return {"delays": delays, "sizes": [event.detail for event in route.events]}


@part("latency_jitter_order")
def latency_jitter_order(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        route.toxic("latency", latency=30, jitter=30)
        client = route.connect()
        data = bytes(range(200))
        for start in range(len(data)):
            client.sendall(data[start : start + 1])
            time.sleep(0.001)
        return {"in_order": rig.read_exactly(client, len(data)) == data}


@part("latency_bulk", alone=True)
def latency_bulk(lab: Lab) -> dict[str, object]:
    with lab.route(answers(20 << 20)) as route:
        route.toxic("latency", latency=100)
        client = route.connect()
        start_s = time.monotonic()
        client.sendall(b"x")
        reading = read(client, timeout_s=10)
        total = since(start_s)
        first = Lap.between(start_s, reading.arrivals[0][0])
        return {"outcome": reading.ending, "mib": reading.size / 2**20, "first_byte": first, "total": total}


@part("latency_update_live")
def latency_update_live(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route:
        toxic = route.toxic("latency", "upstream", latency=1000)
        client = route.connect()
        time.sleep(0.05)
        start_s = time.monotonic()
        client.sendall(b"a")
        time.sleep(0.05)
        client.sendall(b"bb")
        time.sleep(0.15)
        updated = since(start_s)
        route.update(toxic, latency=400)
        await_bytes(route, 3)
        return {"update_at": updated, "arrive": arrivals_since(route, start_s)}


@part("latency_remove_live")
def latency_remove_live(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route:
        toxic = route.toxic("latency", "upstream", latency=1000)
        client = route.connect()
        time.sleep(0.05)
        start_s = time.monotonic()
        for data in (b"a", b"bb", b"ccc"):
            client.sendall(data)
            time.sleep(0.05)
        time.sleep(0.05)
        removed = since(start_s)
        route.remove(toxic)
        await_bytes(route, 6)
        return {"rm_at": removed, "arrive": arrivals_since(route, start_s)}


@part("latency_other_toxic_added_live")
def latency_other_toxic_added_live(lab: Lab) -> dict[str, object]:
    with lab.route(collect) as route:
        route.toxic("latency", "upstream", latency=1000)
        client = route.connect()
        time.sleep(0.05)
        start_s = time.monotonic()
        client.sendall(b"a")
        time.sleep(0.2)
        route.toxic("noop", "upstream")
        await_bytes(route, 1)
        return {"arrive_after_append_noop": arrivals_since(route, start_s)}


@part("add_live")
def add_live(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        client = route.connect()
        before = extent(trips(client, 3))["max"]
        toxic = route.toxic("latency", latency=80)
        during = trips(client, 3)
        route.remove(toxic)
        return {"before": before, "during": during, "after": extent(trips(client, 3))["max"]}


# Bandwidth.


def transfer(rate: int, size: int) -> Run:
    """A part that measures the duration of a transfer of `size` bytes at `rate` KB/s."""

    def run(lab: Lab) -> dict[str, object]:
        with lab.route(answers(size, then_close=False)) as route:
            route.toxic("bandwidth", rate=rate)
            client = route.connect()
            start_s = time.monotonic()
            client.sendall(b"x")
            reading = read(client, size, timeout_s=20)
            total = since(start_s)
            first_s, first_bytes = reading.arrivals[0]
            return {
                "total": total,
                "ideal": round(size / rate, 1),
                "first": [Lap.between(start_s, first_s), first_bytes],
            }

    return run


for rate, size in (
    (10, 5000),
    (100, 100_000),
    (100, 32768),
    (320, 320_000),
    (1000, 1_000_000),
    (10_000, 10_000_000),
    (100_000, 50_000_000),
):
    part("bandwidth_rates", f"{rate}KBs_{size}B", alone=rate >= 10_000)(transfer(rate, size))


@part("bandwidth_small")
def bandwidth_small(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        route.toxic("bandwidth", rate=1)
        client = route.connect()
        at_once = trips(client, 3, 50)
        time.sleep(0.5)
        return {"rtt_50B_at_1KBs": at_once, "after_idle": trips(client, 3, 50)}


@part("bandwidth_zero")
def bandwidth_zero(lab: Lab) -> dict[str, object]:
    with lab.route(echo) as route:
        toxic = route.toxic("bandwidth", rate=0)
        client = route.connect()
        client.sendall(b"abc")
        stalled = read(client, 3, timeout_s=1).ending
        route.remove(toxic)
        return {"recv": stalled, "after_remove": read(client, 3, timeout_s=2).outcome}


@part("bandwidth_zero")
def bandwidth_zero_hides_the_end(lab: Lab) -> dict[str, object]:
    with lab.route(answers(3)) as route:  # it closes after its answer
        route.toxic("bandwidth", rate=0)
        client = route.connect()
        client.sendall(b"x")
        return {"upstream_close_while_stalled": read(client, timeout_s=1).ending}


@part("bandwidth_two_conns")
def bandwidth_two_conns(lab: Lab) -> dict[str, object]:
    with lab.route(answers(50_000, then_close=False)) as route:
        route.toxic("bandwidth", rate=100)
        clients = [route.connect(), route.connect()]
        start_s = time.monotonic()
        for client in clients:
            client.sendall(b"x")
        for client in clients:
            read(client, 50_000)
        total = since(start_s)
        return {"two_conns_50KB_each_at_100KBs": total, "per_connection": total < 800}
