"""What a mock backend costs, against aiohttp with one bare route, and how exact it is.

Gates are ratios of CPU time within one run, medians of interleaved rounds, and facts that no delay can change. Absolute
figures are printed (``pytest -s``) and gate nothing: they move several-fold with what else the machine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import AttemptLog, LogRow, RowKind, RowOutcome, read_header, read_rows
from mockgpu.server.clock import Clock, _timerfd_create, _timerfd_setter
from mockgpu.server.engine import Engine, Progress
from tests.bench.quiet import Gate

HERE = Path(__file__).parent
CONNECTIONS = 32
ROUND_S = 0.3
PAIRS, ROUNDS = 5, 4


def setup_of(service_s: float = 0.0, step_s: float = 0.0) -> Setup:
    """A backend that takes ``service_s`` over a request of sixteen tokens, or ``step_s`` over each token."""
    return Setup(Gpu("box", 1_000, 4_096, None), Model("any", 0, 0.0, 1e300, step_s or service_s / 16))


def request_of(**fields: object) -> bytes:
    """A completion over HTTP/1.1."""
    prompt = "one two three four five six seven #sy-0000000000001"
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 16, "seed": 1} | fields).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nx-model-id: m\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process of its own."""

    pid: int
    port: int
    control: int = 0

    def cpu_s(self) -> float:
        """Time on a processor so far, of all threads; finer than the ticks in ``stat``."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@contextlib.contextmanager
def bare(service_s: float) -> Iterator[Server]:
    """aiohttp with one route."""
    command = [sys.executable, str(HERE / "bare_server.py"), str(service_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Server(process.pid, int(process.stdout.readline()))
        finally:
            process.stdin.close()


@contextlib.contextmanager
def mock(folder: Path, setup: Setup) -> Iterator[Server]:
    """One backend behind ``mockgpu serve``."""
    path = folder / "setup.json"
    path.write_text(setup.to_json())
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(path), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            told = json.loads(process.stdout.readline().removeprefix(b"ready "))
            yield Server(told["pid"], told["backends"][0]["port"], told["control_port"])
        finally:
            process.terminate()


# As the command does it, but on a port that the system chooses and with room for more rows.
_SERVE = """
import sys, tempfile
from pathlib import Path
tempfile.tempdir = sys.argv[2]
from mockgpu.gpu.catalogue import Setup
from mockgpu.fleet.fleet import FleetSettings, serve_until_signal
serve_until_signal(FleetSettings(Setup.from_json(Path(sys.argv[1]).read_bytes()), (0,), log_rows=2_000_000))
"""


def drive(script: str, server: Server, *words: object, request: bytes) -> dict[str, object]:
    """Run a client against a server; what it prints."""
    command = [sys.executable, str(HERE / script), str(server.port), *map(str, words)]
    done = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True, timeout=120)
    printed: dict[str, object] = json.loads(done.stdout)
    return printed


def cost_us(server: Server, request: bytes) -> float:
    """CPU microseconds for each request of a closed loop."""
    before_s = server.cpu_s()
    answers = drive("closed_loop.py", server, CONNECTIONS, ROUND_S, request=request)["answers"]
    assert isinstance(answers, int) and answers > 100
    return (server.cpu_s() - before_s) / answers * 1e6


def compared(folder: Path, service_s: float) -> float:
    """Our cost as a multiple of theirs, for requests that take so long: the median of the medians of five pairs.

    Rounds are short, and the two take turns at being first. Each pair of processes is new: where things come to lie in
    memory moves the ratio by some hundredths for as long as a process lives.
    """
    ratios = []
    for pair in range(PAIRS):
        (place := folder / f"pair-{pair}").mkdir()
        with mock(place, setup_of(service_s)) as ours, bare(service_s) as theirs:
            rounds = []
            for number in range(ROUNDS):
                first, second = (ours, theirs) if number % 2 else (theirs, ours)
                costs = {server: cost_us(server, request_of()) for server in (first, second)}
                rounds.append((costs[ours], costs[theirs]))
        del rounds[:1]  # to warm up
        ratios.append(statistics.median(one / other for one, other in rounds))
        mine, other = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"\nmock {mine:.1f} µs, bare {other:.1f} µs, ratio {ratios[-1]:.2f}", end="")
    return statistics.median(ratios)


def test_a_request_costs_no_more_than_half_again_as_much_as_bare_aiohttp(tmp_path: Path, gate: Gate) -> None:
    ratio = compared(tmp_path, 0.0)
    gate.require(ratio <= 1.5, f"{ratio:.2f} of bare aiohttp, at most 1.5")


def test_a_request_that_takes_its_time(tmp_path: Path, gate: Gate) -> None:
    """Five milliseconds: against asyncio.sleep, which is cheaper because it wakes in whole milliseconds, for many."""
    ratio = compared(tmp_path, 0.005)
    gate.require(ratio <= 3.0, f"{ratio:.2f} of bare aiohttp, at most 3")


def event_cost(tmp_path: Path, rounds: int = 5) -> float:
    """CPU time of an event as a multiple of bare aiohttp's, from one pair of processes."""
    streams, tokens, step_s = 64, 40, 0.02
    request = request_of(stream=True, max_tokens=tokens)
    with mock(tmp_path, setup_of(step_s=step_s)) as ours, bare(step_s) as theirs:
        costs: dict[Server, list[float]] = {ours: [], theirs: []}
        for number in range(rounds):
            for server in (ours, theirs) if number % 2 else (theirs, ours):
                before_s = server.cpu_s()
                seen = drive("streams.py", server, streams, request=request)
                assert (seen["events"], seen["wrong"]) == (streams * tokens, "")
                costs[server].append((server.cpu_s() - before_s) / (streams * tokens) * 1e6)
    ratio = statistics.median(one / other for one, other in zip(costs[ours][1:], costs[theirs][1:], strict=True))
    mine, other = (statistics.median(costs[server][1:]) for server in (ours, theirs))
    print(f"\nan event: mock {mine:.1f} µs, bare {other:.1f} µs, ratio {ratio:.2f}", end="")
    return ratio


