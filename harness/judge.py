"""Run each scenario once, apply every property's check to its history, decide the outcome.

Only the judge uses slack (timing uncertainty) and chance: checks yield observations, the judge decides what they prove.
Nothing is retried until it passes. An inconclusive live run is repeated once at twice the time scale, and then the
second counts. A sequential test leaves a conforming share undecided once in a thousand runs, so that repetition adds a
thousandth to the false-alarm rate.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from harness.claims.features import FEATURES, Feature, Limits
from harness.evidence import run_events
from harness.evidence.history import History
from harness.evidence.run_events import Judged, Listener, RunEnded, RunStarted
from harness.property.declare import Property
from harness.property.findings import Finding, Held, Sampled, Undecided, Within
from harness.property.verdict import Figure, FindingRow, Outcome, Record
from harness.scenario.fast_dataclass import scale_durations
from harness.scenario.fault_schedule import conflict
from harness.scenario.model import ClaimsError, DiedError, HarnessError, Scenario, TargetError, UnsupportedError, World
from harness.sim.baselines import baseline_target
from harness.sim.world import play as play_in_sim
from harness.stats import ShareTest
from harness.targets.base import Target
from harness.targets.checked import checked, scaled

Play = Callable[[Target, Scenario, int], History]

NOISY_SHARE = 0.2
"""Findings of a second are undecided if its slack exceeds this share of the shortest interval."""

DECIDED_SHARE = 0.8
"""The outcome is inconclusive if a smaller share of the findings is decided."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one property on one history."""

    outcome: Outcome
    reason: str
    rows: tuple[FindingRow, ...] = ()
    decisive: FindingRow | None = None
    alpha: float = 0.0


