"""Twelve faults of a widely repeated sketch of a model-aware balancer (ring, breakers, hedges, health scores).

Each fault is planted in a mutant and detected by a property; tests/test_mutants.py compares this table with the
mutants.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A fault of the sketch, the mutant with the same fault, and the property that must fail on it."""

    number: str
    description: str
    mutant: str
    property: str


SKETCH = (
    Fault(
        "S1",
        "half-open hands out two probes: the request that changes the state passes and also stores a permit",
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
        "the hedge repeats the pick, gets the first backend, and so is never sent",
        "tests.mutants.hedges:NeverHedges",
        "hedge.tail.cut",
    ),
    Fault(
        "S4",
        "consecutive failures are counted and the count is never used",
        "tests.mutants.breakers:NeverTripsOnCount",
        "breaker.trip.at-count",
    ),
    Fault(
        "S5",
        "a success does not reset the failure count, so that old failures trip a healthy backend",
        "tests.mutants.breakers:SuccessDoesNotClear",
        "breaker.trip.not-below-rate",
    ),
    Fault(
        "S6",
        "health is a gate at 0.2, not a weight",
        "tests.mutants.health_shares:GateInsteadOfWeight",
        "health-share.errors.by-their-weight",
    ),
    Fault(
        "S7",
        'the "p99" is the latency of the last answer',
        "tests.mutants.health_shares:LastLatencyAsP99",
        "health-share.latency.by-its-weight",
    ),
    Fault(
        "S8",
        "the state of a removed backend is kept, and it returns to an open breaker",
        "tests.mutants.breakers:RemembersWhoLeft",
        "breaker.return.starts-clean",
    ),
    Fault(
        "S9",
        "failures that arrive while a breaker is open restart its open time",
        "tests.mutants.breakers:RefreshedByLateFailures",
        "breaker.open.ignores-late-failures",
    ),
    Fault(
        "S10",
        "health checks run one after the other, so that one hung backend delays all of them",
        "tests.mutants.health_checks:OneAfterTheOther",
        "health.check-ups.independent",
    ),
    Fault(
        "S11",
        "by its formula a backend that is not ready keeps most of its weight",
        "tests.mutants.health_shares:NotReadyByFormula",
        "health-share.not-ready.nothing",
    ),
    Fault(
        "S12",
        "memory full of idle weights counts as load, so that a warm backend looks unhealthy",
        "tests.mutants.health_shares:ResidentCountsAsUsed",
        "health-share.warm.even",
    ),
)
