"""The data path of the embedded server, and of a real one if installed, against recorded behaviour of Toxiproxy 2.12.0.

`recorded/data_path_2.12.0.jsonl` holds the results of 33 experiments on the real server, one per line. Outcomes, bytes
and booleans must be equal. Times (ms) must be equal within 12 ms or 5 %. A time counts only if the sentinel, which
repeats a sleep of 1 ms and a round trip, had no delay of 3 ms or more during the measurement. A part with a time that
does not count is repeated, whatever its value; at the end all times of at least 25 experiments must count. Random
results are checked against bounds instead.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.bench.quiet import Gate
from tests.harness.toxiproxy import experiments_cuts, experiments_draws, experiments_opening, experiments_pace, rig
from tests.harness.toxiproxy.lab import Lab, Lap, Part, Sentinel, laps_in

RECORDED = Path(__file__).parent / "recorded" / "data_path_2.12.0.jsonl"
EXPERIMENTS = 33
MUST_COUNT = 25
ROUNDS = 5
CONCURRENT_PARTS = 8
LATE_S = 0.003
TOLERANCE_MS, TOLERANCE = 12.0, 0.05

NOT_COMPARED = {
    "first": "depends on where the kernel cuts reads",
    "nreads": "depends on where the kernel cuts reads",
    "sizes": "depends on where the kernel cuts reads",
    "span": "of that",
    "max": "one delay of the scheduler",
    "p90": "a few delays of the scheduler",
    "mean": "one delay of the scheduler",
    "api_ms": "the duration of an API call is not specified",
    "update_call": "the duration of an API call is not specified",
    "rm_call": "the duration of an API call is not specified",
    "rm_ms": "the duration of an API call is not specified",
    "connect_ms": "the kernel's, not the proxy's",
}

TIMES_WITHIN = {
    # 100 ms of latency, plus the time of reader and server for 20 MiB: 10 to 31 ms with the real server, a multiple of
    # that if they share a core. A latency applied to each chunk in turn would take seconds.
    "latency_bulk/total": (100.0, 300.0),
    # Near the maximum rate of reader and server: the real one takes 11 to 25 % longer than requested.
    "bandwidth_rates/100000KBs_50000000B/total": (495.0, 700.0),
}

Problems = Iterator[str]


# Bounds that replace recorded values of random or deliberately different results.


def check_noop(observed: dict[str, Any]) -> Problems:
    if not 0 < observed["via"]["p50"] < observed["direct"]["p50"] + 5:
        via_ms, direct_ms = observed["via"]["p50"], observed["direct"]["p50"]
        yield f"a round trip takes {via_ms:.3f} ms, {direct_ms:.3f} ms without the proxy"


def check_jitter(observed: dict[str, Any]) -> Problems:
    for key, laps in observed.items():
        latency_ms, jitter_ms = map(int, key.split("+-"))
        jitter_ms = max(0, jitter_ms)
        if laps["min"] < latency_ms - jitter_ms:
            yield f"{key}: {laps['min']:.1f} ms is early"
        # The median of 60 draws is further than this from the middle of the range once in 10,000 runs.
        middle_ms = latency_ms if latency_ms >= jitter_ms else (latency_ms + max(0, latency_ms - jitter_ms)) / 2
        if not middle_ms - 0.6 * jitter_ms <= laps["p50"] <= latency_ms + 0.6 * jitter_ms + TOLERANCE_MS:
            yield f"{key}: {laps['p50']:.1f} ms in the middle"


def check_sum_of_delays(observed: dict[str, Any]) -> Problems:
    if sum(observed["sizes"]) != 21:
        yield f"{sum(observed['sizes'])} of 21 bytes arrived"


def check_embedded_sum_of_delays(observed: dict[str, Any]) -> Problems:
    """The embedded server applies both delays to each chunk in full, the real one too little of the second."""
    yield from check_sum_of_delays(observed)
    if min(observed["delays"]) < 200:
        yield f"delays of {', '.join(f'{delay:.1f}' for delay in observed['delays'])} ms, expected 200 or more"


def check_removed(observed: dict[str, Any]) -> Problems:
    """All held data leaves at once; the kernel decides the number of reads."""
    arrived = observed["arrive"]
    if sum(size for size, _ in arrived) != 6 or not observed["rm_at"] <= arrived[0][1] <= arrived[-1][1] < 600:
        yield f"removed at {observed['rm_at']:.0f} ms, arrived {arrived}"


def check_slices(observed: dict[str, Any]) -> Problems:
    for key, slices in observed.items():
        if slices["total"] != (20_000 if "20000B" in key else 1000):
            yield f"{key}: {slices['total']} bytes arrived"
    # A delayed reader gets several pieces at once, but never part of a piece.
    even = observed["avg100var0delay10000us_1000B"]
    if not set(accumulate(even["sizes"])) <= set(accumulate([62, 63] * 8)) or even["span"] < 150:
        yield f"1000 bytes by 100 arrived as {even['sizes']} within {even['span']:.0f} ms"
    uneven = observed["avg100var50delay10000us_1000B"]["sizes"]
    if not (len(set(uneven)) > 2 and statistics.median(uneven) <= 150):
        yield f"1000 bytes by 50 to 150 arrived as {uneven}"


def check_toxicity(observed: dict[str, Any]) -> Problems:
    """Counts of fair draws leave these bounds less than once in 100,000 runs."""
    exact = ("mixed_within_connection", "toxicity_0", "toxicity_-1", "toxicity_2.5", "redrawn_on_update")
    for key, expected in zip((*exact, "redrawn_on_next_add_remove"), (0, 0, 0, 20, True, True), strict=True):
        if observed[key] != expected:
            yield f"{key}: {observed[key]}, expected {expected}"
    if not observed["redrawn_on_next_appended(first only)"]["rest_const"]:
        yield "redrawn when a toxic was appended further on"
    both = observed["up_and_down_independent"]
    if not (13 <= observed["hit"] <= 47 and 2 <= both["0"] <= 32 and 2 <= both["2"] <= 32 and both["1"] >= 13):
        yield f"{observed['hit']} of 60 hit; neither, one or both directions: {both}"


def check_stall(observed: dict[str, Any]) -> Problems:
    expected = {"recv": "timeout", "after_remove": ["ok", 3], "upstream_close_while_stalled": "timeout"}
    if observed != expected:
        yield f"{observed}, expected {expected}"


def check_hung_dial(observed: dict[str, Any]) -> Problems:
    """A real server never answers the disable request; the embedded one answers at once."""
    if (observed["client"], observed["disable"][0], observed["get_during"]) != ("timeout", "200", 200) or observed[
        "disable"
    ][1] > 1000:
        yield f"{observed}"


BOUNDS: dict[str, Callable[[dict[str, Any]], Problems]] = {
    "noop_rtt": check_noop,
    "latency_jitter": check_jitter,
    "latency_two_chained_queued": check_sum_of_delays,
    "latency_remove_live": check_removed,
    "slicer": check_slices,
    "toxicity": check_toxicity,
    "bandwidth_zero": check_stall,
}
DIFFERENT_HERE: dict[str, Callable[[dict[str, Any]], Problems]] = {
    "latency_two_chained_queued": check_embedded_sum_of_delays,
    "hung_dial": check_hung_dial,
}
"""The only experiments in which the embedded server must differ from the real one."""


# Comparison.


def differences(real: object, observed: object, counts: Callable[[Lap], bool], path: str) -> Problems:
    """Differences between a value and the recorded one."""
    if isinstance(observed, Lap):
        if not isinstance(real, int | float):
            yield f"{path}: {observed:.1f} ms, recorded {real!r}"
        elif path in TIMES_WITHIN:
            if observed < TIMES_WITHIN[path][0] or (counts(observed) and observed > TIMES_WITHIN[path][1]):
                yield f"{path}: {observed:.1f} ms, expected {TIMES_WITHIN[path]}"
        elif counts(observed) and abs(observed - real) > max(TOLERANCE_MS, TOLERANCE * abs(real)):
            yield f"{path}: {observed:.1f} ms, recorded {real} ms"
    elif isinstance(real, dict) and isinstance(observed, dict):
        for key in real.keys() - NOT_COMPARED.keys():
            if key in observed:
                yield from differences(real[key], observed[key], counts, f"{path}/{key}")
            else:
                yield f"{path}/{key}: nothing, recorded {real[key]!r}"
        for key in observed.keys() - real.keys() - NOT_COMPARED.keys():
            yield f"{path}/{key}: {observed[key]!r}, nothing recorded"
    elif isinstance(real, list) and isinstance(observed, list) and len(real) == len(observed):
        for index, (one, other) in enumerate(zip(real, observed, strict=True)):
            yield from differences(one, other, counts, f"{path}[{index}]")
    elif real != observed:
        yield f"{path}: {observed!r}, recorded {real!r}"


class Laboratory:
    """Runs all experiments against one server, and repeats parts with times that do not count."""

    def __init__(self, port: int) -> None:
        self._lab = Lab(port)
        self._parts = [
            *experiments_draws.PARTS,  # the longest first
            *experiments_pace.PARTS,
            *experiments_cuts.PARTS,
            *experiments_opening.PARTS,
        ]
        self._values: dict[Part, Any] = {}
        self.uncounted: dict[Part, list[Lap]] = {}

    def run(self) -> dict[str, dict[str, Any]]:
        """The results by experiment."""
        again = self._parts
        for _ in range(ROUNDS):
            with Sentinel(self._lab) as sentinel:
                with ThreadPoolExecutor(CONCURRENT_PARTS) as pool:
                    concurrent = [part for part in again if not part.alone]
                    self._values.update(zip(concurrent, pool.map(self._run, concurrent), strict=True))
                for part in again:
                    if part.alone:
                        self._values[part] = self._run(part)
            for part in again:
                laps = () if part.experiment in BOUNDS else laps_in(self._values[part])
                self.uncounted[part] = [lap for lap in laps if sentinel.worst_s(lap) >= LATE_S]
            again = [part for part in again if self.uncounted[part]]
        observed: dict[str, dict[str, Any]] = defaultdict(dict)
        for part, value in self._values.items():
            observed[part.experiment].update(value if part.key is None else {part.key: value})
        return {**observed, "hung_dial": experiments_opening.hung_dial(self._lab)}

    def _run(self, part: Part) -> Any:
        try:
            return part.run(self._lab)
        except Exception as error:
            raise AssertionError(f"{part.experiment} {part.key or ''}: {type(error).__name__}: {error}") from error

    def counted(self) -> set[str]:
        """The experiments whose times all count."""
        left_out = {part.experiment for part, laps in self.uncounted.items() if laps}
        return {part.experiment for part in self._parts} - left_out

    def counts(self, lap: Lap) -> bool:
        """Whether a time counts."""
        return not any(lap is late for laps in self.uncounted.values() for late in laps)


@pytest.mark.slow
@pytest.mark.laboratory("toxiproxy data path")
@pytest.mark.parametrize("kind", rig.KINDS)
def test_behaves_as_recorded(kind: str) -> None:
    recorded = {line["exp"]: line["obs"] for line in map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())}
    assert len(recorded) == EXPERIMENTS
    gate = Gate()
    with rig.start_server(kind) as server:
        laboratory = Laboratory(server.port)
        observed = laboratory.run()
    assert observed.keys() == recorded.keys()
    bounds = {**BOUNDS, **(DIFFERENT_HERE if kind == "embedded" else {})}
    found = []
    for experiment, real in recorded.items():
        if experiment in bounds:
            problems = bounds[experiment](observed[experiment])
        else:
            problems = differences(real, observed[experiment], laboratory.counts, experiment)
        found += [f"{experiment}: {problem}" for problem in problems]
    assert not found, "\n".join(found)
    counted = laboratory.counted() | {"hung_dial"}
    gate.require(
        len(counted) >= MUST_COUNT, f"only {len(counted)} experiments count, {MUST_COUNT} must: {sorted(counted)}"
    )