def test_an_event_of_a_stream_costs_little_more_than_with_bare_aiohttp(tmp_path: Path, gate: Gate) -> None:
    """A wake-up and a send alone are most of it; bare aiohttp sleeps in whole milliseconds, so it wakes for many.

    The median of five pairs of processes: between pairs the ratio varies by some 0.06, around 1.2.
    """
    ratio = statistics.median(event_cost(tmp_path) for _ in range(PAIRS))
    gate.require(ratio <= 1.3, f"{ratio:.2f} of bare aiohttp, at most 1.3")


def test_a_thousand_streams_at_once_lose_and_repeat_nothing(tmp_path: Path) -> None:
    streams, tokens = 1_000, 8
    with mock(tmp_path, setup_of(step_s=0.15)) as ours:
        seen = drive("streams.py", ours, streams, request=request_of(stream=True, max_tokens=tokens))
        assert seen == {"streams": streams, "events": streams * tokens, "wrong": ""}
        rows = rows_of(ours)
    assert len(rows) == streams
    assert {(row.outcome, row.tokens_out) for row in rows} == {(RowOutcome.ANSWERED, tokens)}
    # They were all inside at the same time.
    assert max(row.arrival_s for row in rows) < min(row.end_s for row in rows)
    assert max(row.batch for row in rows) == streams


def rows_of(server: Server) -> list[LogRow]:
    """Rows of inferences, by way of the control port; none may be lost."""
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{server.control}/fleet/gpu-0/log", timeout=60) as answer:
        data = answer.read()
    assert read_header(data).lost == 0
    return [row for row in read_rows(data) if row.kind is RowKind.INFERENCE]


def test_the_log_loses_nothing_at_full_speed(tmp_path: Path) -> None:
    with mock(tmp_path, setup_of()) as ours:
        answers = drive("closed_loop.py", ours, CONNECTIONS, 2.0, request=request_of())["answers"]
        assert isinstance(answers, int)
        rows = rows_of(ours)
    print(f"\n{answers / 2.0:.0f} attempts/s")
    # The client left those that were in flight.
    assert answers <= len(rows) <= answers + CONNECTIONS
    assert sum(row.outcome is RowOutcome.ANSWERED for row in rows) >= answers


