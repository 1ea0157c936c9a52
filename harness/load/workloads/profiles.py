"""Named loads for use without a scenario: each is built for a mean rate and a length. Pure.

`load_of("spike", 50.0, 60.0)` is about 3,000 requests in a minute, at a constant rate with a spike in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.load.wire import NUMBER_BITS
from harness.load.workloads import traces
from harness.scenario.arrival_rates import (
    Bursts,
    Constant,
    Diurnal,
    OnOff,
    Poisson,
    Ramp,
    Recorded,
    Shape,
    Spike,
    Step,
    expected,
)
from harness.scenario.model import Chats, ClaimsError, Connections, Keys, Load, Method, Stream
from harness.scenario.request_mix import Content, LongTail, Sessions
from harness.scenario.validation import nearest

MODELS = 20
"""Number of models of a profile."""

THINK_S = 5.0
"""Mean think time between two turns of a session, in seconds."""

LONG_S = 60.0
"""Patience of clients whose answers may be long."""

QUICK_S = 0.1
"""Answer time in seconds from which that number is computed."""
LEAST_DIFFERENT, MOST_DIFFERENT, PER_USER = 1_000, 20_000, 12
"""Limits of the number of different requests drawn for virtual users; the upper one is at least `PER_USER` for each."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A named load. `make(rate_per_s, duration_s)` builds it; `about` describes it and its use, in one paragraph."""

    name: str
    about: str
    make: Callable[[float, float], Load]


def load_of(name: str, rate_per_s: float, duration_s: float) -> Load:
    """The load called `name` at `rate_per_s` on average, for `duration_s`. ClaimsError, one line, for an unknown name.

    `trace:FILE` is a recorded trace.
    """
    for what, value in (("rate", rate_per_s), ("duration", duration_s)):
        if not 0 < value < math.inf:
            raise ClaimsError(f"{what} {value:g} of the load: expected a number above 0")
    if name.startswith("trace:"):
        return trace_of(Path(name.removeprefix("trace:")), rate_per_s, duration_s)
    if name not in PROFILES:
        raise ClaimsError(f"load profile {name!r} is unknown; {nearest(name, PROFILES)}")
    return PROFILES[name].make(rate_per_s, duration_s)


def closed_loop(load: Load, count: int, think_s: float) -> Load:
    """The requests of `load`, made by `load_of`, as a closed loop of the same length with `count` virtual users.

    With sessions, each user has one at a time. ClaimsError for a load that cannot be a closed loop.
    """
    if count < 1 or not 0 <= think_s < math.inf:
        raise ClaimsError(
            f"{count} virtual users, think time {think_s:g} s: expected at least 1 user and a time of at least 0"
        )
    if len(load.streams) != 1 or load.streams[0].connections is Connections.ONE:
        raise ClaimsError("only a load of one stream, on many connections, can be a closed loop; use another one")
    (stream,) = load.streams
    if stream.requests < 1:
        raise ClaimsError("a load without requests cannot be a closed loop; use a higher rate or a longer load")
    content = stream.content
    if content is not None and content.sessions is not None:
        content = replace(content, sessions=replace(content.sessions, count=count))
    chats = Chats(count, think_s, stream.end_s - stream.start_s)
    return replace(load, streams=(replace(stream, chats=chats, shape=None, content=content),))


def closed_loop_of(name: str, count: int, think_s: float, duration_s: float) -> Load:
    """`count` virtual users with the requests of the load called `name`, for `duration_s`. ClaimsError as in `load_of`.

    As many different requests are drawn as the users could send with answers in `QUICK_S`, up to a limit; then they
    repeat. ClaimsError also for more requests than there are numbers, and for a load whose rate changes, because
    a closed loop has no send times.
    """
    requested = max(count, 1) * (duration_s / (max(think_s, 0.0) + QUICK_S) + 1.0)
    if requested >= 1 << NUMBER_BITS:
        what = f"{count} virtual users for {duration_s:g} s may send {requested:.0f} requests"
        raise ClaimsError(f"{what}: expected less than {1 << NUMBER_BITS}; use a shorter load or fewer users")
    different = min(max(requested, LEAST_DIFFERENT), max(MOST_DIFFERENT, count * PER_USER))
    load = load_of(name, different / duration_s, duration_s)
    if not all(isinstance(stream.shape, Constant | Poisson | Recorded) for stream in load.streams):
        raise ClaimsError(f"load profile {name!r} as a closed loop: expected one of constant rate, as poisson or chat")
    (stream,) = closed_loop(load, count, think_s).streams
    # A trace of few requests would end early.
    return replace(load, streams=(replace(stream, chats=Chats(count, think_s, duration_s)),))


