"""What checks ask of the scenarios that families share."""

from __future__ import annotations

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History, StepSeen, empty_requests
from harness.scenario.faults import Join, Kill, Leave
from harness.scenario.model import Load, Method, Scenario
from suites.scenarios import carried_out, leave_and_return, leaver_of, methods

LATE, EARLY = Leave("gpu-2", 2.0), Kill("gpu-1", 1.0, 0.5)


def test_steps_are_paired_with_what_was_seen_in_order_of_execution() -> None:
    seen = (StepSeen("Kill", 1, 1.0, 1.1, 1.5), StepSeen("Leave", 2, 2.0, 2.1))
    scenario = Scenario("late-first", 3, Load(()), timeline=(LATE, EARLY))
    history = History(scenario, 1, empty_requests(0), steps=seen)
    assert carried_out(history) == [(EARLY, seen[0]), (LATE, seen[1])]
    assert carried_out(History(scenario, 1, empty_requests(0), steps=seen[:1])) == [(EARLY, seen[0])]


def test_the_leaver_depends_on_the_algorithm() -> None:
    for algorithm, name in (("ring", "gpu-0"), ("jump", "gpu-3")):
        scenario = leave_and_return(Claims((Affinity(algorithm=algorithm),)))
        assert leaver_of(scenario) == name
        assert [type(step) for step in scenario.timeline if step.backend == name] == [Leave, Join]


def test_get_is_used_where_it_can_carry_the_key() -> None:
    assert methods(Claims()) == (Method.POST, Method.GET)
    assert methods(Claims(protocol="openai")) == (Method.POST,)
    assert methods(Claims((Affinity(key="prompt-prefix:8"),))) == (Method.POST,)
