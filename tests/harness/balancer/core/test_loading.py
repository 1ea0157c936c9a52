"""A balancer from a text: the reference, a user's policy, a user's gateway."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from harness.balancer.core.bare import BareGateway
from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.core.loading import gateway_from, load_class, reference_spec
from harness.balancer.settings import EjectionSettings, Settings
from harness.gateway.protocol import (
    Action,
    Backend,
    Event,
    MembershipChanged,
    NowFunction,
    Reply,
    Request,
    RequestArrived,
    Send,
)
from harness.scenario.model import ClaimsError, Kind
from tests.harness.balancer.driver import only

ARRIVAL = RequestArrived(Request(1, 1, Kind.INFERENCE, "POST", "m"))
GIVEN: list[dict[str, object]] = []
"""What the constructors of this module's balancers were given, the last one last."""


class FirstPolicy:
    def __init__(self) -> None:
        self.first: str | None = None
        GIVEN.append({})

    def pick(self, request: Request) -> str | None:
        return self.first

    def update_backends(self, backends: Sequence[Backend]) -> None:
        self.first = backends[0].id

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """Not needed."""


class TimedPolicy(FirstPolicy):
    def __init__(self, now: NowFunction) -> None:
        super().__init__()
        GIVEN.append({"now": now})


class DrawingPolicy(FirstPolicy):
    def __init__(self, *, random: Random, now: NowFunction, patience_s: float = 1.0) -> None:
        super().__init__()
        GIVEN.append({"random": random, "now": now, "patience_s": patience_s})


class TeapotGateway:
    def __init__(self, random: Random) -> None:
        GIVEN.append({"random": random})

    def handle(self, event: Event, now_s: float) -> list[Action]:
        return [Reply(event.request.id, 418, "teapot")] if isinstance(event, RequestArrived) else []


class NeedsSize(FirstPolicy):
    def __init__(self, size: int) -> None:
        raise AssertionError("never called")


class Refuses(FirstPolicy):
    def __init__(self) -> None:
        raise ValueError("no\nway")


class Leaves(FirstPolicy):
    def __init__(self) -> None:
        sys.exit(1)


class Interrupted(FirstPolicy):
    def __init__(self) -> None:
        raise KeyboardInterrupt


class HalfPolicy:
    def pick(self, request: Request) -> str | None:
        return None


def spec_of(name: str) -> str:
    return f"python:{__name__}:{name}"


def test_a_reference_spec_brings_every_setting_back() -> None:
    settings = Settings(virtual_nodes=7, health_checks=None, ejection=EjectionSettings(9, 2.5), drain_deadline_s=3.5)
    made = gateway_from(reference_spec(settings), NowFunction(), Random(1))
    assert isinstance(made, ReferenceGateway)
    assert made._settings == settings


def test_the_reference_draws_from_the_generator_it_is_given() -> None:
    generator = Random(1)
    made = gateway_from(reference_spec(Settings(health_checks=None)), NowFunction(), generator)
    made.handle(MembershipChanged((Backend("a", ""), Backend("b", ""))), 0.0)
    made.handle(RequestArrived(Request(1, 1, Kind.UPDATE, "POST", "")), 0.0)
    assert generator.getstate() != Random(1).getstate()


def test_a_policy_is_put_into_a_bare_gateway() -> None:
    made = gateway_from(spec_of("FirstPolicy"), NowFunction(), Random(1))
    assert isinstance(made, BareGateway)
    made.handle(MembershipChanged((Backend("b", ""), Backend("a", ""))), 0.0)
    assert only(Send, made.handle(ARRIVAL, 0.0)).backend_id == "b"


def test_a_gateway_is_run_as_it_is() -> None:
    made = gateway_from(spec_of("TeapotGateway"), NowFunction(), Random(1))
    assert made.handle(ARRIVAL, 0.0) == [Reply(1, 418, "teapot")]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("FirstPolicy", ()),
        ("TimedPolicy", ("now",)),
        ("DrawingPolicy", ("random", "now")),
        ("TeapotGateway", ("random",)),
    ],
)
def test_constructors_get_clock_and_randomness_by_name(name: str, wanted: tuple[str, ...]) -> None:
    offered = {"now": NowFunction(3.0), "random": Random(1)}
    gateway_from(spec_of(name), offered["now"], offered["random"])  # type: ignore[arg-type]
    given = {word: value for word, value in GIVEN[-1].items() if word in offered}
    assert given.keys() == set(wanted)
    assert all(given[word] is offered[word] for word in wanted)


def test_arguments_with_defaults_keep_them() -> None:
    gateway_from(spec_of("DrawingPolicy"), NowFunction(), Random(1))
    assert GIVEN[-1]["patience_s"] == 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "NeedsSize",
            r"TypeError: .*missing 1 required positional argument: 'size'; a constructor",
        ),
        (
            "Refuses",
            r"ValueError: no way \(test_loading.py:\d+\); a constructor may have the parameters now and random",
        ),
        ("Leaves", r"SystemExit: 1 \(test_loading.py:\d+\); a constructor"),
    ],
)
def test_what_cannot_be_made_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ClaimsError, match=f"{name}' cannot be created: {message}") as caught:
        gateway_from(spec_of(name), NowFunction(), Random(1))
    assert "\n" not in str(caught.value)


def test_ctrl_c_in_a_constructor_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        gateway_from(spec_of("Interrupted"), NowFunction(), Random(1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no way')", r"ValueError: no way \(broken_at_import_0.py:1\)"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3 \(broken_at_import_1.py:2\)"),
        ("def (", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    name = f"broken_at_import_{1 if 'exit' in text else 2 if 'def' in text else 0}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ClaimsError, match=f"importing {name} raised {message}"):
        load_class(f"python:{name}:Policy")


@pytest.mark.parametrize("spec", ["python:", "python:module", "python:module:", "python::Class"])
def test_a_spec_names_module_and_class(spec: str) -> None:
    with pytest.raises(ClaimsError, match=r"expected python:package\.module:Class"):
        load_class(spec)


def test_a_module_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClaimsError, match=f"cannot import no_such_module from {tmp_path}"):
        load_class("python:no_such_module:Policy")


def test_modules_come_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found_here.py").write_text("class Teapot:\n    def handle(self, event, now_s):\n        return []\n")
    assert load_class("python:found_here:Teapot").__name__ == "Teapot"


def test_a_misspelt_class_gets_the_nearest_names() -> None:
    with pytest.raises(ClaimsError, match="has no class FirstPolicyy; did you mean FirstPolicy"):
        load_class(spec_of("FirstPolicyy"))


@pytest.mark.parametrize(
    ("name", "missing"),
    [("HalfPolicy", "update_backends, report_result"), ("ARRIVAL", "pick, update_backends, report_result")],
)
def test_what_is_no_balancer_is_told_what_it_lacks(name: str, missing: str) -> None:
    with pytest.raises(ClaimsError, match=f"{name} lacks {missing}; expected a policy .* or a gateway with handle"):
        load_class(spec_of(name))