def virtual_users_in(load: Load) -> int:
    """Number of virtual users in all closed loops of `load`."""
    return sum(stream.chats.count for stream in load.streams if stream.chats)


def planned(load: Load) -> int:
    """Expected number of requests of `load`; for a closed loop, of different ones.

    ClaimsError if there are more than request numbers.
    """
    requests = sum(stream.requests for stream in load.streams)
    if requests >= 1 << NUMBER_BITS:
        raise ClaimsError(f"a load of {requests} requests: expected less than {1 << NUMBER_BITS}; make it shorter")
    return requests


def shaped(name: str, shape: Shape, **fields: Any) -> Stream:
    """A stream whose arrivals follow `shape`; its rate and number of requests are the shape's expected ones."""
    count = expected(shape)
    rate_per_s = count / shape.duration_s if shape.duration_s else 1.0
    return Stream(name, 0.0, rate_per_s, round(count), shape=shape, **fields)


# --- the profiles -----------------------------------------------------------------------------------------
# Users see the docstring of each profile.


def steady(rate_per_s: float, duration_s: float) -> Load:
    """Requests at equal intervals, for models of equal popularity.

    The simplest load: any variation in its results is caused by the target.
    """
    return _one("steady", Constant(rate_per_s, duration_s), keys=Keys(MODELS))


def poisson(rate_per_s: float, duration_s: float) -> Load:
    """Many independent users: exponential gaps, and popularity of models by Zipf's law.

    The arrival process of queueing theory; use it to compare results with a simulator or a formula.
    """
    return _one("poisson", Poisson(rate_per_s, duration_s))


def bursts(rate_per_s: float, duration_s: float) -> Load:
    """Half of all requests arrive in six bursts, each more than ten times as dense as the mean rate.

    For queues, limits and hedges: whether a burst is accepted, spread or rejected, and how long it raises latency.
    """
    every_s = duration_s / 6
    return _one("bursts", Bursts(rate_per_s / 2, rate_per_s / 2 * every_s, every_s, every_s / 20, duration_s))


def diurnal(rate_per_s: float, duration_s: float) -> Load:
    """Two days and nights: the rate follows a sine from a fifth of the mean to nearly twice the mean.

    For features that adapt slowly: scores by window, slow start, scaling.
    """
    return _one("diurnal", Diurnal(rate_per_s, duration_s / 2, duration_s))


def ramp(rate_per_s: float, duration_s: float) -> Load:
    """From zero to twice the mean rate in a straight line.

    Shows the rate from which latency rises.
    """
    return _one("ramp", Ramp(0.0, 2 * rate_per_s, duration_s))


def spike(rate_per_s: float, duration_s: float) -> Load:
    """Five times the usual rate, for a tenth of the time, in the middle.

    Shows how a sudden overload changes latency, and whether it has effects after its end.
    """
    calm_per_s = rate_per_s / 1.4
    return _one("spike", Spike(calm_per_s, 5 * calm_per_s, 0.45 * duration_s, 0.1 * duration_s, duration_s))


def step(rate_per_s: float, duration_s: float) -> Load:
    """Four levels of equal length, from two fifths of the mean rate to eight fifths.

    Each level is long enough for figures of its own: for the capacity of a fleet.
    """
    return _one("step", Step(0.4 * rate_per_s, 1.6 * rate_per_s, 4, duration_s))


def on_off(rate_per_s: float, duration_s: float) -> Load:
    """Twice the mean rate and no requests in turn, five times each.

    For effects of silence: idle connections close, models are evicted, windows become empty.
    """
    return _one("on-off", OnOff(2 * rate_per_s, duration_s / 10, duration_s / 10, duration_s))


