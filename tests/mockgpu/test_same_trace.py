"""One trace through the same model twice: in virtual time, and over sockets with a real clock.

Over sockets a request is submitted to the model slightly later than planned. A small delay can swap it with another
request or with the end of a load, and a single swap can change evictions for seconds (even the 0.1 ms between a
request's arrival and its submission have done so). So the test replays the logged submission times in virtual time,
which must reproduce the same loads, evictions, cache hits, batches, waits and endings exactly. Submission times may
differ from the planned ones by the slack at most, and services may last longer by the slack at most.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from aiohttp import ClientSession, ClientTimeout, TCPConnector

from mockgpu.api.tags import NUMBER_LIMIT, tag_of
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.gpu.events import Evicted, Finished, FirstToken, Job, Loaded, Loading, Preempted, Refused, Resumed, Started
from mockgpu.gpu.model import GpuServer
from mockgpu.gpu.prompt_blocks import blocks_of
from mockgpu.server.attempt_log import LogRow, RowKind, RowOutcome
from tests.mockgpu.processes import HOST, NONCE, Fleet, fleet

REQUESTS = 1_200
RATE_PER_S = 140.0
SENTINEL_S = 0.005
MODELS = 12
FIT = 4
SETUP = Setup(
    gpu=Gpu("small", memory_mb=FIT * 100 + 100, max_running=4, queue_limit=20, update_s=0.005, kv_share=0.2),
    default_model=Model("any", 100, 0.03, 20_000.0, 0.0008, decode_slope_s=0.0002, kv_bytes_per_token=250_000),
    models=(
        Model("heavy", 200, 0.06, 20_000.0, 0.001, decode_slope_s=0.0003, kv_bytes_per_token=300_000),
        Model("giant", 500, 1.0, 20_000.0, 0.001),
    ),
)
NAMES = ["m-0", "m-1", "heavy", *(f"m-{number}" for number in range(2, MODELS - 1))]
RESIDENCY = {RowKind.RESIDENCY_LOADING: Loading, RowKind.RESIDENCY_LOADED: Loaded, RowKind.RESIDENCY_EVICTED: Evicted}


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the trace; ``job.id`` is its number."""

    at_s: float
    job: Job
    prompt: str
    stream: bool


