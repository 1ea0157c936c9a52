"""Twelve faults of a widely repeated sketch of a model-aware balancer (ring, breakers, hedges, health scores).

Each is planted in a mutant and caught by a property; tests/test_mutants.py holds this table to its own.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """What is wrong in the sketch, the mutant that does the same, and the property that must fail on it."""

    number: str
    told: str
    mutant: str
    property: str


SKETCH = (
    Fault(
        "S1",
        "half-open hands out two probes: the request that moves the state goes through and stores a permit as well",
        "tests.mutants.breakers:TwoProbes",
        "breaker.half-open.one-slow-probe",
    ),
    Fault(
        "S2",
        "filtering candidates consumes probe permits of backends that then get no request",
        "tests.mutants.breakers:LookingConsumes",
        "breaker.recovery.full-share",
    ),
    Fault(
        "S3",
        "the hedge asks for the same choice again, gets the first backend, and so never hedges",
        "tests.mutants.hedges:NeverHedges",
        "hedge.tail.cut",
    ),
    Fault(
        "S4",
        "failures in a row are counted and never used",
        "tests.mutants.breakers:NeverTripsOnCount",
        "breaker.trip.at-count",
    ),
    Fault(
        "S5",
        "a success does not clear a run of failures, so that old ones trip a healthy backend",
        "tests.mutants.breakers:SuccessDoesNotClear",
        "breaker.trip.not-below-rate",
    ),
    Fault(
        "S6",
        "health is a gate at 0.2 and not a weight",
        "tests.mutants.health_shares:GateInsteadOfWeight",
        "health-share.errors.by-their-weight",
    ),
    Fault(
        "S7",
        "what is called p99 is the latency of the last answer",
        "tests.mutants.health_shares:LastLatencyAsP99",
        "health-share.latency.by-its-weight",
    ),
    Fault(
        "S8",
        "the state of a backend that was removed stays, and it returns to an open breaker",
        "tests.mutants.breakers:RemembersWhoLeft",
        "breaker.return.starts-clean",
    ),
    Fault(
        "S9",
        "failures that arrive while a breaker is open refresh the time of its opening",
        "tests.mutants.breakers:RefreshedByLateFailures",
        "breaker.open.ignores-late-failures",
    ),
    Fault(
        "S10",
        "health checks run one after the other, so that one hung backend delays those of all",
        "tests.mutants.health_checks:OneAfterTheOther",
        "health.check-ups.independent",
    ),
    Fault(
        "S11",
        "by the formula alone a backend that is out keeps most of its weight",
        "tests.mutants.health_shares:NotReadyByFormula",
        "health-share.not-ready.nothing",
    ),
    Fault(
        "S12",
        "memory full of idle weights counts as load, so that a warm backend looks ill",
        "tests.mutants.health_shares:ResidentCountsAsUsed",
        "health-share.warm.even",
    ),
)
