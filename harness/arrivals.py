"""Seeded arrivals of a load: times, keys and sizes, drawn before the run. Pure; the simulator and Locust both use it.

Open loop: an arrival's time never depends on an answer, so a slow balancer is offered exactly the same load as a fast
one, and latency can be counted from the intended time (no coordinated omission).
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

from harness.frozen import lean
from harness.model import Connections, Keys, Kind, Load, Method, Stream


@lean
class Arrival:
    """One request to be sent. `at_s` counts from the start of the run; `key` is an index, -1 for none.

    `connection` numbers the client connection of a stream that uses a single one; -1 elsewhere.
    """

    number: int
    stream: int
    at_s: float
    kind: Kind
    method: Method
    key: int
    prompt_tokens: int
    output_tokens: int
    connection: int
    fresh: bool
    timeout_s: float


@lru_cache(maxsize=65536)
def key_name(seed: int, key: int) -> str:
    """Name of key number `key` in the run with this seed, so that every seed meets a ring with keys of its own."""
    return f"m-{hashlib.sha256(f'{seed}/{key}'.encode()).hexdigest()[:10]}"


def draw(load: Load, seed: int) -> tuple[Arrival, ...]:
    """All arrivals of `load`, ordered by time and numbered in that order. The same seed gives the same arrivals."""
    drawn: list[tuple[float, int, Stream, Method, int]] = []
    for index, stream in enumerate(load.streams):
        generator = random.Random(f"{seed}/arrivals/{index}")
        times = _times(stream, generator)
        keys = _keys(stream.keys, stream.requests, generator)
        for position, (at_s, key) in enumerate(zip(times, keys, strict=True)):
            drawn.append((at_s, index, stream, stream.methods[position % len(stream.methods)], key))
    drawn.sort(key=lambda item: (item[0], item[1]))
    return tuple(
        Arrival(
            number=number,
            stream=index,
            at_s=at_s,
            kind=stream.kind,
            method=method,
            key=key,
            prompt_tokens=stream.prompt_tokens,
            output_tokens=stream.output_tokens,
            connection=index if stream.connections is Connections.ONE else -1,
            fresh=stream.connections is Connections.FRESH,
            timeout_s=stream.timeout_s,
        )
        for number, (at_s, index, stream, method, key) in enumerate(drawn)
    )


def _times(stream: Stream, generator: random.Random) -> list[float]:
    if stream.arrivals == "constant":
        return [stream.start_s + position / stream.rate_per_s for position in range(stream.requests)]
    if stream.arrivals != "poisson":
        raise ValueError(f"arrivals {stream.arrivals!r}: expected constant or poisson")
    times, at_s = [], stream.start_s
    for _ in range(stream.requests):
        at_s += generator.expovariate(stream.rate_per_s)
        times.append(at_s)
    return times


def _keys(keys: Keys | None, requests: int, generator: random.Random) -> list[int]:
    if keys is None:
        return [-1] * requests
    if keys.pick == "sweep":
        return [position % keys.count for position in range(requests)]
    if keys.pick == "uniform":
        return [generator.randrange(keys.count) for _ in range(requests)]
    if keys.pick != "zipf":
        raise ValueError(f"keys picked by {keys.pick!r}: expected sweep, uniform or zipf")
    weights = [1.0 / (rank + 1) ** keys.zipf_exponent for rank in range(keys.count)]
    return generator.choices(range(keys.count), weights=weights, k=requests)
