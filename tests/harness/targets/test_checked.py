"""The seam: what an adapter says and returns is checked, and a violation is one line with target, place and value."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.balancer.core.bare import BareGateway
from harness.claims.features import Affinity, Claims, Feature, Retry
from harness.gateway.checked_gateway import CheckedGateway
from harness.gateway.protocol import Gateway, NowFunction
from harness.judge import Judge
from harness.scenario.model import AdapterError, TargetError, UnsupportedError, World
from harness.sim.baselines import RoundRobinBaseline, baseline_target
from harness.sim.world import play
from harness.targets.base import (
    AdminCall,
    AwaitNewWorkers,
    ChangeStep,
    Deployment,
    Launch,
    LiveTarget,
    RunCommand,
    Signal,
    SimTarget,
    Target,
    WriteFile,
)
from harness.targets.checked import checked, for_live, for_sim, scaled
from harness.targets.file import FileTarget
from harness.targets.nginx import NginxTarget
from harness.targets.reference import ReferenceTarget
from tests.harness.sim.rig import GatewayOf, Listening, scenario

PLACE = Deployment(Path("/work"), "127.0.0.1", 1, 2, ())


class Stranger(SimTarget, LiveTarget):
    """A target of both worlds that returns what a test gives it."""

    name = "acme"
    version = "1"
    claims = Claims((Affinity(),))

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        return self._answer("gateway", BareGateway(RoundRobinBaseline()))  # type: ignore[no-any-return]

    def launch(self, deployment: Deployment) -> Launch:
        return self._answer("launch", Launch({"conf/a.conf": "text"}, ("acme", "-c", "conf/a.conf")))  # type: ignore[no-any-return]

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        return self._answer("change", ())  # type: ignore[no-any-return]

    def scaled(self, factor: float) -> Target | None:
        return self._answer("scaled", None)  # type: ignore[no-any-return]

    def repeat_prefix(self, world: World) -> tuple[str, ...]:
        return self._answer("repeat_prefix", ("A=1",))  # type: ignore[no-any-return]

    def _answer(self, method: str, usual: Any) -> Any:
        answer = self.answers.get(method, usual)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Unlisted(Feature):
    """A feature that is not of harness.claims."""


def says(call: Any, *arguments: object) -> str:
    """The line of the AdapterError that a call raises."""
    with pytest.raises(AdapterError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def given(**attributes: Any) -> Stranger:
    """A stranger's target with these attributes."""
    target = Stranger()
    for name, value in attributes.items():
        setattr(target, name, value)
    return target


@pytest.mark.parametrize("target", [Stranger(), ReferenceTarget(), baseline_target("ring", Claims())])
def test_a_valid_target_is_returned_as_it_is(target: Target) -> None:
    assert checked(target) is target


def test_our_live_targets_are_valid() -> None:
    assert checked(NginxTarget()).worlds == {World.LIVE}
    assert issubclass(FileTarget, LiveTarget) and not issubclass(FileTarget, SimTarget)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": ""}, "target Stranger: name is ''; expected a text"),
        ({"name": 3}, "target Stranger: name is 3; expected a text"),
        ({"version": None}, "target acme: version is None; expected a text"),
        ({"claims": (Affinity(),)}, "target acme: claims is (Affinity("),
        ({"claims": Claims((Unlisted(),))}, "expected harness.claims.features.Claims with features of that module"),
        ({"claims": Claims((Retry(), Retry(attempts=4)))}, "each once"),
        ({"claims": Claims((Retry(),), protocol="gopher")}, "target acme: claims is Claims("),
        ({"switches": {"retry"}}, "target acme: switches is {'retry'}; expected a frozenset of names among affinity"),
        ({"switches": frozenset({"retries"})}, "target acme: switches is frozenset({'retries'}); expected"),
        ({"health_path": "health"}, "target acme: health_path is 'health'; expected a path such as /health"),
        ({"correlate": ("header:x-else",)}, "target acme: correlate is ('header:x-else',); expected some of"),
        ({"stop_signal": 15}, "target acme: stop_signal is 15; expected a signal.Signals"),
        ({"logs": ("/var/log/acme",)}, "target acme: logs is ('/var/log/acme',); expected paths inside the workdir"),
        ({"url": "http://127.0.0.1"}, "target acme: url is 'http://127.0.0.1'; expected None or http://HOST:PORT"),
        ({"listen": ("127.0.0.1:1",)}, "target acme: listen is ('127.0.0.1:1',); expected a tuple of (host, port)"),
        ({"listen": (("127.0.0.1", 70_000),)}, "target acme: listen is (('127.0.0.1', 70000),); expected"),
        ({"answers": {"repeat_prefix": "A=1"}}, "target acme: repeat_prefix() returned 'A=1'; expected a tuple"),
        ({"answers": {"repeat_prefix": ("A",)}}, "target acme: repeat_prefix() returned ('A',); expected a tuple"),
    ],
)
def test_a_wrong_attribute_is_named(attributes: dict[str, Any], message: str) -> None:
    assert message in says(checked, given(**attributes))


