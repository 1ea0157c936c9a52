"""How exact the aiohttp engine is at 2,000 requests/s, against the same engine pacing with `asyncio.sleep`.

The gate is a ratio within one run of the best of interleaved rounds (noise only ever adds), beside facts that no delay
can change. The rest is printed (``pytest -s``) and gates nothing: on a quiet machine the p99 of lateness is below 2 ms
and .6 to .7 of asyncio.sleep's; on a busy one it is the scheduler's doing (.3 to 1.7).
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.records import Rows, read_requests
from harness.load.asyncio_engine.engine import AsyncioEngine
from harness.load.asyncio_engine.timer import SleepWaiting, Waiting, best_waiting
from harness.load.job import LoadJob
from harness.scenario.model import Failure, Load, Stream
from tests.bench.quiet import Gate

LEAN = Path(__file__).parents[1] / "harness" / "load" / "lean_server.py"
RATE_PER_S, REQUESTS, ROUNDS = 2000.0, 1000, 8

P50_AT_MOST = 0.75
"""Of asyncio.sleep's median; .33 to .5 measured, quiet and busy."""
UNFIT_MS = 0.95
"""asyncio.sleep is .65 ms late at the median by rounding alone. With even its best round beyond this, others had the
processor, and what is compared is who got more of it."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the timerfd that is measured is Linux's")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(LEAN)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lean:
        assert lean.stdout
        yield f"http://127.0.0.1:{int(lean.stdout.readline())}"
        lean.communicate()


def played(url: str, out: Path, waiting: Callable[[], Waiting], seed: int) -> Rows:
    """The records of half a second of Poisson arrivals."""

    async def play() -> None:
        load = Load((Stream("load", 0.0, RATE_PER_S, REQUESTS, arrivals="poisson", timeout_s=20.0),))
        await AsyncioEngine(LoadJob(load, seed, 1, url, time.monotonic() + 0.3, (), str(out)), waiting).run()

    gc.collect()
    gc.freeze()  # as the engine's own process does
    asyncio.run(play())
    gc.unfreeze()
    return read_requests(out)


def test_delay_at_two_thousand_a_second(url: str, tmp_path: Path, gate: Gate) -> None:
    late_ms: dict[str, list[tuple[float, float]]] = {"engine": [], "sleep": []}
    for seed in range(ROUNDS):
        for name, waiting in (("engine", best_waiting), ("sleep", SleepWaiting)):
            rows = played(url, tmp_path / "rows", waiting, seed)
            assert len(rows) == REQUESTS
            assert set(rows["failure"]) == {Failure.NONE}, "a request was lost"
            lateness_s = rows["sent_s"] - rows["intended_s"]
            assert lateness_s.min() >= 0.0, "a request was sent early"
            p50, p99 = np.quantile(lateness_s * 1e3, (0.5, 0.99))
            late_ms[name].append((float(p50), float(p99)))
    for name, rounds in late_ms.items():
        print(f"{name:6} lateness p50/p99 ms: " + ", ".join(f"{p50:.2f}/{p99:.2f}" for p50, p99 in rounds))
    best = {name: np.min(rounds, axis=0) for name, rounds in late_ms.items()}
    if best["sleep"][0] > UNFIT_MS:
        pytest.skip(f"too busy a machine: asyncio.sleep was {best['sleep'][0]:.1f} ms late (p50) at best")
    p50, p99 = best["engine"] / best["sleep"]
    print(f"ratios: p50 {p50:.2f}, p99 {p99:.2f}")
    gate.require(p50 <= P50_AT_MOST, f"p50 is {p50:.2f} of asyncio.sleep's, at most {P50_AT_MOST}")
