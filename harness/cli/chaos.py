"""`steelyard chaos`: whole-system runs under a named or random fault plan; failing sim runs are shrunk."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.target_option import TargetOption

RANDOM = "random"
SHRUNK_FILE = "steelyard-chaos-{name}-{seed}.json"
NAME = re.compile(r"[a-z0-9-]+")
"""Valid scenario names: they become part of property names."""


def chaos(
    context: typer.Context,
    target: TargetOption = "reference",
    fault_plan: Annotated[
        str, typer.Option("--plan", help="random, or the name of a fault plan such as node-crash")
    ] = RANDOM,
    seed: Annotated[int, typer.Option(help="Seed of the first run; each further run adds 1.", min=0)] = 1,
    runs: Annotated[int, typer.Option(help="Number of runs, one seed each.", min=1)] = 1,
    without: Annotated[str, typer.Option(help="Kinds excluded from random plans, such as kill,reset")] = "",
    seconds: Annotated[float, typer.Option(help="Duration of the fault plan.", min=0.5, max=600.0)] = 4.0,
    backends: Annotated[
        int | None,
        typer.Option(help="Size of the fleet: 4, or the number of addresses in a claims file.", min=2, max=8),
    ] = None,
    world: Annotated[str, typer.Option(help="sim or live; default: sim if the target can run there")] = "",
    scenario: Annotated[Path | None, typer.Option(help="Play the scenario in this JSON file instead.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for failing scenarios.")] = None,
    toxiproxy: Annotated[str, typer.Option(help="embedded, real, or the URL of a running one")] = "embedded",
) -> None:
    """Print a plan, play it, and judge the properties of any fault plan. Exit code: 0 all hold, 1 some do not.

    A run that fails in sim is shrunk to the fewest faults and the smallest load that still fail, printed as a scenario
    that can be pasted into a test, and written to a file for --scenario. Such a file is judged without shrinking.
    """
    from harness.scenario.model import World
    from harness.targets import resolve

    chosen = resolve(target)
    chosen_world = _world(world, chosen)
    if scenario is not None:
        _check_alone(context)
    _check_without(without, fault_plan)
    plans = list(_plans(chosen, fault_plan, seed, runs, _kinds(without, chosen), seconds, backends, scenario))
    failed = 0
    with _worlds(chosen_world, toxiproxy) as worlds:
        for number, plan in plans:
            held, failing = _play(chosen, plan, number, chosen_world, worlds)
            failed += not held
            if failing and chosen_world is World.SIM and scenario is None:
                _shrink_and_write(chosen, target, plan, number, failing[0], worlds, out or Path())
    if runs > 1:
        print(f"{failed} of {runs} runs did not hold.")
    raise typer.Exit(1 if failed else 0)


# --- options and plans ------------------------------------------------------------------------------------


def _world(name: str, target: Any) -> Any:
    """The requested world, by default sim if the target supports it. ClaimsError for an unsupported one."""
    from harness.scenario.model import ClaimsError, World
    from harness.scenario.validation import nearest

    valid = [item.value for item in World]
    if name and name not in valid:
        raise ClaimsError(f"--world {name!r} is unknown; {nearest(name, valid)}")
    chosen = World(name) if name else (World.SIM if World.SIM in target.worlds else World.LIVE)
    if chosen not in target.worlds:
        supported = " and ".join(sorted(item.value for item in target.worlds))
        raise ClaimsError(f"target {target.name} runs in {supported} only; saw --world {name}")
    return chosen


def _check_alone(context: typer.Context) -> None:
    """ClaimsError if an option is given that the file of --scenario replaces."""
    from harness.scenario.model import ClaimsError

    for name in ("fault_plan", "without", "seconds", "backends"):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = name.removeprefix("fault_")
            raise ClaimsError(f"--{option} does not go with --scenario, whose file replaces it; leave one out")


def _check_without(without: str, fault_plan: str) -> None:
    """ClaimsError if --without is given for a plan that is not random."""
    from harness.scenario.model import ClaimsError

    if without and fault_plan != RANDOM:
        raise ClaimsError(f"--without is for random fault plans; leave it out with --plan {fault_plan}")


def _kinds(without: str, target: Any) -> frozenset[str]:
    """Kinds that are not drawn: those named, and membership changes if the target's backends are fixed."""
    from harness.chaos.swarm import KINDS, MEMBERSHIP
    from harness.scenario.model import ClaimsError
    from harness.scenario.validation import nearest

    named = {word.strip() for word in without.split(",") if word.strip()}
    for word in sorted(named - set(KINDS)):
        raise ClaimsError(f"--without {word!r} is no kind of fault; {nearest(word, KINDS)}")
    named |= set() if target.claims.can_join else set(MEMBERSHIP)
    if named >= set(KINDS):
        raise ClaimsError("--without leaves no kind of fault to draw")
    return frozenset(named)


