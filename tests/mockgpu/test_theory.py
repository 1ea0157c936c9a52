"""Waiting in the model server against queueing theory.

Every run starts in the steady state, drawn from its theoretical distribution, with an arrival at time 0: Poisson
arrivals see the steady state (PASTA), the first one as well as all later ones. So the means of independent runs are a
sample of one value whose expectation is known. Waits are skewed and so are their means, so t is corrected for skewness
(P. Hall, On the removal of skewness by transformation, 1992); its absolute value must then be less than ``Z`` = 5. The
probability of a false alarm is 6e-7 per case for a normal t, 2e-5 in total; the limit of 1e-4 leaves a factor of five
for the remaining skewness. Seeds are fixed, so results are reproducible.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from statistics import fmean, stdev

import pytest

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.gpu.events import Finished, Job, Started
from mockgpu.gpu.model import GpuServer

Z = 5.0
RUNS = 500
UNIT = Model("unit", 0, 0.0, 1.0, 1.0)  # a prompt token takes 1 s, and so does an output token


def server(slots: int, model: Model = UNIT) -> GpuServer:
    return GpuServer(Setup(Gpu("box", 0, slots, None), model))


def generator(*name: object) -> random.Random:
    return random.Random(zlib.crc32(repr(name).encode()))


def corrected_t(runs: list[float], expected: float) -> float:
    """Student's t of the mean, corrected for the skewness of the sample."""
    mean, spread, root = fmean(runs), stdev(runs), math.sqrt(len(runs))
    skew = fmean([((run - mean) / spread) ** 3 for run in runs]) / root
    t = (mean - expected) / spread * root
    return t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / 6


def assert_mean(runs: list[float], expected: float) -> None:
    """The mean of the runs agrees with the expected one, and half or twice the value would be rejected."""
    assert abs(corrected_t(runs, expected)) < Z, f"{fmean(runs)}, expected {expected}"
    assert corrected_t(runs, 2 * expected) < -Z and corrected_t(runs, expected / 2) > Z, "too few runs to tell"


def waits(box: GpuServer, rng: random.Random, initial: list[float], rate: float, work: Callable[[], float]) -> float:
    """Mean wait of jobs that arrive at ``rate`` at a server with jobs of work ``initial``."""
    arrivals = 100
    number = 0
    for service_s in initial:
        box.submit(0.0, Job(number, "m", "inference", 1, 0, service_s))
        number += 1
    at_s = 0.0
    for _ in range(arrivals):
        box.submit(at_s, Job(number, "m", "inference", 1, 0, work()))
        at_s += rng.expovariate(rate)
        number += 1
    first = len(initial)
    events = box.advance(math.inf)
    observed = [event.queue_wait_s for event in events if isinstance(event, Started) and event.job_id >= first]
    assert len(observed) == arrivals
    return fmean(observed)


