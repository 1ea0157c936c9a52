"""Seeded arrivals of a load: times, keys and content, drawn before the run. Pure; simulator and load engines use it.

Open loop: an arrival's time never depends on an answer, so a slow balancer gets exactly the same load as a fast one,
and latency counts from the intended time (no coordinated omission). `harness.scenario.closed_loop` is the closed loop.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from harness.scenario import arrival_rates, request_mix
from harness.scenario.fast_dataclass import fast_dataclass
from harness.scenario.model import Connections, Keys, Kind, Load, Method, Stream
from harness.scenario.request_mix import RequestContent


@fast_dataclass
class Arrival:
    """One request to be sent. `at_s` counts from the start of the run; `key` is an index, -1 for none.

    `connection`: number of the client connection of a stream that uses a single one; -1 elsewhere. `key_text`: the
    key's name where it is not `key_name`. `session`: number in the load, -1 for none; `turn` counts from 0 in it.
    `history`: tokens of the session's earlier prompts and answers, alternating; `prompt_tokens` includes them.
    `blocks`: the prompt's blocks, see `harness.scenario.request_mix.Replay`. `payload_bytes`: minimum length of the
    body. `abort_after_s`: when its client cancels it; None: not before `timeout_s`.
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
    key_text: str = ""
    urgency: str = "normal"
    session: int = -1
    turn: int = 0
    history: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    payload_bytes: int = 0
    streams: bool = False
    abort_after_s: float | None = None

    @property
    def shared_tokens(self) -> int:
        """Tokens at the beginning of the prompt that repeat earlier turns of its session."""
        return sum(self.history)

    @property
    def patience_s(self) -> float:
        """How long its client waits for the whole answer."""
        return self.timeout_s if self.abort_after_s is None else min(self.timeout_s, self.abort_after_s)


_Drawn = tuple[float, Method, int, RequestContent | None, int, Stream]
"""Time, method, key, content, number of the stream, stream."""


@lru_cache(maxsize=65536)
def key_name(seed: int, key: int) -> str:
    """Name of key number `key` in the run with this seed; every seed has other names, and so other ring positions."""
    return f"m-{hashlib.sha256(f'{seed}/{key}'.encode()).hexdigest()[:10]}"


@lru_cache(maxsize=65536)
def session_name(seed: int, session: int) -> str:
    """Name of session number `session` in the run with this seed."""
    return f"s-{hashlib.sha256(f'{seed}/session/{session}'.encode()).hexdigest()[:10]}"


def draw(load: Load, seed: int) -> tuple[Arrival, ...]:
    """All open-loop arrivals of `load`, numbered in order of time. The same seed gives the same arrivals."""
    drawn: list[_Drawn] = []
    for index, stream in enumerate(load.streams):
        if stream.chats is None:
            drawn += _drawn(stream, index, seed)
    drawn.sort(key=lambda one: (one[0], one[4]))
    return _numbered(drawn, load)


def stream_arrivals(load: Load, index: int, seed: int) -> tuple[Arrival, ...]:
    """The arrivals of stream number `index` alone, numbered from 0. The times of a closed loop have no meaning."""
    return _numbered(_drawn(load.streams[index], index, seed), load)


def _drawn(stream: Stream, index: int, seed: int) -> list[_Drawn]:
    generator = random.Random(f"{seed}/arrivals/{index}")
    times = _times(stream, generator)
    keys = _keys(stream, times, generator)
    contents = _contents(stream, len(times), f"{seed}/content/{index}")
    methods = itertools.cycle(stream.methods)
    return [(*one, index, stream) for one in zip(times, methods, keys, contents, strict=False)]


def _numbered(drawn: list[_Drawn], load: Load) -> tuple[Arrival, ...]:
    session_keys: dict[int, tuple[int, str]] = {}
    arrivals = []
    for number, (at_s, method, key, content, index, stream) in enumerate(drawn):
        arrival = _without_content(number, at_s, index, stream, method, key)
        arrivals.append(
            arrival if content is None else _with_content(arrival, content, len(load.streams), session_keys)
        )
    return tuple(arrivals)


