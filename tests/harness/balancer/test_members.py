"""The members of the reference: each mechanism gets its settings, results and membership changes, and is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from harness.balancer.health.breaker import BreakerSettings, Settled
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.health.readiness import RotationSettings
from harness.balancer.members import Members
from harness.balancer.picking.load_table import LoadSettings
from harness.balancer.picking.ring import HashRing
from harness.balancer.picking.session_affinity import AffinitySettings
from harness.balancer.settings import SWITCHES, CheckSettings, EjectionSettings, Settings, SlowStartSettings
from harness.claims.features import Backoff
from harness.gateway.expected_answer import ExpectedAnswer
from harness.gateway.protocol import Action, Backend, Request, SendHealthCheck, SetTimer
from harness.scenario.model import Kind
from tests.harness.balancer.driver import of_type

NOTHING = Settings().without(SWITCHES - {"spread"})
"""The ring, and two choices by load."""
BY_WEIGHT = replace(NOTHING, spread="weighted_round_robin")
ONE_CHECK = CheckSettings(unhealthy=1, healthy=1)
ERRORS = HealthSettings(errors=1.0, latency=0.0, memory=0.0, connections=0.0, minimum_calls=2)
NOBODY: frozenset[str] = frozenset()
MODELS = [f"model-{number}" for number in range(300)]


class Fleet:
    """Members with short methods for events; the clock advances only by assignment to `now_s`."""

    def __init__(self, settings: Settings, *names: str, **weights: float) -> None:
        self.members = Members(settings, Random(5))
        self.now_s = 0.0
        self.timers: dict[int, float] = {}
        self.join(*names, **weights)

    def join(self, *names: str, **weights: float) -> None:
        """Replace the members."""
        listed = dict.fromkeys(names, 1.0) | weights
        backends = tuple(Backend(name, name, weight) for name, weight in listed.items())
        self.note(self.members.set_backends(backends, self.now_s)[0])

    def note(self, actions: list[Action]) -> list[SendHealthCheck]:
        """Keep the timers of `actions`; returns their health checks."""
        self.timers.update({timer.timer_id: timer.at_s for timer in of_type(SetTimer, actions)})
        return of_type(SendHealthCheck, actions)

    def pick(self, model: str = "", session: str = "") -> str:
        """The backend of an update, or with a model or session of an inference."""
        kind = Kind.INFERENCE if model or session else Kind.UPDATE
        chosen = self.members.pick(Request(1, 1, kind, "POST", model, session), NOBODY, self.now_s)
        assert chosen is not None
        return chosen

    def shares(self, picks: int) -> dict[str, int]:
        """Number of updates that each backend gets, of `picks`."""
        return dict(Counter(self.pick() for _ in range(picks)))

    def owners(self) -> list[str]:
        return [self.pick(model) for model in MODELS]

    def settle(self, name: str, settled: Settled, took_s: float = 0.0) -> None:
        """An attempt at `name` with this result."""
        sent = self.members.begin(name, 0, self.now_s)
        self.members.end(sent, settled, self.now_s + took_s)

    def occupy(self, updates: int) -> dict[str, int]:
        """Send updates that do not end; their number by backend."""
        found: Counter[str] = Counter()
        for _ in range(updates):
            name = self.pick()
            self.members.begin(name, 0, self.now_s)
            found[name] += 1
        return dict(found)

    def check(self, reports: Mapping[str, Backend | bool]) -> None:
        """A health check of all backends. A report, or True (the default), is a good answer."""
        for timer_id in list(self.timers):
            for check in self.note(self.members.timer_fired(timer_id, self.now_s)):
                said = reports.get(check.backend_id, True)
                report = said if isinstance(said, Backend) else None
                ok = said if isinstance(said, bool) else True
                self.members.health_check_result(check.check_id, check.backend_id, ok, report, self.now_s)

    def eligible(self) -> set[str]:
        known = {name: self.members.condition(name, self.now_s) for name in "abcd"}
        return {name for name, condition in known.items() if condition is not None and condition.ready}


def report(name: str, **figures: Any) -> Backend:
    return Backend(name, name, **figures)


# --- slow start -------------------------------------------------------------------------------------------

RAMP = replace(BY_WEIGHT, slow_start=SlowStartSettings(10.0))


def grown(settings: Settings) -> Fleet:
    """Three members that have been in rotation for long, at 100 s."""
    fleet = Fleet(settings, "a", "b", "c")
    fleet.now_s = 100.0
    return fleet


@pytest.mark.parametrize(
    ("ramp", "age_s", "shares"),
    [
        (SlowStartSettings(10.0), 0.0, {"a": 10, "b": 10, "c": 10, "new": 1}),
        (SlowStartSettings(10.0), 5.0, {"a": 2, "b": 2, "c": 2, "new": 1}),
        (SlowStartSettings(10.0), 10.0, {"a": 1, "b": 1, "c": 1, "new": 1}),
        (SlowStartSettings(10.0, minimum_share=0.25), 0.0, {"a": 4, "b": 4, "c": 4, "new": 1}),
        (SlowStartSettings(10.0, aggression=2.0), 2.5, {"a": 2, "b": 2, "c": 2, "new": 1}),
    ],
)
def test_a_newcomer_gets_a_growing_part(ramp: SlowStartSettings, age_s: float, shares: dict[str, int]) -> None:
    fleet = grown(replace(BY_WEIGHT, slow_start=ramp))
    fleet.join("a", "b", "c", "new")
    fleet.now_s += age_s
    assert fleet.shares(10 * sum(shares.values())) == {name: 10 * share for name, share in shares.items()}


def ramps(fleet: Fleet, name: str, others: int, since_s: float) -> None:
    """Whether `name` gets a tenth of a full share at `since_s`, a half 5 s later and all of it after 10 s."""
    for age_s, part in ((0.0, 0.1), (5.0, 0.5), (10.0, 1.0)):
        fleet.now_s = since_s + age_s
        picks = round(10 * (others + part))
        assert fleet.shares(picks).get(name, 0) == pytest.approx(10 * part, abs=1)
    fresh = Fleet(BY_WEIGHT, *"abcd"[: others + 1])
    assert fleet.owners() == fresh.owners()


def test_after_an_ejection_too() -> None:
    fleet = grown(replace(RAMP, ejection=EjectionSettings(failures=1, open_s=2.0)))
    fleet.settle("a", Settled.FAILED)
    assert fleet.eligible() == {"b", "c"}
    ramps(fleet, "a", 2, since_s=102.0)


def test_a_good_health_check_does_not_begin_it_before_the_ejection_is_over() -> None:
    fleet = grown(replace(RAMP, ejection=EjectionSettings(failures=1, open_s=8.0), health_checks=ONE_CHECK))
    fleet.settle("a", Settled.FAILED)
    fleet.check({"a": False})
    fleet.now_s = 101.0
    fleet.check({"a": True})
    assert fleet.eligible() == {"b", "c"}
    ramps(fleet, "a", 2, since_s=108.0)


def test_who_is_back_early_as_the_cap_sinks_begins_it_then() -> None:
    fleet = Fleet(replace(RAMP, ejection=EjectionSettings(failures=1, open_s=50.0, cap_share=0.5)), *"abcd")
    fleet.now_s = 100.0
    fleet.settle("a", Settled.FAILED)
    fleet.now_s = 101.0
    fleet.settle("b", Settled.FAILED)
    assert fleet.eligible() == {"c", "d"}
    fleet.join("a", "b", "c")
    assert fleet.eligible() == {"a", "c"}
    for now_s, picks, share in ((101.0, 11, 1), (106.0, 15, 5), (111.0, 20, 10)):
        fleet.now_s = now_s
        assert fleet.shares(picks) == pytest.approx({"c": 10, "a": share}, abs=1)


def test_after_a_breaker_closes_too() -> None:
    breaker = BreakerSettings(failures=1, open_s=2.0, successes=1, backoff=Backoff(2.0, jitter=0.0))
    fleet = grown(replace(RAMP, breaker=breaker))
    fleet.settle("a", Settled.FAILED)
    fleet.now_s = 103.0
    fleet.settle("a", Settled.OK)
    assert fleet.members.breaker_state("a", fleet.now_s) == "closed"
    ramps(fleet, "a", 2, since_s=103.0)


def test_after_a_good_health_check_too() -> None:
    fleet = grown(replace(RAMP, health_checks=ONE_CHECK))
    fleet.check({"a": False})
    fleet.now_s = 103.0
    fleet.check({"a": True})
    ramps(fleet, "a", 2, since_s=103.0)


@pytest.mark.parametrize("health", [None, HealthSettings()])
def test_the_ring_follows_a_ramp_though_no_call_ends(health: HealthSettings | None) -> None:
    fleet = grown(replace(RAMP, health_share=health))
    fleet.join("a", "b", "c", "new")
    ring = HashRing(RAMP.virtual_nodes)
    for age_s, weight in ((0.0, 0.1), (5.0, 0.5), (10.0, 1.0)):
        fleet.now_s = 100.0 + age_s
        ring.set_weights({"a": 1.0, "b": 1.0, "c": 1.0, "new": weight})
        assert fleet.owners() == [ring.owner(model) for model in MODELS]


def test_the_ring_is_laid_out_every_tenth_of_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    computed_s: list[float] = []

    def weight(members: Members, name: str, now_s: float) -> float:
        computed_s.append(now_s)
        return 1.0

    fleet = grown(RAMP)
    fleet.join("a", "b", "c", "new")
    monkeypatch.setattr(Members, "_weight", weight)
    for number in range(201):
        fleet.now_s = 100.0 + number / 1000
        fleet.pick("m")
    assert sorted(Counter(computed_s).values()) == [4, 4]
    still = grown(BY_WEIGHT)
    computed_s.clear()
    still.pick("m")
    assert computed_s == [], "weights that never change are not computed"


# --- sessions ---------------------------------------------------------------------------------------------

STICKY = replace(NOTHING, sessions=AffinitySettings())


def at_home_elsewhere(settings: Settings) -> tuple[Fleet, str]:
    """A fleet with a session whose home is a, although c, which joined later, is nearest on the ring."""
    ring = HashRing(settings.virtual_nodes)
    ring.set_members("abc")
    session = next(name for name in MODELS if list(ring.nearest(name, 3)) == ["c", "a", "b"])
    fleet = Fleet(settings, "a", "b")
    assert fleet.pick(session=session) == "a"
    fleet.join("a", "b", "c")
    return fleet, session


def test_a_session_stays_where_it_is_at_home() -> None:
    fleet, session = at_home_elsewhere(STICKY)
    assert fleet.pick(session=session) == "a"


def test_without_affinity_a_session_goes_by_the_ring() -> None:
    fleet, session = at_home_elsewhere(NOTHING)
    assert fleet.pick(session=session) == "c"


def test_sessions_of_one_that_leaves_are_forgotten() -> None:
    fleet, session = at_home_elsewhere(STICKY)
    fleet.join("b", "c")
    fleet.join("a", "b", "c")
    assert fleet.pick(session=session) == "c"


def test_sessions_of_one_that_returns_cold_are_forgotten() -> None:
    fleet, session = at_home_elsewhere(replace(STICKY, health_checks=ONE_CHECK))
    fleet.check({"a": False})
    fleet.check({"a": True})
    assert fleet.eligible() == {"a", "b", "c"}
    assert fleet.pick(session=session) == "c"


# --- ejection and rotation --------------------------------------------------------------------------------


@pytest.mark.parametrize(("cap_share", "left"), [(0.5, 2), (1.0, 0)])
def test_no_more_than_the_cap_are_ejected(cap_share: float, left: int) -> None:
    fleet = Fleet(replace(NOTHING, ejection=EjectionSettings(1, 10.0, cap_share)), *"abcd")
    for name in "abcd":
        fleet.settle(name, Settled.FAILED)
    assert len(fleet.eligible()) == left


FULL = {"memory_total_mb": 100.0, "memory_used_mb": 97.0, "memory_evictable_mb": 1.0}


@pytest.mark.parametrize(
    ("rotation", "figures", "out"),
    [
        (RotationSettings(), FULL, True),
        (RotationSettings(), {"queue_depth": 101}, True),
        (RotationSettings(), {"queue_depth": 100}, False),
        (RotationSettings(memory_share=None, queue_depth=7), {"queue_depth": 8}, True),
        (RotationSettings(memory_share=None), FULL, False),
        (None, FULL, False),
        (None, {"queue_depth": 101}, False),
    ],
)
def test_who_reports_too_much_is_out_of_rotation(
    rotation: RotationSettings | None, figures: dict[str, Any], out: bool
) -> None:
    fleet = Fleet(replace(NOTHING, health_checks=replace(ONE_CHECK, rotation=rotation)), *"abcd")
    fleet.check({})
    fleet.check({"a": report("a", **figures)})
    assert ("a" not in fleet.eligible()) == out
    assert ("a" not in fleet.shares(60)) == out


def test_the_guard_lets_everybody_in_that_is_alive() -> None:
    fleet = Fleet(replace(NOTHING, health_checks=replace(ONE_CHECK, rotation=RotationSettings())), *"abcd")
    fleet.check({})
    loaded = {name: report(name, queue_depth=500) for name in "abcd"}
    fleet.check({name: loaded[name] for name in "ab"})
    assert fleet.eligible() == {"c", "d"}
    fleet.check(loaded | {"d": False})
    assert fleet.eligible() == {"a", "b", "c"}


def test_gated_newcomers_wait_for_their_health_check() -> None:
    fleet = Fleet(replace(NOTHING, health_checks=replace(ONE_CHECK, rotation=RotationSettings(gated=True))), "a", "b")
    assert fleet.eligible() == set()
    fleet.check({"b": False})
    assert fleet.eligible() == {"a"}


def test_jitter_is_drawn_from_the_generator() -> None:
    checks = CheckSettings(interval_s=1.0, rotation=RotationSettings(jitter=0.2))

    def due() -> tuple[float, ...]:
        fleet = Fleet(replace(NOTHING, health_checks=checks), *"abcd")
        fleet.check({})
        return tuple(fleet.timers.values())

    assert due() == due()
    assert len(set(due())) == 4 and all(0.8 <= at_s <= 1.2 for at_s in due())


def test_health_checks_are_told_what_answer_to_expect() -> None:
    expected = ExpectedAnswer(frozenset({204}), body_part="SERVING")
    fleet = Fleet(replace(NOTHING, health_checks=CheckSettings(expected=expected)), "a")
    (timer_id,) = fleet.timers
    (check,) = fleet.note(fleet.members.timer_fired(timer_id, 0.0))
    assert check.expected == expected


# --- loads ------------------------------------------------------------------------------------------------

CHECKED = replace(NOTHING, health_checks=CheckSettings())


@pytest.mark.parametrize("figures", [{"queue_depth": 50}, {"running": 50}, {"pending_tokens": 50_000}])
def test_updates_avoid_who_reports_work(figures: dict[str, int]) -> None:
    fleet = Fleet(CHECKED, "a", "b")
    fleet.check({"a": report("a", **figures), "b": report("b")})
    assert fleet.shares(20) == {"b": 20}


@pytest.mark.parametrize(("tokens_per_request", "chosen"), [(1000.0, "a"), (10.0, "b")])
def test_what_tokens_weigh_is_a_setting(tokens_per_request: float, chosen: str) -> None:
    fleet = Fleet(replace(CHECKED, load=LoadSettings(tokens_per_request=tokens_per_request)), "a", "b")
    fleet.check({"a": report("a", pending_tokens=100), "b": report("b", queue_depth=5)})
    assert fleet.shares(20) == {chosen: 20}


def test_how_long_a_report_holds_is_a_setting() -> None:
    for stale_s, shares in ((5.0, {"b"}), (1.0, {"a", "b"})):
        fleet = Fleet(replace(CHECKED, load=LoadSettings(stale_s=stale_s)), "a", "b")
        fleet.check({"a": report("a", queue_depth=50), "b": report("b")})
        fleet.now_s = 2.0
        assert set(fleet.shares(40)) == shares


def test_load_is_divided_by_the_configured_weight() -> None:
    assert Fleet(NOTHING, a=1.0, b=0.5).occupy(30) == pytest.approx({"a": 20, "b": 10}, abs=1)


def test_load_is_divided_by_health() -> None:
    fleet = Fleet(replace(NOTHING, health_share=ERRORS), "a", "b")
    for settled in (Settled.OK, Settled.FAILED) * 5:
        fleet.settle("b", settled)
    assert fleet.occupy(30) == pytest.approx({"a": 20, "b": 10}, abs=1)


# --- what is learned --------------------------------------------------------------------------------------


def test_the_policy_learns_from_answers() -> None:
    fleet = Fleet(replace(NOTHING, spread="ewma"), "a", "b")
    for _ in range(3):
        fleet.settle("a", Settled.OK, took_s=1.0)
        fleet.settle("b", Settled.OK, took_s=0.01)
    assert fleet.shares(20) == {"b": 20}


@pytest.mark.parametrize("settled", [Settled.ABORTED, Settled.NEUTRAL])
def test_what_says_nothing_teaches_nothing(settled: Settled) -> None:
    fleet = Fleet(replace(NOTHING, spread="ewma", ejection=EjectionSettings(1), health_share=ERRORS), "a", "b")
    for _ in range(5):
        fleet.settle("a", settled, took_s=9.0)
    assert fleet.eligible() == {"a", "b"}
    assert set(fleet.shares(40)) == {"a", "b"}