def _plans(
    target: Any,
    fault_plan: str,
    seed: int,
    runs: int,
    without: frozenset[str],
    seconds: float,
    backends: int | None,
    file: Path | None,
) -> Iterator[tuple[int, Any]]:
    """Seed and scenario of each run. ClaimsError for an invalid file or name."""
    from harness.chaos.fault_plans import FAULT_PLANS
    from harness.chaos.swarm import random_fault_plan
    from harness.cli.fleet_size import fleet_size
    from harness.scenario.model import ClaimsError, UnsupportedError
    from harness.scenario.validation import nearest
    from suites.chaos.scenarios import BEFORE_S, under

    if file is None and fault_plan not in (RANDOM, *FAULT_PLANS):
        raise ClaimsError(f"--plan {fault_plan!r} is unknown; {nearest(fault_plan, (RANDOM, *FAULT_PLANS))}")
    known = _read(file, target) if file is not None else None
    try:
        count = target.claims.fleet(fleet_size(target, backends))
    except UnsupportedError as error:
        raise ClaimsError(f"target {target.name} {error}") from None
    names = tuple(f"gpu-{number}" for number in range(count))
    for number in range(seed, seed + runs):
        if known is not None:
            yield number, known
        elif fault_plan == RANDOM:
            steps = random_fault_plan(number, names, seconds, at_s=BEFORE_S, without=without)
            yield number, under(RANDOM, steps, count, target.claims)
        else:
            yield number, under(fault_plan, FAULT_PLANS[fault_plan](names, BEFORE_S, seconds), count, target.claims)


