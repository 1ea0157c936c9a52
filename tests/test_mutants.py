"""Mutants: each is caught by the properties that it names, and by no other; every property catches one.

`wrongly_judged` takes the world, so that chosen mutants can be run in others as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from harness.judge import Judge
from harness.property.declare import catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import World
from harness.sim.world import play
from harness.targets.base import Target
from harness.targets.python import PythonTarget
from harness.targets.reference import ReferenceTarget
from tests.mutants.sketch import SKETCH, Fault

SEED = 1
WORLDS = {World.SIM: play}
PROPERTIES = {item.name: item for item in catalogue()}

REPEAT = "affinity.repeat.same-backend"
ONLY_DEPARTED = "affinity.leave.only-departed-keys-move"
SHARE = "affinity.leave.share"
RETURN = "affinity.return.restores"
HIT_RATE = "cache.affinity.hit-rate"
INDEPENDENT = "health.check-ups.independent"
FAILOVER = "health.failover.within-bound"
OWN_ANSWER = "integrity.answer-belongs-to-request"
EVEN = "spread.one-connection.even"
AVOIDED = "spread.loaded.avoided"

BALANCE = "affinity.balance.within-band"
EACH_LEAVES = "affinity.each-leaves.moves-each-key-once"
JOIN_SHARE = "affinity.join.share"
ONLY_NEWCOMER = "affinity.join.only-to-the-newcomer"
CAPPED = "bounded-load.hot-key.capped"
COMES_HOME = "bounded-load.spill.comes-home"
NOT_REJECTED = "bounded-load.spill.not-rejected"
GETS_SHARE = "membership.join.gets-share"
GETS_NOTHING = "membership.leave.gets-nothing"
REMAPS = (EACH_LEAVES, JOIN_SHARE, ONLY_NEWCOMER)

AT_MOST = "retry.attempts.at-most"
ANOTHER = "retry.backend.another"
BUDGET = "retry.budget.every-window"
DEADLINE = "retry.deadline.holds"
FIRST_BYTE = "retry.first-byte.never"
OUTAGE_ANSWERS = "retry.outage.answers"
OUTAGE_FULL_SIZE = "retry.outage.full-size"
RECOVERS = "retry.outage.recovers"
RETRY_AFTER = "retry.retry-after.honoured"
ONLY_CLAIMED = "retry.status.only-claimed"
TIMEOUT = "retry.timeout.only-claimed"
UPDATE_ONCE = "retry.update.at-most-once"

CONNECTIONS_WEIGH = "health-share.connections.by-their-weight"
ERRORS_WEIGH = "health-share.errors.by-their-weight"
HEALTHY_EVEN = "health-share.healthy.even"
LATENCY_WEIGHS = "health-share.latency.by-its-weight"
MEMORY_WEIGHS = "health-share.memory.by-its-weight"
NOT_READY_NOTHING = "health-share.not-ready.nothing"
NOT_READY_RETURNS = "health-share.not-ready.returns"
HEALTH_RECOVERS = "health-share.recovery.even"
WARM_EVEN = "health-share.warm.even"

EVERY_WINDOW = "limits.rate.every-window"
RATE_LET_IN = "limits.rate.let-in"
TOLD_AT_ONCE = "limits.refusals.told-at-once"
NEVER_MORE = "limits.concurrency.never-more"
CRITICAL_FIRST = "limits.urgency.critical-first"

OUT_NOTHING = "ejection.out.gets-nothing"
CAP_HOLDS = "ejection.cap.never-more"

GROWS = "breaker.backoff.grows"
JITTERED = "breaker.backoff.jittered"
ABORT_FREES = "breaker.half-open.abort-frees-slot"
PROBE_REOPENS = "breaker.half-open.failed-probe-reopens"
ONE_HUNG = "breaker.half-open.one-hung-probe"
ONE_SLOW = "breaker.half-open.one-slow-probe"
ISOLATION = "breaker.isolation.others-answered"
FAILS_FAST = "breaker.open.fails-fast"
FOR_ITS_TIME = "breaker.open.for-its-time"
OPEN_NOTHING = "breaker.open.gets-nothing"
LATE_FAILURES = "breaker.open.ignores-late-failures"
FULL_SHARE = "breaker.recovery.full-share"
STARTS_CLEAN = "breaker.return.starts-clean"
AT_COUNT = "breaker.trip.at-count"
AT_LATENCY = "breaker.trip.at-latency"
AT_RATE = "breaker.trip.at-rate"
BELOW_LATENCY = "breaker.trip.not-below-latency"
BELOW_RATE = "breaker.trip.not-below-rate"
CLIENT_ERRORS = "breaker.trip.not-by-client-errors"
OPENS_WRONGLY = (FOR_ITS_TIME, OPEN_NOTHING, LATE_FAILURES, GROWS)

BREAKER_OFF = "hedge.breaker.off"
DELAY = "hedge.delay.not-before"
ERROR_GOES_ON = "hedge.error.goes-on"
FIRST_GOOD = "hedge.first-good.wins"
HEDGE_ANOTHER = "hedge.backend.another"
LOSER = "hedge.loser.cancelled"
OVERHEAD = "hedge.overhead.within-share"
OVERLOAD = "hedge.overload.off"
SETTLED = "hedge.settled.never"
TAIL = "hedge.tail.cut"
UPDATE_NEVER = "hedge.update.never"

CHAOS_RECOVERS = tuple(
    f"chaos.{name}.recovers"
    for name in (
        "blackhole",
        "brown-out",
        "flapping",
        "grey-failure",
        "node-crash",
        "packet-misery",
        "rolling-restart",
        "thundering-return",
    )
)
BELONG = tuple(name.replace("recovers", "answers-belong") for name in CHAOS_RECOVERS)
CONTAINED = tuple(f"chaos.{name}.contained" for name in ("blackhole", "brown-out", "flapping", "node-crash"))
NOTHING_LOST = ("chaos.grey-failure.nothing-lost", "chaos.packet-misery.nothing-lost")
PACE = "chaos.node-crash.crowd-keeps-its-pace"
OWN_IN_A_RUSH = "integrity.rush.answers-belong"
RUSH = "integrity.rush.nothing-lost"
FEW_LEFT = {"chaos.rolling-restart.answers-belong", "chaos.thundering-return.answers-belong"}

CONFORMING = (
    "tests.mutants.policies:Conforming",
    "tests.mutants.breakers:Conforming",
    "tests.mutants.rings:Bounding",
    "tests.mutants.retries:RetryingOutages",
    "tests.mutants.health_shares:Weighing",
    "tests.mutants.hedges:Hedging",
    "tests.mutants.health_checks:Checking",
    "tests.mutants.spreads:Spreading",
    "tests.mutants.limiters:Limiting",
    "tests.mutants.ejectors:Ejecting",
)
"""What mutants are made of, without a fault."""

KILLS: dict[str, set[str]] = {
    "tests.mutants.policies:Modulo": {ONLY_DEPARTED, SHARE, *REMAPS},
    "tests.mutants.policies:NeverEjects": {FAILOVER},
    "tests.mutants.policies:ListOrder": {ONLY_DEPARTED, SHARE, RETURN, *REMAPS},
    "tests.mutants.policies:PicksAtRandom": {REPEAT, ONLY_DEPARTED, SHARE, RETURN, HIT_RATE, EVEN, *REMAPS},
    "tests.mutants.policies:SticksToConnection": {EVEN},
    "tests.mutants.spreads:ConstantLoad": {AVOIDED},
    "tests.mutants.spreads:NeverCountsDown": {AVOIDED},
    "tests.mutants.gateways:MixesAnswersUp": {OWN_ANSWER, OWN_IN_A_RUSH, *BELONG},
    "tests.mutants.gateways:GrowsCautious": {PACE},
    "tests.mutants.gateways:FewAtATime": {RUSH, "chaos.grey-failure.nothing-lost"},
    "tests.mutants.chaos:NeverForgives": {*CHAOS_RECOVERS, *NOTHING_LOST, *CONTAINED, FAILOVER, RUSH},
    "tests.mutants.chaos:AllForOne": {*CONTAINED, RUSH},
    "tests.mutants.rings:SharesOutPoints": {ONLY_DEPARTED, EACH_LEAVES, ONLY_NEWCOMER},
    "tests.mutants.rings:FewPoints": {BALANCE},
    "tests.mutants.rings:NarrowHash": {ONLY_DEPARTED, RETURN, EACH_LEAVES},
    "tests.mutants.rings:KeepsWhoLeft": {GETS_NOTHING},
    "tests.mutants.rings:OneChangeBehind": {GETS_SHARE},
    "tests.mutants.rings:NoBound": {CAPPED},
    "tests.mutants.rings:BoundsTwice": {CAPPED},
    "tests.mutants.rings:RejectsAtItsCap": {NOT_REJECTED, RUSH},
    "tests.mutants.rings:StaysWhereItSpilled": {COMES_HOME},
    "tests.mutants.retries:TriesOnceMore": {AT_MOST},
    "tests.mutants.retries:TriesErrorsAgain": {ONLY_CLAIMED},
    "tests.mutants.retries:SameBackendAgain": {ANOTHER},
    "tests.mutants.retries:RepeatsUpdates": {UPDATE_ONCE},
    "tests.mutants.retries:RepeatsWhatTimedOut": {TIMEOUT},
    "tests.mutants.retries:BeginsAgain": {FIRST_BYTE},
    "tests.mutants.retries:LimitForEachAttempt": {DEADLINE},
    "tests.mutants.retries:IgnoresRetryAfter": {RETRY_AFTER},
    "tests.mutants.retries:NoBudget": {BUDGET, OUTAGE_FULL_SIZE},
    "tests.mutants.retries:ForgetsThoseThatWait": {BUDGET, OUTAGE_FULL_SIZE},
    "tests.mutants.retries:PutsEverythingOff": {BUDGET, RECOVERS, OUTAGE_FULL_SIZE},
    "tests.mutants.retries:GivesUpFreshRequests": {OUTAGE_ANSWERS, OUTAGE_FULL_SIZE},
    "tests.mutants.health_shares:GateInsteadOfWeight": {
        CONNECTIONS_WEIGH,
        ERRORS_WEIGH,
        LATENCY_WEIGHS,
        MEMORY_WEIGHS,
    },
    "tests.mutants.health_shares:IgnoresErrors": {ERRORS_WEIGH},
    "tests.mutants.health_shares:ShutsOutErrors": {ERRORS_WEIGH},
    "tests.mutants.health_shares:LastLatencyAsP99": {LATENCY_WEIGHS},
    "tests.mutants.health_shares:ResidentCountsAsUsed": {WARM_EVEN},
    "tests.mutants.health_shares:IgnoresConnections": {CONNECTIONS_WEIGH},
    "tests.mutants.health_shares:IgnoresMemory": {MEMORY_WEIGHS},
    "tests.mutants.health_shares:NeverRecovers": {HEALTH_RECOVERS},
    "tests.mutants.health_shares:NotReadyByFormula": {NOT_READY_NOTHING},
    "tests.mutants.health_shares:NeverReadyAgain": {NOT_READY_RETURNS},
    "tests.mutants.health_shares:TakesTheBest": {CONNECTIONS_WEIGH, HEALTHY_EVEN, ERRORS_WEIGH, HEALTH_RECOVERS},
    "tests.mutants.breakers:NeverTripsOnCount": {AT_COUNT, PROBE_REOPENS, *OPENS_WRONGLY},
    "tests.mutants.breakers:OneTooEarly": {AT_COUNT},
    "tests.mutants.breakers:OneTooLate": {AT_COUNT, *OPENS_WRONGLY},
    "tests.mutants.breakers:NeverTripsOnRate": {AT_RATE},
    "tests.mutants.breakers:NeverForgets": {AT_RATE},
    "tests.mutants.breakers:NoMinimum": {BELOW_RATE},
    "tests.mutants.breakers:NeverTripsOnLatency": {AT_LATENCY},
    "tests.mutants.breakers:HalfTheBound": {BELOW_LATENCY, RUSH},
    "tests.mutants.breakers:HalfTheTime": {*OPENS_WRONGLY},
    "tests.mutants.breakers:NoBackoff": {GROWS},
    "tests.mutants.breakers:NoCap": {GROWS},
    "tests.mutants.breakers:NoJitter": {JITTERED},
    "tests.mutants.breakers:TwoProbes": {ONE_SLOW, ONE_HUNG},
    "tests.mutants.breakers:NeverCloses": {FULL_SHARE},
    "tests.mutants.breakers:SuccessDoesNotClear": {BELOW_RATE},
    "tests.mutants.breakers:CountsClientErrors": {CLIENT_ERRORS},
    "tests.mutants.breakers:RefreshedByLateFailures": {LATE_FAILURES},
    "tests.mutants.breakers:AnyoneWhileHalfOpen": {ONE_SLOW, ONE_HUNG},
    "tests.mutants.breakers:FullThresholdAgain": {PROBE_REOPENS, GROWS},
    "tests.mutants.breakers:AbortKeepsSlot": {ABORT_FREES},
    "tests.mutants.breakers:OneForAll": {
        ISOLATION,
        AT_COUNT,
        PROBE_REOPENS,
        BELOW_LATENCY,
        CLIENT_ERRORS,
        *OPENS_WRONGLY,
    },
    "tests.mutants.breakers:LookingConsumes": {FULL_SHARE, GROWS},
    "tests.mutants.breakers:RemembersWhoLeft": {STARTS_CLEAN},
    "tests.mutants.health_checks:OneAfterTheOther": {INDEPENDENT},
    "tests.mutants.breakers:RejectsSlowly": {FAILS_FAST},
    "tests.mutants.hedges:SameBackendAgain": {HEDGE_ANOTHER},
    "tests.mutants.hedges:NeverHedges": {TAIL},
    "tests.mutants.hedges:HedgesAtTheMedian": {DELAY, TAIL},
    "tests.mutants.hedges:KnowsTooFew": {DELAY},
    "tests.mutants.hedges:CommonRank": {DELAY},
    "tests.mutants.hedges:WinnersOwnTime": {DELAY},
    "tests.mutants.hedges:WaitsForTheFirst": {FIRST_GOOD, TAIL},
    "tests.mutants.hedges:FirstAnswerWins": {ERROR_GOES_ON},
    "tests.mutants.hedges:LosersRunOn": {LOSER},
    "tests.mutants.hedges:NoBudget": {OVERHEAD},
    "tests.mutants.hedges:SavesUpForEver": {OVERHEAD},
    "tests.mutants.hedges:HedgesUpdates": {UPDATE_NEVER},
    "tests.mutants.hedges:DeafToLeaving": {SETTLED},
    "tests.mutants.hedges:HedgesAnswered": {SETTLED, LOSER, TAIL},
    "tests.mutants.hedges:HedgesUnderOverload": {OVERLOAD},
    "tests.mutants.hedges:HedgesProbes": {BREAKER_OFF},
    "tests.mutants.ejectors:NoCap": {CAP_HOLDS},
    "tests.mutants.ejectors:HalfTheTime": {OUT_NOTHING},
    "tests.mutants.ejectors:CapOfNobody": {OUT_NOTHING},
    "tests.mutants.limiters:NeverRefuses": {EVERY_WINDOW, NEVER_MORE},
    "tests.mutants.limiters:CountsBySecond": {EVERY_WINDOW},
    "tests.mutants.limiters:CountsRefused": {RATE_LET_IN},
    "tests.mutants.limiters:RunsMore": {NEVER_MORE},
    "tests.mutants.limiters:IgnoresUrgency": {CRITICAL_FIRST},
    "tests.mutants.limiters:ServesInOrder": {CRITICAL_FIRST},
    "tests.mutants.limiters:AnswersErrors": {TOLD_AT_ONCE},
    "tests.mutants.limiters:RefusesLate": {TOLD_AT_ONCE},
}
"""Mutant -> the properties that must fail on it. All others that its claims allow to judge must pass."""

SPOILS: dict[str, set[str]] = {
    "tests.mutants.limiters:NeverRefuses": {TOLD_AT_ONCE, CRITICAL_FIRST},
    "tests.mutants.ejectors:CapOfNobody": {CAP_HOLDS},
    "tests.mutants.hedges:NeverHedges": {HEDGE_ANOTHER, DELAY, ERROR_GOES_ON, FIRST_GOOD, LOSER, OVERHEAD},
    "tests.mutants.breakers:NeverTripsOnCount": {STARTS_CLEAN},
    "tests.mutants.breakers:OneTooLate": {STARTS_CLEAN},
    "tests.mutants.breakers:NoMinimum": {AT_RATE},
    "tests.mutants.breakers:SuccessDoesNotClear": {AT_RATE},
    "tests.mutants.breakers:OneForAll": {ABORT_FREES, ONE_HUNG, ONE_SLOW, STARTS_CLEAN},
    "tests.mutants.breakers:LookingConsumes": {ABORT_FREES, ONE_HUNG, ONE_SLOW},
}
"""Mutant -> the properties that its fault keeps from being put to the test: they must be vacuous, which is no pass."""

UNTOLD: dict[str, set[str]] = {
    "tests.mutants.chaos:NeverForgives": {*FEW_LEFT, OWN_IN_A_RUSH},
    "tests.mutants.chaos:AllForOne": {OWN_IN_A_RUSH},
    "tests.mutants.hedges:SameBackendAgain": {ERROR_GOES_ON},
    "tests.mutants.health_shares:IgnoresErrors": {CONNECTIONS_WEIGH},
    "tests.mutants.health_shares:ShutsOutErrors": {CONNECTIONS_WEIGH},
    "tests.mutants.health_shares:TakesTheBest": {LATENCY_WEIGHS},
}
"""Mutant -> the properties whose outcome its fault leaves to chance: it puts a share between the right and the wrong
one (.474 between .455 and .5), or leaves hardly anything to judge."""


def target_of(mutant: str) -> Target:
    """A mutant as a stranger's code."""
    return PythonTarget(f"python:{mutant}")