class Judge:
    """Judges properties of one target with one seed. Equal scenarios share a run.

    `listener` is told of runs and verdicts; the live world tells it of what happens within a run. `time_scale` is the
    factor for all durations of live runs; a target whose settings are fixed is judged at 1.
    """

    def __init__(
        self,
        target: Target,
        seed: int,
        worlds: Mapping[World, Play],
        listener: Listener = run_events.ignore,
        time_scale: float = 1.0,
    ) -> None:
        self._time_scale = time_scale
        self._target = checked(target)
        self._scaled: dict[float, Target | None] = {1.0: self._target}
        self._seed = seed
        self._worlds = worlds
        self._listener = listener
        self._baselines: dict[tuple[str, str], History] = {}
        self._runs: dict[tuple[World, float, str], History | Verdict] = {}
        self._histories: dict[str, History] = {}
        """The histories of records, by digest."""

    def judge(self, item: Property, world: World) -> Record:
        """The record of `item` in `world`. TargetError and ClaimsError propagate: no property can be judged then."""
        record = self._judge(item, world)
        self._listener(Judged(record.property, world, record.outcome.value, record.reason))
        return record

    def _judge(self, item: Property, world: World) -> Record:
        blank = Record(
            property=item.name,
            summary=item.summary,
            target=self._target.name,
            version=self._target.version,
            world=world,
            seed=self._seed,
            outcome=Outcome.UNSUPPORTED,
        )
        if world not in item.worlds:
            return replace(blank, reason=f"made for {' and '.join(sorted(item.worlds))} only")
        try:
            scenario = self.scenario_of(item)
        except UnsupportedError as error:
            return replace(blank, reason=str(error))
        except Exception:
            return replace(blank, outcome=Outcome.ERROR, reason=f"the scenario crashed: {_crash()}")
        reason = conflict(scenario.timeline)
        if reason:
            return replace(blank, outcome=Outcome.ERROR, reason=f"the scenario cannot be played: {reason}")
        if world is World.SIM:
            return self._attempt(item, world, blank, scenario)
        first = self._slowed(item, blank, scenario, self._time_scale) or self._attempt(item, world, blank, scenario)
        if first.outcome is not Outcome.INCONCLUSIVE:
            return first
        second = self._slowed(item, blank, scenario, 2.0 * first.time_scale)
        return first if second is None else replace(second, first_try=first)

    def history_of(self, record: Record) -> History | None:
        """The history that `record` refers to; None if this judge has none with its digest."""
        return self._histories.get(record.history)

    def scenario_of(self, item: Property) -> Scenario:
        """The scenario of a property for this target. UnsupportedError if the property does not apply."""
        claims = self._target.claims
        missing = [feature.table for feature in item.needs if feature not in claims]
        if missing:
            raise UnsupportedError(f"not claimed: {', '.join(missing)}")
        without = item.without + _limits_off(item)
        masks = [
            feature.table for feature in without if feature in claims and feature.table not in self._target.switches
        ]
        if masks:
            raise UnsupportedError(f"masked by {', '.join(masks)}, which cannot be switched off")
        off = frozenset(
            feature.table
            for feature in without + item.off
            if feature in claims and feature.table in self._target.switches
        )
        off |= self._target.switches - FEATURES.keys()  # without a claim no property can take them into account
        return replace(item.scenario(claims.without(off)), off=off)

    def _slowed(self, item: Property, blank: Record, scenario: Scenario, time_scale: float) -> Record | None:
        """Record of one live run at this time scale; None if the target cannot be slowed down or sped up."""
        if time_scale not in self._scaled:
            self._scaled[time_scale] = scaled(self._target, time_scale)
        target = self._scaled[time_scale]
        if target is None:
            return None
        played = scenario if time_scale == 1.0 else scale_durations(scenario, time_scale)
        return self._attempt(item, World.LIVE, blank, played, time_scale, target)

    def _attempt(
        self,
        item: Property,
        world: World,
        blank: Record,
        scenario: Scenario,
        time_scale: float = 1.0,
        target: Target | None = None,
    ) -> Record:
        """Record of one run."""
        target = target or self._target
        blank = replace(blank, time_scale=time_scale, scenario=scenario.digest())
        history = self._history(target, world, scenario, time_scale)
        if isinstance(history, Verdict):
            return replace(blank, outcome=history.outcome, reason=history.reason)
        try:
            runs = {name: self._baseline(name, target, scenario) for name in item.baselines}
        except Exception:
            return replace(blank, outcome=Outcome.ERROR, reason=f"a baseline crashed: {_crash()}")
        verdict = _verdict(item, history.with_baselines(runs), target)
        decisive, digest = verdict.decisive, history.digest()
        self._histories[digest] = history
        return replace(
            blank,
            outcome=verdict.outcome,
            reason=verdict.reason,
            observed=decisive.observed if decisive else None,
            bound=decisive.bound if decisive else None,
            sample=decisive.sample if decisive else None,
            alpha=verdict.alpha,
            findings=verdict.rows,
            slack_s=float(history.slack_s.max()) if len(history.slack_s) else 0.0,
            history=digest,
            facts=dict(history.facts),
        )

    def _baseline(self, name: str, target: Target, scenario: Scenario) -> History:
        """The scenario's arrivals under a policy of the simulator; shared like any run."""
        key = (name, scenario.digest())
        if key not in self._baselines:
            self._baselines[key] = play_in_sim(baseline_target(name, target.claims), scenario, self._seed)
        return self._baselines[key]

    def _history(self, target: Target, world: World, scenario: Scenario, time_scale: float) -> History | Verdict:
        """The run of a scenario, or the verdict of every property that would have used it."""
        key = (world, time_scale, scenario.digest())
        if key not in self._runs:
            self._listener(RunStarted(scenario, world, self._target.name, self._seed, time_scale))
            digest = ""
            try:
                history = self._runs[key] = self._worlds[world](target, scenario, self._seed)
                digest = history.digest()
                if world is World.SIM:
                    for event in run_events.events_of(history):
                        self._listener(event)
            except (ClaimsError, TargetError):
                raise
            except UnsupportedError as error:
                self._runs[key] = Verdict(Outcome.UNSUPPORTED, str(error))
            except DiedError as error:
                self._runs[key] = Verdict(Outcome.FAIL, f"the balancer failed during the run: {error}")
            except HarnessError as error:
                self._runs[key] = Verdict(Outcome.ERROR, str(error))
            except Exception:
                self._runs[key] = Verdict(Outcome.ERROR, f"the {world.value} world crashed: {_crash()}")
            self._listener(RunEnded(digest))
        return self._runs[key]


def _crash() -> str:
    """The exception being handled, and the line of code that raised it."""
    last = traceback.format_exc().strip().splitlines()
    code = [line.strip() for line in last[:-1] if not set(line) <= set(" ^~")]
    return f"{last[-1]} ({code[-1]})" if code else last[-1]