def test_fifty_thousand_rows_are_written_and_read_in_one_piece(tmp_path: Path, gate: Gate) -> None:
    count = 50_000
    log = AttemptLog(tmp_path / "log", count)
    began_s = time.process_time()
    for number in range(count):
        row = LogRow(RowKind.INFERENCE, float(number), "POST", tag=number + 1, model="llama-8b")
        ticket = log.add(row)
        row.outcome = RowOutcome.ANSWERED
        row.end_s = number + 0.5
        log.update(ticket, row)
    cost_us = (time.process_time() - began_s) / count * 1e6
    data = log.dump()
    log.close()
    print(f"\n{cost_us:.2f} µs a row, begun and ended")
    rows = read_rows(data)
    assert read_header(data).lost == 0
    assert [row.tag for row in rows] == list(range(1, count + 1))
    assert all(row.end_s == row.arrival_s + 0.5 for row in rows)
    # Five thousand attempts a second leave 200 µs for each.
    gate.require(cost_us < 100, f"{cost_us:.0f} µs for each row, below 100")


SERVICE_S = 0.02


async def lateness_of_service_s() -> list[float]:
    """How much later than asked each of a hundred services ended, 200 of them begun a second."""
    clock = Clock(asyncio.get_running_loop())
    engine = Engine(setup_of(SERVICE_S), clock, lambda _: None)

    async def serve() -> float:
        stay = engine.submit("inference", "m", 0, 16)
        await stay.until(Progress.ENDED)
        return time.monotonic() - stay.started_s - stay.service_asked_s

    late_s = await at_200_a_second(serve)
    clock.close()
    return late_s


async def lateness_of_sleep_s() -> list[float]:
    """The same of asyncio.sleep."""

    async def sleep() -> float:
        began_s = time.monotonic()
        await asyncio.sleep(SERVICE_S)
        return time.monotonic() - began_s - SERVICE_S

    return await at_200_a_second(sleep)


def lateness_of_the_kernel_s() -> float:
    """The median of how much later than asked a process that waits for a timer alone goes on."""
    descriptor = _timerfd_create()
    set_to = _timerfd_setter(descriptor)
    late_s = []
    for _ in range(40):
        due_s = time.monotonic() + 0.005
        set_to(math.ceil(due_s * 1e9))
        select.select([descriptor], [], [])
        late_s.append(time.monotonic() - due_s)
    os.close(descriptor)
    return statistics.median(late_s)


async def at_200_a_second(serve: Callable[[], Coroutine[None, None, float]]) -> list[float]:
    """Begin a hundred, not all at the same place within a millisecond, as arrivals are not."""
    began_s = time.monotonic()
    tasks = []
    for number in range(100):
        await asyncio.sleep(began_s + number * 0.005 + (number % 7) * 1.3e-4 - time.monotonic())
        tasks.append(asyncio.create_task(serve()))
    return list(await asyncio.gather(*tasks))


def test_service_is_never_early_and_closer_than_asyncio_sleep(gate: Gate) -> None:
    """Beyond what the kernel takes to wake anybody, which a busy machine adds to either: at most a fifth."""
    early: list[float] = []
    ours_s: list[float] = []
    theirs_s: list[float] = []
    least_s: list[float] = []
    # What else runs only ever adds to ours, so the best round says what it can do; it comes in spells of some seconds,
    # through which more rounds help. That of asyncio.sleep is half a millisecond by its nature, less or more as the
    # beginnings of a round happen to lie.
    ratio = 1.0
    while len(early) < 5 or (ratio > 1 / 5 and len(early) < 20):
        # In turn, and each in a loop of its own: they would wake each other.
        late_s = asyncio.run(lateness_of_service_s())
        early.append(min(late_s))
        ours_s.append(statistics.median(late_s))
        theirs_s.append(statistics.median(asyncio.run(lateness_of_sleep_s())))
        least_s.append(lateness_of_the_kernel_s())
        ratio = (min(ours_s) - min(least_s)) / (statistics.median(theirs_s) - min(least_s))
    print(f"\nlate by {statistics.median(ours_s) * 1e3:.3f} ms (at best {min(ours_s) * 1e3:.3f} ms), ", end="")
    print(f"asyncio.sleep by {statistics.median(theirs_s) * 1e3:.3f} ms, ", end="")
    print(f"the kernel by {min(least_s) * 1e3:.3f} ms, ratio beyond that {ratio:.2f}", end="")
    # The sum of sixteen steps and their product may differ in the last digits.
    assert min(early) >= -1e-9
    # Without a timer of its own it would be 1.
    gate.require(ratio <= 1 / 5, f"{ratio:.2f} of asyncio.sleep's delay, at most a fifth")