def outcomes(
    target: Target, names: Iterable[str] = PROPERTIES, world: World = World.SIM, seed: int = SEED
) -> dict[str, Outcome]:
    """What becomes of these properties on a target in a world of `WORLDS`."""
    judge = Judge(target, seed, WORLDS)
    return {name: judge.judge(PROPERTIES[name], world).outcome for name in names}


def wrongly_judged(mutant: str, world: World = World.SIM) -> dict[str, Outcome]:
    """The properties with another outcome than the table says; the same question in every world."""
    found = outcomes(target_of(mutant), world=world)
    fatal = KILLS.get(mutant, set())
    due = dict.fromkeys(PROPERTIES, Outcome.PASS)
    due |= dict.fromkeys(fatal, Outcome.FAIL) | dict.fromkeys(SPOILS.get(mutant, set()), Outcome.VACUOUS)
    judged = {name: outcome for name, outcome in found.items() if outcome is not Outcome.UNSUPPORTED or name in fatal}
    judged = {name: outcome for name, outcome in judged.items() if name not in UNTOLD.get(mutant, set())}
    return {name: outcome for name, outcome in judged.items() if outcome is not due[name]}


@pytest.mark.parametrize("mutant", KILLS)
def test_a_mutant_fails_where_it_must_and_only_there(mutant: str) -> None:
    assert wrongly_judged(mutant) == {}


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("target", CONFORMING)
def test_conforming_code_passes(target: str, seed: int) -> None:
    judged = set(outcomes(target_of(target), seed=seed).values()) - {Outcome.UNSUPPORTED}
    assert judged == {Outcome.PASS}


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_reference_passes(seed: int) -> None:
    assert set(outcomes(ReferenceTarget(), seed=seed).values()) == {Outcome.PASS}


def test_every_property_is_killed_by_a_mutant() -> None:
    assert set(PROPERTIES) == set().union(*KILLS.values())


@pytest.mark.parametrize("fault", SKETCH, ids=lambda fault: fault.number)
def test_each_fault_of_the_sketch_is_a_mutant_that_a_property_kills(fault: Fault) -> None:
    assert fault.property in KILLS[fault.mutant]


def test_all_properties_are_judged_in_seconds() -> None:
    start_s = time.process_time()
    outcomes(ReferenceTarget(), seed=99)
    assert time.process_time() - start_s < 15.0