def _verdict(item: Property, history: History, target: Target) -> Verdict:
    """Verdict of a property on a history, also where its check cannot be applied."""
    if history.died is not None:
        return Verdict(Outcome.FAIL, f"the balancer failed during the run: {history.died}")
    ineffective = [step for step in history.steps if not step.took_effect]
    if ineffective:
        what = ", ".join(f"{step.kind} of gpu-{step.backend} at {step.asked_s:.1f} s" for step in ineffective)
        return Verdict(Outcome.VACUOUS, f"never took effect: {what}")
    requested = len(history.scenario.timeline)
    if len(history.steps) < requested:
        return Verdict(Outcome.VACUOUS, f"{requested} faults and changes requested, {len(history.steps)} carried out")
    if not len(history.requests) or not (len(history.all_requests().answered()) or len(history.attempts)):
        return Verdict(Outcome.VACUOUS, "no traffic: no request was answered and no backend saw an attempt")
    if item.attempts and not history.correlated:
        return Verdict(
            Outcome.UNSUPPORTED, "the balancer forwards no request tag, so attempts cannot be matched to requests"
        )
    try:
        return decide(item(history, target.claims.without(history.scenario.off)), history)
    except UnsupportedError as error:
        return Verdict(Outcome.UNSUPPORTED, str(error))
    except Exception:
        return Verdict(Outcome.ERROR, f"the check crashed: {_crash()}")


def decide(findings: Iterable[Finding], history: History) -> Verdict:
    """The verdict on `findings`: any broken: fail; none at all: vacuous; too few decided: inconclusive; else pass."""
    intervals = history.scenario.intervals_s
    limit_s = NOISY_SHARE * min(intervals) if intervals else None
    judged = [_judged(finding, history, limit_s) for finding in findings]
    rows = tuple(item.row for item in judged)
    if not judged:
        return Verdict(Outcome.VACUOUS, "the run did not test the promise: no finding")
    alpha = sum(item.alpha for item in judged)
    broken = [item.row for item in judged if item.row.ok is False]
    decided = [item.row for item in judged if item.row.ok is not None]
    if broken:
        reason = f"{len(broken)} of {len(judged)} findings broken: {broken[0].note or 'see figures'}"
        return Verdict(Outcome.FAIL, reason, rows, broken[0], alpha)
    unfinished = [item for item in judged if item.unfinished]
    if unfinished or len(decided) < DECIDED_SHARE * len(judged):
        open_rows = [item.row for item in judged if item.row.ok is None]
        reason = f"{len(open_rows)} of {len(judged)} findings undecided: {open_rows[0].note}"
        return Verdict(Outcome.INCONCLUSIVE, reason, rows, open_rows[0], alpha)
    return Verdict(Outcome.PASS, decided[-1].note, rows, decided[-1], alpha)


def _limits_off(item: Property) -> tuple[type[Feature], ...]:
    """Limits, unless the property tests them: other properties would count their rejections as losses."""
    return () if Limits in item.needs else (Limits,)


@dataclass(frozen=True, slots=True)
class _Judged:
    row: FindingRow
    alpha: float = 0.0
    unfinished: bool = False


def _judged(finding: Finding, history: History, limit_s: float | None) -> _Judged:
    if isinstance(finding, Undecided):
        return _Judged(FindingRow(None, finding.at_s, None, None, note=finding.why))
    slack_s = history.worst_slack_s(finding.at_s, finding.until_s)
    exact = isinstance(finding, Held) and finding.exact
    if limit_s is not None and slack_s > limit_s and not exact:
        cause = history.slack_cause(finding.at_s, finding.until_s)
        measured = f"slack {slack_s * 1000:.1f} ms{f' ({cause})' if cause else ''}"
        note = f"{measured}, at most {limit_s * 1000:.1f} ms can be trusted here"
        return _Judged(FindingRow(None, finding.at_s, None, None, note=note))
    match finding:
        case Held():
            # `ok` may be a numpy bool, and broken findings are selected with `is False`.
            ok = bool(finding.ok)
            row = FindingRow(ok, finding.at_s, finding.observed, finding.bound, finding.sample, finding.note)
            return _Judged(row, finding.alpha)
        case Within():
            ok = bool(finding.low_s - slack_s <= finding.observed_s <= finding.high_s + slack_s)
            bound = (finding.low_s, finding.high_s)
            row = FindingRow(ok, finding.at_s, finding.observed_s, bound, finding.sample, finding.note)
            return _Judged(row)
        case Sampled():
            return _sequential(finding)


def _sequential(finding: Sampled) -> _Judged:
    decision = ShareTest(finding.conform, finding.violate, finding.alpha, finding.beta).run(finding.hits)
    observed = decision.successes / decision.trials if decision.trials else 0.0
    ok = {"pass": True, "fail": False, "open": None}[decision.verdict]
    note = finding.note
    if ok is None:
        note = f"{decision.trials} samples do not decide, up to {decision.cap} may be needed. {note}".strip()
    row = FindingRow(ok, finding.at_s, observed, _violation(finding), decision.trials, note)
    return _Judged(row, finding.alpha, unfinished=ok is None)


def _violation(finding: Sampled) -> Figure:
    """The rate, or the two rates, at which a finding becomes a violation."""
    below, above = finding.violate
    if below is None or above is None:
        return above if below is None else below
    return (below, above)
