"""`steelyard load --search`: runs at different rates to find the highest one within a bound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cli.load_command.output_files import write_summary


def search_of(text: str, from_per_s: float, to_per_s: float, error_rate: float, duration_s: float | None) -> Any:
    """The harness.load.results.search.Search for the bound in `text`. ClaimsError if it is invalid."""
    from harness.load.results.search import Search, goal_of
    from harness.load.results.thresholds import threshold_of

    return Search(goal_of(threshold_of(text)), from_per_s, to_per_s, error_rate, least_s=duration_s or 5.0)


def constant_rate(profile: str, with_timeout: Callable[[Any], Any]) -> Callable[[float, float], Any]:
    """`(rate, seconds) -> load` for a profile of constant rate. ClaimsError for another profile.

    `with_timeout` sets the client timeout of a load.
    """
    from harness.load.workloads.profiles import load_of
    from harness.scenario.arrival_rates import Constant, Poisson
    from harness.scenario.model import ClaimsError

    if not all(isinstance(stream.shape, Constant | Poisson) for stream in load_of(profile, 100.0, 10.0).streams):
        raise ClaimsError(f"--search with --profile {profile}: expected a constant rate, such as poisson or steady")
    return lambda rate_per_s, lasts_s: with_timeout(load_of(profile, rate_per_s, lasts_s))


def run_search(search: Any, make: Callable[[float, float], Any], profile: str, about: dict[str, Any], out: Path) -> int:
    """Carry out a search, print and write its results; returns the exit code."""
    from dataclasses import asdict

    from harness.cli.load_command.view import View, found_line, step_line
    from harness.live.load.ad_hoc import generator
    from harness.load.results.search import WARM_UP_S

    runs, interrupted = 0, 0
    with generator(about["engine"]) as generating:
        while (step := search.next_step()) is not None and not interrupted:
            lasts_s = WARM_UP_S + step.requests / step.rate_per_s
            with View(f"{step.rate_per_s:.4g}/s for {lasts_s:.3g} s", lasts_s) as view:
                workload, seed = make(step.rate_per_s, lasts_s), about["seed"] + runs  # a new sample for each run
                played = generating.play(workload, about["target"], seed, about["protocol"], view.show, 1.0)
            runs, interrupted = runs + 1, played.interrupted
            if not interrupted:
                print(step_line(search.observe(played.rows)), flush=True)
    if search.results or not interrupted:
        print(found_line(search))
    results = {
        "profile": profile,
        "search": search.goal.text,
        "error_rate": search.error_rate,
        "holds_per_s": search.holds_per_s,
        "broken_per_s": search.broken_per_s,
        "interrupted": bool(interrupted),
        "rates": [asdict(result) for result in search.results],
    }
    write_summary(out, about, results)
    if interrupted:
        print("interrupted: the search is incomplete")
        return 128 + interrupted
    return 0 if search.holds_per_s is not None else 1