# -- M/M/c ---------------------------------------------------------------------------------------------------


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits, by the recursion of Erlang B; ``load`` is the offered load, < servers."""
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def test_erlang_c_agrees_with_published_values() -> None:
    assert erlang_c(1, 0.75) == pytest.approx(0.75)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=5e-5)


def jobs_in_system(rng: random.Random, servers: int, load: float) -> int:
    """Number of jobs in an M/M/c in the steady state."""
    use = load / servers
    if rng.random() < erlang_c(servers, load):
        return servers + int(math.log(1 - rng.random()) / math.log(use))
    weights = [load**number / math.factorial(number) for number in range(servers)]
    return rng.choices(range(servers), weights)[0]


@pytest.mark.parametrize("use", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("servers", [1, 4, 16])
def test_m_m_c_waits_as_erlang_says(servers: int, use: float) -> None:
    rng = generator("M/M/c", servers, use)
    load = servers * use
    runs = []
    # The fewer jobs wait, the more runs are needed for the mean wait.
    for _ in range(min(4_000, RUNS + int(100 / erlang_c(servers, load)))):
        initial = [rng.expovariate(1) for _ in range(jobs_in_system(rng, servers, load))]
        runs.append(waits(server(servers), rng, initial, load, lambda: rng.expovariate(1)))
    assert_mean(runs, erlang_c(servers, load) / (servers - load))


# -- M/G/1 ---------------------------------------------------------------------------------------------------

SIGMA = 0.8  # of the lognormal
Draw = Callable[[random.Random], float]


def branches(rng: random.Random, weights: tuple[float, float]) -> float:
    """Hyperexponential: a phase of mean 0.5 or 3."""
    return rng.expovariate(1 / rng.choices((0.5, 3.0), weights)[0])


# Work of mean 1: its second moment, a sampler, and a sampler of the residual work at a random instant.
WORKS: dict[str, tuple[float, Draw, Draw]] = {
    "constant": (1.0, lambda rng: 1.0, lambda rng: rng.random()),
    "exponential": (2.0, lambda rng: rng.expovariate(1), lambda rng: rng.expovariate(1)),
    "hyperexponential": (
        2 * (0.8 * 0.5**2 + 0.2 * 3.0**2),
        lambda rng: branches(rng, (0.8, 0.2)),
        lambda rng: branches(rng, (0.4, 0.6)),
    ),
    "lognormal": (
        math.exp(SIGMA**2),
        lambda rng: rng.lognormvariate(-(SIGMA**2) / 2, SIGMA),
        lambda rng: rng.random() * rng.lognormvariate(SIGMA**2 / 2, SIGMA),
    ),
}


def geometric(rng: random.Random, use: float) -> int:
    """n with probability (1 - use) * use**n."""
    return int(math.log(1 - rng.random()) / math.log(use))


@pytest.mark.parametrize("use", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("kind", WORKS)
def test_m_g_1_waits_as_pollaczek_and_khinchine_say(kind: str, use: float) -> None:
    second_moment, draw, rest = WORKS[kind]
    rng = generator("M/G/1", kind, use)
    runs = []
    for _ in range(RUNS):
        # The workload of an M/G/1 in the steady state is a geometric sum of residual works (Beneš).
        initial = [rest(rng) for _ in range(geometric(rng, use))]
        runs.append(waits(server(1), rng, initial, use, lambda: draw(rng)))
    assert_mean(runs, use * second_moment / (2 * (1 - use)))


# -- a batch as processor sharing ------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [0.5, 0.8])
@pytest.mark.parametrize("kind", ["constant", "exponential", "hyperexponential"])
def test_a_batch_whose_step_grows_in_proportion_shares_its_gpu_fairly(kind: str, use: float) -> None:
    """With a step of b seconds for b jobs it is M/G/1 with processor sharing: a mean sojourn time of
    E[work] / (1 - use) seconds for any distribution. In the steady state the number of jobs is geometric."""
    _, draw, rest = WORKS[kind]
    rng = generator("M/G/1-PS", kind, use)
    shared = Model("shared", 0, 0.0, 1.0, 1.0, 1.0)
    runs = []
    for _ in range(RUNS):
        box = server(10_000, shared)
        initial = geometric(rng, use)
        for number in range(initial):
            box.submit(0.0, Job(number, "m", "inference", 0, 1, rest(rng)))
        at_s, arrived = 0.0, {}
        for number in range(initial, initial + 100):
            arrived[number] = at_s
            box.submit(at_s, Job(number, "m", "inference", 0, 1, draw(rng)))
            at_s += rng.expovariate(use)
        # Jobs near the end of the arrivals have shorter sojourn times, so the last ones are not measured.
        measured = range(initial, initial + 20)
        ended = {event.job_id: event.at_s for event in box.advance(math.inf) if isinstance(event, Finished)}
        runs.append(fmean(ended[number] - arrived[number] for number in measured))
    assert_mean(runs, 1 / (1 - use))