def shard_of(arrivals: tuple[Arrival, ...], worker: int, workers: int) -> tuple[Arrival, ...]:
    """The arrivals that worker number `worker` of `workers` sends, numbers and times unchanged.

    Every arrival belongs to one worker. Requests of one session or of a single connection go to the same worker, in
    order. Sessions are assigned in turn as they begin, other arrivals by number, so all workers send during the run.
    """
    if not 0 <= worker < workers:
        raise ValueError(f"worker {worker} of {workers}: expected 0 to {workers - 1}")
    groups: dict[tuple[str, int], int] = {}
    mine = []
    for arrival in arrivals:
        group = arrival.number
        if arrival.connection >= 0:
            group = groups.setdefault(("connection", arrival.connection), len(groups))
        elif arrival.session >= 0:
            group = groups.setdefault(("session", arrival.session), len(groups))
        if group % workers == worker:
            mine.append(arrival)
    return tuple(mine)


def _without_content(number: int, at_s: float, index: int, stream: Stream, method: Method, key: int) -> Arrival:
    return Arrival(
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
        key_text=stream.keys.names[key] if key >= 0 and stream.keys and stream.keys.names else "",
    )


def _with_content(
    arrival: Arrival, content: RequestContent, streams: int, session_keys: dict[int, tuple[int, str]]
) -> Arrival:
    """`arrival` with content. `session_keys`: the key of each session's first request, used for all of them."""
    post = content.update or arrival.method is Method.POST
    session = arrival.stream + streams * content.session if content.session >= 0 else -1
    key, key_text = (-1, "") if content.update else (arrival.key, arrival.key_text)
    if session >= 0:
        key, key_text = session_keys.setdefault(session, (key, key_text))
    return replace(
        arrival,
        kind=Kind.UPDATE if content.update else arrival.kind,
        method=Method.POST if post else Method.GET,
        key=key,
        key_text=key_text,
        prompt_tokens=content.prompt_tokens,
        output_tokens=content.output_tokens,
        fresh=arrival.connection < 0 and (arrival.fresh or content.fresh),
        urgency=content.urgency,
        session=session,
        turn=content.turn,
        history=content.history,
        blocks=content.blocks,
        payload_bytes=content.payload_bytes if post else 0,
        streams=content.streams and post,
        abort_after_s=content.abort_after_s,
    )


def _contents(stream: Stream, requests: int, seed: str) -> Iterator[RequestContent | None]:
    if stream.content is None:
        yield from [None] * requests
    else:
        yield from request_mix.draw(stream.content, requests, stream.prompt_tokens, stream.output_tokens, seed)


def _times(stream: Stream, generator: random.Random) -> list[float]:
    if stream.shape is not None:
        return [stream.start_s + at_s for at_s in arrival_rates.times(stream.shape, generator)]
    if stream.arrivals == "constant":
        return [stream.start_s + position / stream.rate_per_s for position in range(stream.requests)]
    if stream.arrivals != "poisson":
        raise ValueError(f"arrivals {stream.arrivals!r}: expected constant or poisson")
    times, at_s = [], stream.start_s
    for _ in range(stream.requests):
        at_s += generator.expovariate(stream.rate_per_s)
        times.append(at_s)
    return times


def _keys(stream: Stream, times: list[float], generator: random.Random) -> list[int]:
    keys, requests = stream.keys, len(times)
    if keys is None:
        return [-1] * requests
    if keys.names is not None and len(keys.names) != keys.count:
        raise ValueError(f"{len(keys.names)} names for {keys.count} keys: expected as many, or none")
    if stream.content and stream.content.replay and stream.content.replay.keys:
        return list(stream.content.replay.keys)
    if keys.pick == "sweep":
        return [position % keys.count for position in range(requests)]
    if keys.pick == "uniform":
        return [generator.randrange(keys.count) for _ in range(requests)]
    if keys.pick == "hot":
        if not 0.0 <= keys.hot_share <= 1.0 or (keys.moves_every_s is not None and keys.moves_every_s <= 0.0):
            raise ValueError(
                f"hot_share {keys.hot_share} or moves_every_s {keys.moves_every_s}: expected 0 to 1, above 0"
            )
        return [_hot(keys, at_s - stream.start_s, generator) for at_s in times]
    if keys.pick != "zipf":
        raise ValueError(f"keys picked by {keys.pick!r}: expected sweep, uniform, zipf or hot")
    weights = [1.0 / (rank + 1) ** keys.zipf_exponent for rank in range(keys.count)]
    return generator.choices(range(keys.count), weights=weights, k=requests)


def _hot(keys: Keys, at_s: float, generator: random.Random) -> int:
    hot = int(at_s // keys.moves_every_s) % keys.count if keys.moves_every_s else 0
    if keys.count == 1 or generator.random() < keys.hot_share:
        return hot
    return (hot + 1 + generator.randrange(keys.count - 1)) % keys.count