def trace() -> list[Planned]:
    """Poisson arrivals for more models than fit in memory, and one too large; with updates and shared prefixes."""
    generator = random.Random("trace")
    weights = [1 / rank for rank in range(1, MODELS + 1)]
    planned, at_s = [], 0.0
    for number in range(REQUESTS):
        at_s += generator.expovariate(RATE_PER_S)
        (model,) = generator.choices(NAMES, weights)
        if number % 100 == 99:
            model = "giant"
        update = number % 25 == 7
        prompt_tokens = 0 if update else generator.randrange(20, 200)
        output_tokens = 0 if update else generator.randrange(1, 20)
        topic = f"topic-{generator.randrange(3)}"
        words = [topic] * (prompt_tokens // 2) + [f"own-{number}"] * (prompt_tokens - prompt_tokens // 2)
        prompt = " ".join(words)
        blocks = blocks_of(prompt, prompt_tokens, SETUP.gpu.block_tokens)
        kind: Literal["update", "inference"] = "update" if update else "inference"
        job = Job(number, model, kind, prompt_tokens, output_tokens, prompt_blocks=blocks)
        planned.append(Planned(at_s, job, prompt, stream=not update and number % 3 == 0))
    return planned


@dataclass(slots=True)
class Fate:
    """The outcome of one request. ``end``: "length" as in OpenAI, "" for an update, or the reason of refusal."""

    cold: bool = False
    batch: int = 0
    cached_tokens: int = 0
    preempted: int = 0
    waited_s: float = 0.0
    service_s: float = 0.0
    ended_s: float = 0.0
    end: str = ""


@dataclass(slots=True)
class Story:
    """All residency events in order, and the outcome of every request."""

    residency: list[tuple[float, type, str]]
    fates: dict[int, Fate]

    def count(self, kind: type) -> int:
        """Number of residency events of a kind."""
        return sum(1 for _, happened, _ in self.residency if happened is kind)


def in_virtual_time(jobs: Sequence[tuple[float, Job]]) -> Story:
    """Simulate these jobs, submitted at these times."""
    server = GpuServer(SETUP)
    events = []
    for at_s, job in jobs:
        server.submit(at_s, job)
        events += server.advance(at_s)
    while (next_s := server.next_event_s()) is not None:
        events += server.advance(next_s)
    story = Story([], {job.id: Fate() for _, job in jobs})
    kinds = {job.id: job.kind for _, job in jobs}
    started_s: dict[int, float] = {}
    for event in events:
        match event:
            case Loading() | Loaded() | Evicted():
                story.residency.append((event.at_s, type(event), event.model))
            case Started():
                fate = story.fates[event.job_id]
                fate.cold, fate.waited_s = event.cold, event.queue_wait_s
                fate.batch, fate.cached_tokens = event.batch, event.cached_tokens
                started_s[event.job_id] = event.at_s
            case Finished():
                fate = story.fates[event.job_id]
                fate.ended_s, fate.service_s = event.at_s, event.at_s - started_s[event.job_id]
                fate.end = "" if kinds[event.job_id] == "update" else "length"
            case Refused():
                fate = story.fates[event.job_id]
                fate.ended_s, fate.end = event.at_s, event.reason
            case Preempted():
                story.fates[event.job_id].preempted += 1
            case _:
                assert isinstance(event, FirstToken | Resumed)
    return story


async def over_sockets(port: int, planned: Sequence[Planned]) -> tuple[float, dict[int, str], list[float]]:
    """Send each request at its planned time, independently of the others.

    Returns the monotonic time of the trace's zero, the end of each request (as in ``Fate.end``), and the delays of
    sentinel pings against their due times, in seconds: the timing uncertainty of this machine.
    """
    ends: dict[int, str] = {}
    sentinels_s: list[float] = []
    connector = TCPConnector(limit=0)
    async with ClientSession(f"http://{HOST}:{port}", connector=connector, timeout=ClientTimeout(total=60)) as session:

        async def ping(due_s: float) -> None:
            async with session.get("/mock/ping") as answer:
                await answer.read()
            sentinels_s.append(time.monotonic() - due_s)

        async def keep_pinging(group: asyncio.TaskGroup, zero_s: float) -> None:
            for number in range(int(planned[-1].at_s / SENTINEL_S)):
                due_s = zero_s + number * SENTINEL_S
                await asyncio.sleep(due_s - time.monotonic())
                group.create_task(ping(due_s))

        async def send(item: Planned) -> None:
            ends[item.job.id] = await send_request(session, item)

        zero_s = time.monotonic() + 0.1
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_pinging(group, zero_s))
            for item in planned:
                await asyncio.sleep(zero_s + item.at_s - time.monotonic())
                group.create_task(send(item))
    return zero_s, ends, sentinels_s


async def send_request(session: ClientSession, item: Planned) -> str:
    """Send one request; returns its end as in ``Fate.end``."""
    job = item.job
    body: dict[str, Any] = {"seed": tag_of(NONCE, job.id)}
    path = "/v1/updates"
    if job.kind == "inference":
        path = "/v1/completions"
        body |= {"model": job.model, "max_tokens": job.output_tokens, "prompt": item.prompt}
        body |= {"stream": item.stream}
    async with session.post(path, json=body, headers={"x-model-id": job.model}) as answer:
        text = await answer.text()
    if answer.status != 200:
        return str(json.loads(text)["error"]["code"])
    if job.kind == "update":
        return ""
    if item.stream:
        *events, end = [line.removeprefix("data: ") for line in text.splitlines() if line]
        assert end == "[DONE]" and len(events) == job.output_tokens
        text = events[-1]
    return str(json.loads(text)["choices"][0]["finish_reason"])


