import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from harness.claims.features import Affinity, Claims, Failover, Spread
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
from harness.scenario.model import ClaimsError, Kind, World
from harness.targets.base import Address, AdminCall, Deployment
from harness.targets.python import PythonTarget

MEMBERS = MembershipChanged((Backend("gpu-0", "127.0.0.1:1"), Backend("gpu-1", "127.0.0.1:2")))
ARRIVAL = RequestArrived(Request(1, 1, Kind.INFERENCE, "POST", "m"))


class LastPolicy:
    claims = (Failover(within_s=3.0),)
    version = "0.9"

    def __init__(self, random: Random, now: NowFunction) -> None:
        self.random, self.now = random, now
        self.ids: list[str] = []

    def pick(self, request: Request) -> str | None:
        return self.ids[-1]

    def update_backends(self, backends: Sequence[Backend]) -> None:
        self.ids = [backend.id for backend in backends]

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """Ignored."""


class TeapotGateway:
    claims = Claims(features=(Spread(policy="random"),), can_reload=False)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        return [Reply(event.request.id, 418, "teapot")] if isinstance(event, RequestArrived) else []


class ClaimlessPolicy(LastPolicy):
    claims = ()  # type: ignore[assignment]


class WronglyClaiming(LastPolicy):
    claims = ("failover",)  # type: ignore[assignment]


class Commaless(LastPolicy):
    claims = Failover(within_s=5.0)  # type: ignore[assignment]


class NeedsSize(LastPolicy):
    def __init__(self, size: int) -> None:
        raise AssertionError("never called")


class NoBalancer:
    def pick(self, request: Request) -> str | None:
        return None


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """Module name under which a target finds this file's classes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return Path(__file__).stem


def test_policy_runs_in_a_bare_gateway(here: str) -> None:
    target = PythonTarget(f"python:{here}:LastPolicy")
    assert (target.name, target.version) == (f"python:{here}:LastPolicy", "0.9")
    assert target.claims.names == ("failover",)
    assert target.worlds == {World.SIM, World.LIVE}
    gateway = target.gateway(frozenset(), NowFunction(), Random(1))
    gateway.handle(MEMBERS, 0.0)
    (send,) = gateway.handle(ARRIVAL, 0.0)
    assert isinstance(send, Send)
    assert send.backend_id == "gpu-1"


def test_gateway_runs_as_it_is(here: str) -> None:
    target = PythonTarget(f"python:{here}:TeapotGateway")
    assert not target.claims.can_reload
    assert target.version == "unknown"
    assert target.gateway(frozenset(), NowFunction(), Random(1)).handle(ARRIVAL, 0.0) == [Reply(1, 418, "teapot")]


def test_settings_are_fixed_and_nothing_can_be_switched_off(here: str) -> None:
    target = PythonTarget(f"python:{here}:LastPolicy")
    target.scaled(2.0)
    assert target.switches == frozenset()
    assert target.spec(frozenset({"failover"})) == target.spec(frozenset())


@pytest.mark.parametrize(("seed", "shown"), [("7", "7"), ("0", "0"), ("random", "0"), (None, "0")])
def test_a_repeat_in_sim_pins_the_hashes(
    here: str, monkeypatch: pytest.MonkeyPatch, seed: str | None, shown: str
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    target = PythonTarget(f"python:{here}:LastPolicy")
    assert target.repeat_prefix(World.SIM) == (f"PYTHONHASHSEED={shown}",)
    assert target.repeat_prefix(World.LIVE) == ()


def test_the_shell_is_told_where_the_key_is_claimed(here: str, tmp_path: Path) -> None:
    target = PythonTarget(f"python:{here}:LastPolicy")
    target.claims = Claims((Affinity(key="cookie:sid"),))
    launch = target.launch(Deployment(tmp_path, "127.0.0.1", 8000, 8001, ()))
    assert json.loads(launch.files["balancer.json"])["key_carrier"] == "cookie:sid"


def test_shell_is_told_class_and_backends(here: str, tmp_path: Path) -> None:
    target = PythonTarget(f"python:{here}:LastPolicy")
    deployment = Deployment(tmp_path, "127.0.0.1", 8000, 8001, (Address("gpu-1", "127.0.0.1", 9001, 3, True),))
    launch = target.launch(deployment)
    config = json.loads(launch.files["balancer.json"])
    assert config["spec"] == f"python:{here}:LastPolicy"
    assert (config["port"], config["admin_port"]) == (8000, 8001)
    assert config["backends"] == [{"id": "gpu-1", "host": "127.0.0.1", "port": 9001, "weight": 3, "draining": True}]
    assert config["key_carrier"] == "header:x-model-id"
    assert launch.environment == {"PYTHONHASHSEED": "0"}
    assert launch.start[-1] == str(tmp_path / "balancer.json")
    (call,) = target.change(deployment)
    assert isinstance(call, AdminCall)
    assert (call.method, call.url) == ("PUT", "http://127.0.0.1:8001/backends")
    assert json.loads(call.body) == config["backends"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ClaimlessPolicy", r"claims nothing: saw claims = \(\)"),
        ("WronglyClaiming", r"claims nothing: saw claims = \('failover',\)"),
        ("Commaless", r"is one claim; expected a tuple, with a comma: \(Failover\(within_s=5.0\),\)"),
        ("NeedsSize", "cannot be created: TypeError: .*missing 1 required positional argument: 'size'"),
        ("NoBalancer", "lacks update_backends, report_result"),
        ("LastPolice", "no class LastPolice; did you mean LastPolicy"),
    ],
)
def test_wrong_class_is_one_line(here: str, name: str, message: str) -> None:
    with pytest.raises(ClaimsError, match=message) as caught:
        PythonTarget(f"python:{here}:{name}")
    assert "\n" not in str(caught.value)


def test_class_without_claims_attribute_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "balancer_without_claims.py").write_text("class Mute:\n    def handle(self, event, now_s): return []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ClaimsError, match="saw claims = None; expected a class attribute"):
        PythonTarget("python:balancer_without_claims:Mute")


def test_module_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ClaimsError, match="cannot import balancer_that_is_not_there"):
        PythonTarget("python:balancer_that_is_not_there:Class")