def test_an_attribute_that_raises_or_cannot_be_shown_is_one_line() -> None:
    class Gone(Stranger):
        @property
        def version(self) -> str:  # type: ignore[override]
            raise FileNotFoundError("acme-gateway")

    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "target acme: version raised FileNotFoundError: acme-gateway" in says(checked, Gone())
    assert "target acme: health_path is an object of Shy; expected" in says(checked, given(health_path=Shy()))


def test_a_missing_attribute_and_a_target_of_no_world_are_named() -> None:
    class Bare(Target):
        pass

    class Nowhere(Target):
        name, version, claims = "nowhere", "1", Claims()

    assert says(checked, Bare()) == "target Bare: there is no attribute name; expected a text"
    expected = "a class with the methods of SimTarget or LiveTarget, or of both"
    assert says(checked, Nowhere()) == f"target nowhere: worlds is frozenset(); expected {expected}"
    assert says(checked, {}, "acme:x") == ("target acme:x: make() returned {}; expected a harness.targets.base.Target")


def test_worlds_follow_from_the_interface() -> None:
    assert Stranger().worlds == {World.SIM, World.LIVE}
    assert baseline_target("ring", Claims()).worlds == {World.SIM}
    with pytest.raises(TargetError, match=r"target ring runs in sim only; a live run needs one with a process"):
        for_live(baseline_target("ring", Claims()))
    with pytest.raises(TargetError, match=r"target nginx runs in live only; the simulator needs one with a gateway"):
        for_sim(NginxTarget())


def test_scaled() -> None:
    other = Stranger()
    assert scaled(Stranger(), 2.0) is None
    assert scaled(Stranger(scaled=other), 2.0) is other
    expected = "expected None or a target of the same worlds"
    assert expected in says(scaled, Stranger(scaled=2.0), 2.0)
    assert expected in says(scaled, Stranger(scaled=baseline_target("ring", Claims())), 2.0)
    assert "version is 7" in says(scaled, Stranger(scaled=given(version=7)), 2.0)
    assert says(scaled, Stranger(scaled=KeyError("x")), 2.0).startswith("target acme: scaled() raised KeyError: 'x'")