def chat(rate_per_s: float, duration_s: float) -> Load:
    """Conversations of six turns, each some seconds after the previous one, all answers streamed.

    The prompt of a turn begins with all previous turns, so a balancer that sends a session to the backend with its
    prefix in the cache has lower latency than one that does not.
    """
    content = Content(
        prompt=LongTail(60, 0.8, 2_000),
        output=LongTail(100, 0.7, 1_000),
        sessions=Sessions(math.ceil(THINK_S * rate_per_s), 6),
        streaming_share=1.0,
    )
    return _one("chat", Poisson(rate_per_s, duration_s), content=content, timeout_s=LONG_S)


def mixed(rate_per_s: float, duration_s: float) -> Load:
    """A mix of all features: updates among inferences, three urgencies, GET and POST, streams, clients that abort.

    One in five requests is an update and one in ten uses a new connection. Needs protocol http.
    """
    content = Content(
        update_share=0.2,
        high_share=0.2,
        critical_share=0.05,
        streaming_share=0.3,
        abort_share=0.02,
        abort_after_s=0.5,
        fresh_share=0.1,
    )
    methods = (Method.POST, Method.POST, Method.POST, Method.GET)
    return _one("mixed", Poisson(rate_per_s, duration_s), content=content, methods=methods)


def hot_model(rate_per_s: float, duration_s: float) -> Load:
    """Three in five requests are for one model, and four times in the run another one becomes the hot one.

    For affinity with bounded loads: the hot model must spill over to other backends, and its own backend must recover
    when another model is hot.
    """
    keys = Keys(MODELS, "hot", hot_share=0.6, moves_every_s=duration_s / 5)
    return _one("hot-model", Poisson(rate_per_s, duration_s), keys=keys)


def long_tail(rate_per_s: float, duration_s: float) -> Load:
    """Prompts and answers of very unequal length: most are short, and a few are dozens of times as long.

    The number of requests does not measure work here: for balancers that count tokens or observe queues.
    """
    content = Content(prompt=LongTail(300, 1.2, 16_000), output=LongTail(100, 1.0, 2_000), streaming_share=0.5)
    return _one("long-tail", Poisson(rate_per_s, duration_s), content=content, timeout_s=LONG_S)


def payloads(rate_per_s: float, duration_s: float) -> Load:
    """Bodies from some kilobytes to eight megabytes.

    For buffers and limits of body size, and for retries, which must be able to resend a body.
    """
    content = Content(payload_bytes=LongTail(32_000, 1.8, 8_000_000))
    return _one("payloads", Poisson(rate_per_s, duration_s), content=content, timeout_s=LONG_S)


def trace(rate_per_s: float, duration_s: float) -> Load:
    """A recorded trace, as trace:FILE: its first requests, with times scaled to the mean rate and length of the load.

    CSV or JSON lines; the Azure LLM inference, BurstGPT and Mooncake traces are read without conversion.
    """
    raise ClaimsError("load profile 'trace' needs a file; write trace:FILE")


def trace_of(path: Path, rate_per_s: float, duration_s: float) -> Load:
    """The first `rate_per_s` × `duration_s` requests of the trace at `path`, in `duration_s`.

    A trace with fewer requests is replayed at the same mean rate and ends earlier. ClaimsError if it cannot be read.
    """
    rows = traces.read(path, limit=max(round(rate_per_s * duration_s), 1))
    lasts_s = rows[-1].at_s
    time_scale = len(rows) / rate_per_s / lasts_s if lasts_s > 0 else 1.0
    return traces.load_of_rows(traces.scaled(rows, time_scale), timeout_s=LONG_S)


def _one(name: str, shape: Shape, **fields: Any) -> Load:
    return Load((shaped(name, shape, **{"keys": Keys(MODELS, "zipf"), **fields}),))


def _profile(make: Callable[[float, float], Load]) -> Profile:
    return Profile(make.__name__.replace("_", "-"), " ".join((make.__doc__ or "").split()), make)


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in map(
        _profile,
        (
            steady, poisson, bursts, diurnal, ramp, spike, step, on_off,
            chat, mixed, hot_model, long_tail, payloads, trace,
        ),
    )
}  # fmt: skip
"""All profiles by name."""
