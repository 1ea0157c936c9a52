"""Experiments on random draws: slicer and toxicity. See `test_recorded_data_path`."""

from __future__ import annotations

import socket
import time

from tests.harness.toxiproxy.lab import Lab, Lap, Parts, Run, collect, echo, trips

PARTS = Parts()
part = PARTS.part


# Slicer.


def sliced(average: int, variation: int, delay_us: int, size: int) -> Run:
    """A part that sends `size` bytes through a slicer."""

    def run(lab: Lab) -> dict[str, object]:
        with lab.route(collect) as route:
            route.toxic("slicer", "upstream", average_size=average, size_variation=variation, delay=delay_us)
            client = route.connect()
            time.sleep(0.05)
            client.sendall(bytes(size))
            deadline_s = time.monotonic() + 3
            while sum(int(str(e.detail)) for e in route.events) < size and time.monotonic() < deadline_s:
                time.sleep(0.002)
            sizes = [int(str(event.detail)) for event in route.events]
            span = Lap.between(route.events[0].at_s, route.events[-1].at_s)
            return {"sizes": sizes, "span": span, "total": sum(sizes)}

    return run


for setting in (
    (100, 0, 10_000, 1000),
    (100, 50, 10_000, 1000),
    (64, 0, 0, 1000),
    (1000, 100, 1000, 20_000),
    (100, 0, 100, 1000),
):
    part("slicer", "avg{}var{}delay{}us_{}B".format(*setting))(sliced(*setting))


# Toxicity.

HIT_MS = 30  # a round trip under 40 ms of latency takes longer than this


def is_hit(client: socket.socket) -> bool:
    """Whether the latency applies to a connection now. Measured twice, because noise can only lengthen a round trip."""
    return trips(client, 1)[0] > HIT_MS and trips(client, 1)[0] > HIT_MS


@part("toxicity")
def toxicity_by_connection(lab: Lab) -> dict[str, object]:
    hit = mixed = 0
    with lab.route(echo) as route:
        route.toxic("latency", toxicity=0.5, latency=40)
        for _ in range(60):
            with route.connect() as client:
                hits = [is_hit(client) for _ in range(3)]
            hit += hits[0]
            mixed += len(set(hits)) > 1
    return {"hit": hit, "of": 60, "mixed_within_connection": mixed}


@part("toxicity", "redrawn_on_update")
def toxicity_at_updates(lab: Lab) -> bool:
    with lab.route(echo) as route:
        toxic = route.toxic("latency", toxicity=0.5, latency=40)
        client = route.connect()
        hits = set()
        for _ in range(24):
            hits.add(is_hit(client))
            route.update(toxic, latency=40)
        return len(hits) > 1


@part("toxicity", "redrawn_on_next_appended(first only)")
def toxicity_when_others_follow(lab: Lab) -> dict[str, bool]:
    with lab.route(echo) as route:
        route.toxic("latency", toxicity=0.5, latency=40)
        client = route.connect()
        hits = []
        for number in range(24):
            hits.append(is_hit(client))
            route.toxic("noop", name=f"later{number}")
        return {"first": hits[0], "second": hits[1], "rest_const": len(set(hits[1:])) == 1}


@part("toxicity", "redrawn_on_next_add_remove")
def toxicity_when_the_next_comes_and_goes(lab: Lab) -> bool:
    with lab.route(echo) as route:
        route.toxic("latency", toxicity=0.5, latency=40)
        client = route.connect()
        hits = set()
        for _ in range(24):
            hits.add(is_hit(client))
            route.toxic("noop", name="next")
            route.remove("next")
        return len(hits) > 1


def hits_of_20(toxicity: float) -> Run:
    """A part that counts the connections, of 20, to which a toxic of this toxicity applies."""

    def run(lab: Lab) -> int:
        with lab.route(echo) as route:
            route.toxic("latency", toxicity=toxicity, latency=40)
            return sum(is_hit(route.connect()) for _ in range(20))

    return run


for toxicity in (0, -1, 2.5):
    part("toxicity", f"toxicity_{toxicity}")(hits_of_20(toxicity))


@part("toxicity", "up_and_down_independent")
def toxicity_by_direction(lab: Lab) -> dict[str, int]:
    counts = {"0": 0, "1": 0, "2": 0}
    with lab.route(echo) as route:
        for stream in ("upstream", "downstream"):
            route.toxic("latency", stream, toxicity=0.5, latency=40)
        for _ in range(60):
            with route.connect() as client:
                counts[str(round(min(trips(client, 2)) / 40))] += 1
    return counts
