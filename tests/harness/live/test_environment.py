"""An environment over real sockets: a client and the fleet observe its faults, which heal on time and on demand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness.live.environment import QUICK, Environment, EnvironmentOptions
from harness.live.faults import probes
from harness.live.load.background import BackgroundLoad
from harness.live.process.http import HttpResponse, accepts, call
from harness.live.statistics import ObservedBackend
from harness.live.watch import Watch
from harness.scenario.model import ClaimsError, DiedError, HarnessError, TargetError
from harness.targets.base import RunCommand
from harness.targets.reference import ReferenceTarget
from harness.up.control_api import Control
from harness.up.run_lock import RunAddress, call_control
from tests.harness.live.helpers import HOST, PATIENCE_S, RawBackend, fine, hang, until

LATE_S = 0.4


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Two backends behind the reference, without background load."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("stage")
        yield Environment(ReferenceTarget(), EnvironmentOptions(backends=2, rate_per_s=0), folder, stack)


@pytest.fixture(autouse=True)
def _calm(environment: Environment) -> Iterator[None]:
    """After each test no fault is in force."""
    yield
    environment.clear(None, None)
    assert environment.listed() == []
    environment.check()


def ping(environment: Environment, backend: str) -> float:
    """Seconds for an answer through the fault proxy of a backend."""
    host, port = environment.proxy_address(backend)
    began_s = time.monotonic()
    assert call("GET", f"http://{host}:{port}/mock/ping", timeout_s=PATIENCE_S).status == 200
    return time.monotonic() - began_s


def infer(environment: Environment, backend: str) -> HttpResponse:
    """A request to a backend through its fault proxy, without the balancer."""
    host, port = environment.proxy_address(backend)
    return call("GET", f"http://{host}:{port}/v1/models/m/answer", timeout_s=PATIENCE_S)


def observe(watch: Watch, backend: str) -> ObservedBackend:
    return next(item for item in watch.snapshot().backends if item.name == backend)


def test_latency_is_in_force_until_it_heals_by_itself(environment: Environment) -> None:
    effective, message = environment.add("gpu-1", "latency", ["--latency-s", str(LATE_S), "--for", "1s"])
    assert effective and message.startswith("latency on gpu-1 in force after ") and message.endswith(", heals in 1 s")
    assert ping(environment, "gpu-1") >= LATE_S * 0.99
    (row,) = environment.listed()
    assert (row["backend"], row["kind"], row["told"]) == ("gpu-1", "latency", "latency 400 ms")
    assert 0 <= row["heals_in_s"] <= 1 and row["since_s"] >= 0
    until(lambda: not environment.listed())
    assert min(ping(environment, "gpu-1") for _ in range(5)) < LATE_S


def test_latency_stays_until_it_is_cleared(environment: Environment) -> None:
    _, message = environment.add("gpu-0", "latency", ["--latency-ms", "400"])
    assert message.endswith(", until: steelyard fault clear gpu-0 latency")
    assert environment.clear("gpu-1", None) == [] and environment.clear(None, "kill") == []
    assert environment.clear("gpu-0", "latency") == ["latency on gpu-0 cleared"]
    assert min(ping(environment, "gpu-0") for _ in range(5)) < LATE_S


def test_a_killed_backend_refuses_and_comes_back_cold(environment: Environment) -> None:
    watch = Watch(environment)
    assert infer(environment, "gpu-1").status == 200
    assert len(observe(watch, "gpu-1").models) == 1
    environment.add("gpu-1", "failing-status", ["--status", "503"])
    assert infer(environment, "gpu-1").status == 503
    effective, _ = environment.add("gpu-1", "kill", [])
    assert effective and not accepts(*environment.proxy_address("gpu-1"))
    assert [row["kind"] for row in environment.listed()] == ["kill"], (
        "the failing status lived in the process that is gone"
    )
    dead = observe(watch, "gpu-1")
    assert (dead.process, dead.models, dead.faults) == ("dead", (), ("kill",))
    assert environment.clear(None, None) == ["kill on gpu-1 cleared"]
    assert infer(environment, "gpu-1").status == 200
    back = observe(watch, "gpu-1")
    assert (back.process, len(back.models)) == ("alive", 1)
    assert back.used_mb == QUICK.default_model.weights_mb and back.total_mb == QUICK.gpu.weights_mb


def test_a_restart_heals_by_itself(environment: Environment) -> None:
    _, message = environment.add("gpu-0", "restart", [])
    assert message.endswith(", heals at once")
    until(lambda: not environment.listed())
    assert infer(environment, "gpu-0").status == 200


def test_what_is_due_while_its_backend_is_paused_heals_when_it_goes_on(environment: Environment) -> None:
    environment.add("gpu-0", "slow", ["--factor", "2", "--for", "100ms"])
    environment.add("gpu-0", "pause", [])
    until(lambda: any(row["kind"] == "slow" and row["heals_in_s"] == 0.0 for row in environment.listed()))
    with pytest.raises(ClaimsError, match="steelyard fault clear gpu-0 pause first"):
        environment.clear("gpu-0", "slow")
    environment.clear("gpu-0", "pause")
    assert environment.listed() == []


@pytest.mark.parametrize(
    ("first", "second"), [("kill", "pause"), ("kill", "down"), ("down", "reset"), ("kill", "hang"), ("pause", "hang")]
)
def test_what_does_not_go_together_is_refused(environment: Environment, first: str, second: str) -> None:
    environment.add("gpu-1", first, [])
    with pytest.raises(ClaimsError, match=f"{first} is in force on gpu-1.*steelyard fault clear gpu-1 {first} first"):
        environment.add("gpu-1", second, [])
    assert [row["kind"] for row in environment.listed()] == [first]


def test_one_of_a_kind_at_a_time(environment: Environment) -> None:
    environment.add("gpu-1", "down", [])
    with pytest.raises(ClaimsError, match="down is in force on gpu-1, and down does not go with it"):
        environment.add("gpu-1", "down", [])
    environment.add("gpu-0", "down", [])


def test_what_closes_a_way_goes_together(environment: Environment) -> None:
    """The link opens when both are cleared, and a pause ends with its process."""
    environment.add("gpu-1", "pause", [])
    environment.add("gpu-1", "down", [])
    environment.add("gpu-1", "kill", [])
    assert [row["kind"] for row in environment.listed()] == ["down", "kill"]
    environment.clear("gpu-1", "down")
    assert not accepts(*environment.proxy_address("gpu-1"))
    environment.clear("gpu-1", "kill")
    assert infer(environment, "gpu-1").status == 200


def test_what_no_probe_sees_is_taken_back(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBE_S", 0.0)
    with monkeypatch.context() as tied:
        tied.setattr(environment._injector._proxy, "add_toxic", lambda *_, **__: None)
        tied.setattr(environment._injector._proxy, "remove_toxic", lambda *_: None)
        effective, message = environment.add("gpu-1", "latency", ["--latency-ms", "400"])
    assert not effective and "latency on gpu-1 never took effect" in message
    assert environment.listed() == []
    assert min(ping(environment, "gpu-1") for _ in range(5)) < LATE_S


def test_evict_strikes_once(environment: Environment) -> None:
    watch = Watch(environment)
    assert infer(environment, "gpu-0").status == 200
    assert observe(watch, "gpu-0").models
    assert environment.add("gpu-0", "evict", [])[0]
    assert not observe(watch, "gpu-0").models
    assert environment.listed() == []
    assert environment.add("gpu-0", "evict", [])[0]


def test_membership_changes_are_carried_out_listed_and_undone(environment: Environment) -> None:
    def members() -> set[tuple[str, float]]:
        rows = json.loads(call("GET", f"{environment.admin}/backends").body)
        return {(row["id"], row["weight"]) for row in rows}

    assert members() == {("gpu-0", 1), ("gpu-1", 1)}
    effective, message = environment.add("gpu-1", "leave", [])
    assert effective and message.startswith("leave of gpu-1 done after ")
    environment.add("gpu-0", "weigh", ["--weight", "3"])
    assert members() == {("gpu-0", 3)}
    assert [(row["backend"], row["told"]) for row in environment.listed()] == [
        ("gpu-1", "leave"),
        ("gpu-0", "weigh weight 3"),
    ]
    assert (environment.membership_status("gpu-0"), environment.membership_status("gpu-1")) == ("weight 3", "left")
    with pytest.raises(ClaimsError, match="gpu-1 is no member"):
        environment.add("gpu-1", "drain", [])
    with pytest.raises(ClaimsError, match="gpu-0 is a member already"):
        environment.add("gpu-0", "join", [])
    assert environment.clear(None, None) == ["leave of gpu-1 undone", "weigh of gpu-0 undone"]
    assert members() == {("gpu-0", 1), ("gpu-1", 1)}
    environment.add("gpu-1", "drain", [])
    assert environment.membership_status("gpu-1") == "draining"
    environment.add("gpu-1", "join", [])
    assert (environment.membership_status("gpu-1"), environment.listed()) == ("", [])


def test_a_change_that_the_balancer_refuses_is_told_and_counts_for_nothing(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.target, "change", lambda deployment: (RunCommand(("false",)),))
    with pytest.raises(DiedError, match="reference: leave of gpu-1: refused a change: exit status 1"):
        environment.add("gpu-1", "leave", [])
    assert (environment.membership_status("gpu-1"), environment.listed()) == ("", [])
    environment.check()


@pytest.mark.parametrize(("backend", "kind"), [("gpu-7", "kill"), ("gpu-0", "kil")])
def test_names_that_are_not_there(environment: Environment, backend: str, kind: str) -> None:
    for refused in (lambda: environment.add(backend, kind, []), lambda: environment.clear(backend, kind)):
        with pytest.raises(ClaimsError, match="did you mean"):
            refused()


# --- observations -----------------------------------------------------------------------------------------


def test_requests_are_seen_in_the_logs(environment: Environment) -> None:
    watch = Watch(environment)
    for number in range(20):
        model = f"m-{number % 4}"
        url = f"{environment.url}/v1/models/{model}/answer"
        answer = call("GET", url, headers={"x-model-id": model}, timeout_s=PATIENCE_S)
        assert answer.status == 200
    snapshot = watch.snapshot()
    assert sum(item.attempts.started for item in snapshot.backends) >= 20
    assert sum(item.share for item in snapshot.backends) == pytest.approx(1.0)
    assert snapshot.client is None
    for item in snapshot.backends:
        assert item.attempts.errors == 0 and item.silent_s is not None and item.attempts.p50_s > 0


def test_the_own_load_sees_what_a_client_sees(environment: Environment) -> None:
    load = BackgroundLoad(environment.url, 50.0, 8, "header:x-model-id", "http", 1)
    load.start()
    try:
        until(lambda: len(load.answered(0.0)) >= 20)
        answers = load.answered(0.0)
        assert {item.status for item in answers} == {200}
        assert {item.backend for item in answers} <= {"gpu-0", "gpu-1"}
        environment.add("gpu-0", "failing-status", ["--status", "400"])
        environment.add("gpu-1", "failing-status", ["--status", "400"])
        until(lambda: load.answered(0.0)[-1].status == 400)
    finally:
        load.stop()
    assert load.failed is None


def test_an_open_loop_waits_for_no_answer() -> None:
    backend = RawBackend(hang)
    load = BackgroundLoad(f"http://{HOST}:{backend.port}", 200.0, 8, "header:x-model-id", "http", 1)
    load.start()
    try:
        until(lambda: len(backend.calls) >= 30)
        assert load.answered(0.0) == []
    finally:
        load.stop()
        backend.close()


def test_an_answer_that_is_none_of_a_mock_counts_all_the_same() -> None:
    backend = RawBackend(fine)
    load = BackgroundLoad(f"http://{HOST}:{backend.port}", 200.0, 8, "header:x-model-id", "http", 1)
    load.start()
    try:
        answer = until(lambda: load.answered(0.0))[0]
        assert (answer.status, answer.backend, answer.failed) == (200, "", False)
        backend.close()
        until(lambda: load.answered(0.0)[-1].status == 0)
        assert load.answered(0.0)[-1].failed
    finally:
        load.stop()


# --- the control interface --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def where(environment: Environment) -> Iterator[RunAddress]:
    """The control interface of the environment."""
    control = Control(environment)
    yield RunAddress(0, control.url, control.token)
    control.close()
    with pytest.raises(TargetError, match="does not answer"):
        call_control(RunAddress(0, control.url, control.token), "GET", "/stage")


def test_faults_are_set_listed_and_cleared_by_calls(environment: Environment, where: RunAddress) -> None:
    message = call_control(where, "GET", "/stage")
    assert (message["target"], message["url"], message["backends"]) == (
        "reference",
        environment.url,
        ["gpu-0", "gpu-1"],
    )
    done = call_control(where, "POST", "/faults", {"backend": "gpu-0", "kind": "down", "words": ["--for", "20s"]})
    assert done["effective"] and "down on gpu-0 in force" in done["told"]
    assert [row["kind"] for row in call_control(where, "GET", "/faults")] == ["down"]
    assert call_control(where, "POST", "/faults/clear", {"backend": None, "kind": None})["told"] == [
        "down on gpu-0 cleared"
    ]
    assert call_control(where, "GET", "/faults") == []


@pytest.mark.parametrize(
    ("method", "path", "asked", "error"),
    [
        ("POST", "/faults", {"backend": "gpu-9", "kind": "kill"}, ClaimsError),
        ("POST", "/faults", {"kind": "kill"}, ClaimsError),
        ("POST", "/faults", {"backend": "gpu-0", "kind": "kill", "words": [1]}, ClaimsError),
        ("POST", "/faults/clear", {"backend": 1}, ClaimsError),
        ("GET", "/elsewhere", None, HarnessError),
    ],
)
def test_what_makes_no_sense_is_refused(
    where: RunAddress, method: str, path: str, asked: dict[str, object] | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        call_control(where, method, path, asked)


def test_without_the_token_nothing_is_answered(environment: Environment, where: RunAddress) -> None:
    for token in ("", "wrong", where.token + "x"):
        answer = call("POST", where.control + "/faults/clear", b"{}", {"x-steelyard-token": token})
        assert answer.status == 403


def test_bodies_that_are_none_are_refused(where: RunAddress) -> None:
    for body in (b"{", b"[]", b"\xff"):
        answer = call("POST", where.control + "/faults", body, {"x-steelyard-token": where.token})
        assert answer.status == 400 and b"error" in answer.body


# --- options ----------------------------------------------------------------------------------------------


def test_backends_of_the_catalogue_hold_as_many_models_as_the_load_brings() -> None:
    assert EnvironmentOptions().setup() == QUICK
    made = EnvironmentOptions(gpu="h100-80gb", model="llama-8b-fp8", models=8, backends=4).setup()
    assert made.gpu.weights_mb >= 2 * made.default_model.weights_mb
    assert EnvironmentOptions(model="llama-8b").setup().gpu.name == "h100-80gb"


@pytest.mark.parametrize("options", [EnvironmentOptions(gpu="h100-80g"), EnvironmentOptions(model="lama-8b")])
def test_unknown_names_of_the_catalogue(options: EnvironmentOptions) -> None:
    with pytest.raises(ClaimsError, match=r"did you mean (h100-80gb|llama-8b)"):
        options.setup()