@dataclass(frozen=True, slots=True)
class Run:
    """The trace over sockets: client results and the backend's log.

    ``slack_s``: the largest sentinel delay plus the interval between two sentinels.
    """

    planned: list[Planned]
    zero_s: float
    ends: dict[int, str]
    slack_s: float
    rows: dict[int, LogRow]
    residency: list[tuple[float, type, str]]

    def submissions(self) -> list[tuple[float, Job]]:
        """Submission time of each request to the model, in order."""
        jobs = [(self.rows[item.job.id].submitted_s, item.job) for item in self.planned]
        return sorted(jobs, key=lambda pair: pair[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trace")
    setup = folder / "setup.json"
    setup.write_text(SETUP.to_json())
    planned = trace()
    with fleet(folder, 1, "--setup", str(setup)) as backends:
        zero_s, ends, sentinels_s = asyncio.run(over_sockets(backends.ports[0], planned))
        rows = settled(backends)
    residency: list[tuple[float, type, str]] = [
        (row.arrival_s, RESIDENCY[row.kind], row.model) for row in rows if row.kind in RESIDENCY
    ]
    own = {row.tag % NUMBER_LIMIT: row for row in rows if row.kind in (RowKind.INFERENCE, RowKind.UPDATE)}
    assert len(own) == len(rows) - len(residency) == REQUESTS
    return Run(planned, zero_s, ends, max(sentinels_s) + SENTINEL_S, own, residency)


def settled(backends: Fleet) -> list[LogRow]:
    """All rows, once complete; a client may have its answer shortly before the row is closed."""
    end_s = time.monotonic() + 10
    while True:
        rows = backends.rows(0)
        if all(row.outcome is not RowOutcome.OPEN for row in rows):
            return rows
        assert time.monotonic() < end_s, "a row stays open"
        time.sleep(0.01)


def test_the_trace_puts_the_model_under_strain() -> None:
    planned = trace()
    story = in_virtual_time([(item.at_s, item.job) for item in planned])
    assert len(planned) >= 1_000 and story.count(Evicted) >= 50
    fates = story.fates.values()
    ends = Counter(fate.end for fate in fates)
    assert ends.keys() == {"length", "", "queue_full", "out_of_memory"} and min(ends.values()) >= 10
    # Some wait for a load, and some whose model is resident wait for a slot.
    assert sum(fate.cold for fate in fates) >= 200
    assert sum(not fate.cold and fate.waited_s > 0 for fate in fates) >= 100
    # Many share a batch or a prefix, and a few are preempted.
    assert sum(fate.batch > 1 for fate in fates) >= 100 and sum(fate.cached_tokens > 0 for fate in fates) >= 100
    assert sum(fate.preempted for fate in fates) >= 10


@pytest.mark.slow
def test_sockets_tell_the_story_of_virtual_time(run: Run) -> None:
    story = in_virtual_time(run.submissions())
    assert [event[1:] for event in story.residency] == [event[1:] for event in run.residency]
    for virtual, real in zip(story.residency, run.residency, strict=True):
        assert real[0] == pytest.approx(virtual[0], abs=1e-6)
    for number, fate in story.fates.items():
        row = run.rows[number]
        assert (run.ends[number], bool(row.cold)) == (fate.end, fate.cold), number
        if fate.service_s:
            assert (row.status, row.outcome) == (200, RowOutcome.ANSWERED)
            assert (row.batch, row.cached_tokens) == (fate.batch, fate.cached_tokens)
            assert row.queue_wait_s == pytest.approx(fate.waited_s, abs=1e-6)
        else:
            assert (row.status, row.outcome) == (503, RowOutcome.REFUSED)


def test_services_last_as_long_as_in_virtual_time_and_a_little(run: Run) -> None:
    fates = in_virtual_time(run.submissions()).fates
    late_s = [row.service_actual_s - fates[number].service_s for number, row in run.rows.items() if row.status == 200]
    assert min(late_s) > -1e-9
    assert max(late_s) <= run.slack_s
    ended_late_s = [row.end_s - fates[number].ended_s for number, row in run.rows.items()]
    assert min(ended_late_s) > 0 and max(ended_late_s) <= run.slack_s


def test_requests_reach_the_model_within_the_slack_of_their_times(run: Run) -> None:
    planned_s = {item.job.id: run.zero_s + item.at_s for item in run.planned}
    order = [(planned_s[job.id], at_s) for at_s, job in run.submissions()]
    assert all(0 < at_s - due_s <= run.slack_s for due_s, at_s in order)
    # So a request overtook only requests due at nearly the same time.
    assert all(first - second <= run.slack_s for (first, _), (second, _) in itertools.pairwise(order))


def test_swaps_change_which_models_go_but_hardly_how_many(run: Run) -> None:
    virtual = in_virtual_time([(item.at_s, item.job) for item in run.planned])
    real = Counter(kind for _, kind, _ in run.residency)
    for kind in (Loading, Evicted):
        assert real[kind] == pytest.approx(virtual.count(kind), rel=0.1)
    cold = sum(row.cold for row in run.rows.values())
    assert cold == pytest.approx(sum(fate.cold for fate in virtual.fates.values()), rel=0.15)