def test_the_gateway_of_a_target() -> None:
    def gateway(target: SimTarget) -> Gateway:
        return for_sim(target).gateway(frozenset(), NowFunction(), Random(1))

    ours = BareGateway(RoundRobinBaseline())
    assert gateway(Stranger(gateway=ours)) is ours  # no cost for what mypy checks
    assert isinstance(gateway(GatewayOf(Listening(lambda event, now_s: []))), CheckedGateway)
    assert says(gateway, Stranger(gateway=7)) == (
        "target acme: gateway() returned 7; expected an object with handle(event, now_s)"
    )
    assert "target acme: gateway() raised SystemExit: 3" in says(gateway, Stranger(gateway=SystemExit(3)))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (("acme",), "launch() returned ('acme',); expected a Launch"),
        (
            Launch({"/etc/acme": ""}, ()),
            "launch() returned files = {'/etc/acme': ''}; expected texts by relative paths",
        ),
        (Launch({"../acme": ""}, ()), "launch() returned files = {'../acme': ''}; expected texts by relative paths"),
        (Launch({".": ""}, ()), "launch() returned files = {'.': ''}; expected texts by relative paths"),
        (Launch({"a": b""}, ()), "launch() returned files = {'a': b''}; expected texts"),  # type: ignore[dict-item]
        (Launch({}, "acme -f"), "launch() returned start = 'acme -f'; expected a tuple of texts"),  # type: ignore[arg-type]
        (Launch({}, ("acme", 8080)), "launch() returned start = ('acme', 8080); expected"),  # type: ignore[arg-type]
        (Launch({}, ("acme",), ["acme", "-t"]), "launch() returned check = ['acme', '-t']; expected"),  # type: ignore[arg-type]
        (Launch({}, ("acme",), environment={"PORT": 1}), "launch() returned environment = {'PORT': 1}; expected"),  # type: ignore[dict-item]
        (Launch({}, ("acme",), environment={"A=B": ""}), "launch() returned environment = {'A=B': ''}; expected"),
        (Launch({}, ("acme",), unset="HOME"), "launch() returned unset = 'HOME'; expected a tuple of names"),  # type: ignore[arg-type]
        (ZeroDivisionError("why"), "launch() raised ZeroDivisionError: why"),
    ],
)
def test_launch(launch: Any, message: str) -> None:
    assert f"target acme: {message}" in says(for_live(Stranger(launch=launch)).launch, PLACE)


STEPS = (
    WriteFile("conf/a.conf", "text"),
    Signal(signal.SIGHUP),
    RunCommand(("acme", "reload")),
    AdminCall("PUT", "http://127.0.0.1:2/x", "{}"),
    AwaitNewWorkers(),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (list(STEPS), "expected a tuple of steps"),
        (("reload",), "change() returned 'reload'; expected a step: WriteFile, Signal, RunCommand, AdminCall or"),
        ((WriteFile("/a", ""),), "change() returned WriteFile(path='/a', text=''); expected WriteFile(relative path"),
        ((Signal(1),), "change() returned Signal(number=1); expected Signal(signal.Signals)"),  # type: ignore[arg-type]
        ((RunCommand(()),), "change() returned RunCommand(words=()); expected RunCommand(a tuple of texts)"),
        ((*STEPS, RunCommand("acme reload")), "expected RunCommand(a tuple of texts)"),  # type: ignore[arg-type]
        ((AdminCall("PUT", "127.0.0.1:2/x"),), "expected AdminCall(method, http URL, text)"),
        ((AdminCall("put", "http://127.0.0.1:2/x"),), "expected AdminCall(method, http URL, text)"),
        (TypeError("no"), "change() raised TypeError: no"),
    ],
)
def test_change(change: Any, message: str) -> None:
    assert message in says(for_live(Stranger(change=change)).change, PLACE)


def test_what_is_valid_passes() -> None:
    launch = Launch({"a/b": "text"}, ("acme", ""), ("acme", "-t"), {"A": "1"}, ("B",), early=True)
    live = for_live(Stranger(launch=launch, change=STEPS))
    assert live.launch(PLACE) is launch
    assert live.change(PLACE) is STEPS
    assert (live.name, live.claims, live.url) == ("acme", Stranger.claims, None)
    with pytest.raises(UnsupportedError, match="fixed"):
        for_live(Stranger(change=UnsupportedError("fixed"))).change(PLACE)


def test_the_judge_and_the_worlds_use_the_seam() -> None:
    assert "version is 7" in says(Judge, given(version=7), 1, {})
    assert "gateway() returned 7" in says(play, Stranger(gateway=7), scenario(), 1)
    history = play(Stranger(gateway=Listening(lambda event, now_s: [3])), scenario(), 1)  # type: ignore[list-item]
    assert (history.died or "").startswith("AdapterError: handle() returned the action 3; expected one of Send")