def _read(path: Path, target: Any) -> Any:
    """The scenario in a file. ClaimsError if it cannot be played, or not with this target."""
    from harness.chaos.scenario_text import from_json
    from harness.scenario.model import ClaimsError
    from harness.sim.playable import check

    try:
        known = from_json(path.read_text(encoding="utf-8"))
        check(known)
        _check_off(known.off, target)
    except OSError as error:
        raise ClaimsError(f"--scenario {path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ClaimsError(f"--scenario {path}: {error}") from None
    if not NAME.fullmatch(known.name):
        raise ClaimsError(f"--scenario {path}: name {known.name!r}: expected lower-case letters, digits and '-'")
    return known


def _check_off(off: frozenset[str], target: Any) -> None:
    """ValueError if `off` names an unknown feature, or one that the target cannot switch off."""
    from harness.claims.features import FEATURES
    from harness.scenario.validation import nearest

    for name in sorted(off):
        if name not in FEATURES:
            raise ValueError(f"scenario.off: no feature {name!r}; {nearest(name, FEATURES)}")
        if FEATURES[name] in target.claims and name not in target.switches:
            raise ValueError(f"scenario.off: {target.name} cannot leave {name} out; take it from the list")


# --- playing and judging ----------------------------------------------------------------------------------


@contextmanager
def _worlds(world: Any, toxiproxy: str) -> Iterator[dict[Any, Any]]:
    """The runner of `world`, by world; a live session is closed in every case."""
    from harness.scenario.model import World

    if world is World.SIM:
        from harness.sim.world import play

        yield {World.SIM: play}
        return
    from harness.live.session import LiveSession

    with LiveSession(toxiproxy=toxiproxy, listener=_show) as session:
        yield {World.LIVE: session.play}


def _show(event: Any) -> None:
    """Print a line for an event within a live run, as it happens; the plan has been printed before."""
    from harness.evidence.run_events import StepEffective, StepHealed
    from reports.progress import progress_line

    if isinstance(event, StepEffective | StepHealed):
        print(progress_line(event), flush=True)


def _play(target: Any, scenario: Any, seed: int, world: Any, worlds: dict[Any, Any]) -> tuple[bool, list[str]]:
    """Play a plan; print it, the time series and the outcomes. Returns whether all held, and the failed properties."""
    from rich.console import Console
    from rich.text import Text

    from harness.judge import Judge
    from harness.property.verdict import Outcome
    from reports.run_timeseries import run_timeseries
    from reports.terminal import STYLES
    from reports.timeline import timeseries_table
    from suites.chaos.properties import under_any

    console = Console(highlight=False)
    console.print(f"{scenario.name}, seed {seed}, {scenario.backends} backends, {scenario.end_s:.1f} s:", markup=False)
    console.print(_plan(scenario))
    judge = Judge(target, seed, worlds)
    records = [judge.judge(item, world) for item in under_any(scenario)]
    history = judge.history_of(records[0])
    if history is not None:
        console.print(timeseries_table(run_timeseries(history)))
    for record in records:
        word = Text(f"{record.outcome.value}: ", style=STYLES[record.outcome])
        console.print(word + Text(f"{record.property}: {record.reason}", style=""))
    console.print()
    failing = [record.property for record in records if record.outcome is Outcome.FAIL]
    return all(record.outcome in (Outcome.PASS, Outcome.UNSUPPORTED) for record in records), failing


def _plan(scenario: Any) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from reports.run_timeseries import plan_of

    table = Table("at", "for", "what", "where", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in plan_of(scenario.timeline):
        table.add_row(*map(Text, row))
    return table


def _shrink_and_write(
    target: Any, option: str, scenario: Any, seed: int, name: str, worlds: dict[Any, Any], folder: Path
) -> None:
    """Shrink a scenario on which property `name` fails in sim, write it to a file, and print how to play it.

    `option` is the name of `target` on the command line.
    """
    from harness.scenario.model import World

    found = _shrunk(target, scenario, seed, name, worlds)
    path = _write(found, folder, SHRUNK_FILE.format(name=scenario.name, seed=seed))
    words = [*target.repeat_prefix(World.SIM), "steelyard", "chaos", "--target", option]
    print(f"Play it again with: {shlex.join([*words, '--seed', str(seed), '--scenario', str(path)])}\n")


def _shrunk(target: Any, scenario: Any, seed: int, name: str, worlds: dict[Any, Any]) -> Any:
    """Shrink a scenario on which property `name` fails, and print the result."""
    from harness.chaos.scenario_text import to_python
    from harness.chaos.shrink import shrink
    from harness.judge import Judge
    from harness.property.verdict import Outcome
    from harness.scenario.model import World
    from suites.chaos.properties import under_any

    def fails(candidate: Any) -> bool:
        (item,) = (item for item in under_any(candidate) if item.name == name)
        return Judge(target, seed, worlds).judge(item, World.SIM).outcome is Outcome.FAIL

    found = shrink(replace(scenario, phases=()), fails)
    streams = found.scenario.load.streams
    load = f"{sum(stream.requests for stream in streams if stream.chats is None)} requests"
    if users := sum(stream.chats.count for stream in streams if stream.chats is not None):
        load += f", {users} virtual users"
    note = ", cut short" if found.cut_short else ""
    print(
        f"Shrunk to {len(found.scenario.timeline)} of {len(scenario.timeline)} steps, {load} and"
        f" {found.scenario.backends} backends in {found.runs} runs{note}; {name} still fails:\n"
    )
    print(to_python(found.scenario))
    return found.scenario


def _write(scenario: Any, folder: Path, name: str) -> Path:
    """Write a scenario to file `name` in `folder`. ClaimsError on failure."""
    from harness.scenario.model import ClaimsError
    from harness.scenario.text_form import to_json

    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(scenario), encoding="utf-8")
    except OSError as error:
        raise ClaimsError(f"--out {folder}: {path} cannot be written ({error.strerror})") from None
    return path
