"""The balancer as a process: start, changes, stop, and errors."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGUSR1
from unittest.mock import Mock

import pytest

from harness.claims.features import Claims
from harness.live import balancer as module
from harness.live.balancer import Balancer
from harness.live.process.http import accepts, call
from harness.scenario.model import AdapterError, DiedError, TargetError, UnsupportedError
from harness.targets.base import (
    Address,
    AdminCall,
    ChangeStep,
    Deployment,
    Launch,
    LiveTarget,
    RunCommand,
    Signal,
    WriteFile,
)
from harness.targets.checked import for_live
from harness.targets.gateway_target import DRIVER_CONFIG
from harness.targets.nginx import NginxTarget
from harness.targets.reference import ReferenceTarget
from tests.harness.live.helpers import HOST, PATIENCE_S, RawBackend, fine, free_ports, until
from tests.harness.live.helpers import Call as Call
from tests.processes import runs, tree

LISTENS = """
import signal, socket, sys
signal.signal(signal.SIGUSR1, lambda number, frame: print("poked", flush=True))
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
while True: server.accept()[0].close()
"""


class Stub(LiveTarget):
    """A target with a given launch and given change steps."""

    name = "stub"
    version = "1"
    claims = Claims()

    def __init__(self, launch: Launch, *steps: ChangeStep) -> None:
        self._launch = launch
        self._steps = steps

    def launch(self, deployment: Deployment) -> Launch:
        return self._launch

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        return self._steps


def python(code: str, *words: object) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *map(str, words))


Start = Callable[..., Balancer]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    port, admin_port = free_ports(2)
    return Deployment(tmp_path, HOST, port, admin_port, ())


@pytest.fixture
def start(deployment: Deployment) -> Iterator[Start]:
    """Starts a target with the test's deployment; stopped at the end."""
    started: list[Balancer] = []

    def begin(target: LiveTarget, at: Deployment | None = None) -> Balancer:
        started.append(Balancer(target, at or deployment))
        return started[-1]

    yield begin
    for balancer in started:
        balancer.stop()


def listening(deployment: Deployment, *steps: ChangeStep) -> Stub:
    return Stub(Launch(files={}, start=python(LISTENS, deployment.port)), *steps)


def pid_of(balancer: Balancer) -> int:
    assert balancer._child is not None
    return balancer._child.pid


# --- the start --------------------------------------------------------------------------------------------


def test_one_that_waits_for_its_files_is_started_before_them(start: Start, deployment: Deployment) -> None:
    late = str(deployment.workdir / "late")
    waits = f"import pathlib, time\nwhile not pathlib.Path({late!r}).exists(): time.sleep(.01)\n"
    early = Balancer(
        Stub(Launch({"late": "now"}, python(waits + LISTENS, deployment.port), early=True)), deployment, begin=False
    )
    try:
        assert early._child is not None and not (deployment.workdir / "late").exists()
        assert not accepts(HOST, deployment.port)
        early.begin()
        early.await_listening()
    finally:
        early.stop()
    plain = Balancer(listening(deployment), deployment, begin=False)
    assert plain._child is None


def test_the_shell_waits_for_its_file(start: Start, deployment: Deployment) -> None:
    balancer = Balancer(ReferenceTarget(), deployment, begin=False)
    try:
        assert not (deployment.workdir / DRIVER_CONFIG).exists()
        balancer.check()
        balancer.begin()
        balancer.await_listening()
    finally:
        balancer.stop()


def test_files_environment_and_process(
    start: Start, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "/a/path/of/ours")
    code = f"import os; print(os.environ.get('OURS'), os.environ['SAID'], flush=True)\n{LISTENS}"
    launch = Launch(
        {"deep/er/file": "text\n"}, python(code, deployment.port), environment={"SAID": "this"}, unset=("OURS",)
    )
    balancer = start(Stub(launch))
    balancer.await_listening()
    balancer.check()
    assert balancer.url == f"http://{HOST}:{deployment.port}"
    assert (tmp_path / "deep" / "er" / "file").read_text() == "text\n"
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["file"]
    assert (tmp_path / "balancer.log").read_text().splitlines()[0] == "None this"
    pid = pid_of(balancer)
    balancer.stop()
    assert not runs(pid)


def test_a_refused_configuration_is_told_in_nginx_own_words(
    start: Start, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NginxTarget, "render", lambda *_: "events {}\nhtpp {}\n")
    before = tree(os.getpid())
    with pytest.raises(
        TargetError, match=r'^nginx refuses its configuration: nginx: \[emerg\] unknown directive "htpp" in .*:2$'
    ) as caught:
        start(NginxTarget())
    assert "\n" not in str(caught.value)
    assert tree(os.getpid()) == before


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("print('all is well')\nprint('ERROR: no such thing')\nprint('bye')", "ERROR: no such thing"),
        ("print('first')\nprint('last')", "last"),
        ("pass", r"\(no output\)"),
    ],
)
def test_the_telling_line_of_a_refusal(start: Start, said: str, message: str) -> None:
    with pytest.raises(TargetError, match=f"^stub refuses its configuration: {message}$"):
        start(Stub(Launch({}, (), check=python(f"{said}\nraise SystemExit(1)"))))


def test_a_check_that_does_not_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 0.2)
    with pytest.raises(TargetError, match=r"did not finish checking its configuration: .*timed out"):
        start(Stub(Launch({}, (), check=python("import time; time.sleep(600)"))))


def test_a_missing_binary(start: Start) -> None:
    with pytest.raises(
        TargetError, match=r"^/nowhere/lb: cannot be run \(No such file or directory\); is stub installed\?$"
    ):
        start(Stub(Launch({}, ("/nowhere/lb",), check=("/nowhere/lb", "-t"))))
    with pytest.raises(TargetError, match=r"^stub does not start: exit status 127; last line: /nowhere/lb: cannot be"):
        start(Stub(Launch({}, ("/nowhere/lb",)))).await_listening()


def test_a_taken_port_starts_nothing(start: Start, deployment: Deployment) -> None:
    before = tree(os.getpid())
    with socket.create_server((HOST, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(TargetError, match=rf"^port {port} is taken; stub cannot listen there: free it or choose"):
            start(listening(deployment), dataclasses.replace(deployment, port=port))
    assert tree(os.getpid()) == before


def test_one_that_ends_at_once(start: Start) -> None:
    code = "import sys; print('first'); print('no licence', file=sys.stderr); sys.exit(5)"
    balancer = start(Stub(Launch({}, python(code))))
    with pytest.raises(TargetError, match=r"^stub does not start: exit status 5; last line: no licence$"):
        balancer.await_listening()


def test_one_that_refuses_its_configuration_at_its_start(start: Start) -> None:
    code = "print('[NOTICE] version\\n[ALERT] unknown keyword\\n[ALERT] Fatal errors found'); raise SystemExit(1)"
    balancer = start(Stub(Launch({}, python(code))))
    with pytest.raises(TargetError, match=r"^stub does not start: exit status 1; it said: \[ALERT\] unknown keyword$"):
        balancer.await_listening()


def test_one_that_never_listens(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 1.0)
    balancer = start(Stub(Launch({}, python("import time; print('warming up', flush=True); time.sleep(600)"))))
    with pytest.raises(TargetError, match=r"^stub does not listen at http://127\.0\.0\.1:\d+ after 1 s: warming up$"):
        balancer.await_listening()


def test_one_that_was_to_be_running(
    start: Start, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "START_S", 0.1)
    target = Stub(Launch({}, ()))
    target.url = f"http://localhost:{deployment.port}/"
    with pytest.raises(TargetError, match=r"start it first, or give a \[run\] table so that Steelyard does$"):
        start(target).await_listening()
    assert capsys.readouterr().err == f"waiting 0 s for stub to listen at {target.url}\n"
    with socket.create_server((HOST, deployment.port)):
        balancer = start(target)
        balancer.await_listening()
        balancer.check()
    assert capsys.readouterr().err == ""


def test_not_ready_has_the_ending(start: Start, deployment: Deployment) -> None:
    balancer = start(listening(deployment))
    balancer.await_listening()
    assert str(balancer.not_ready("why")) == "stub does not get ready: why; still running"


# --- checks and changes -----------------------------------------------------------------------------------


def test_its_death_is_told_with_signal_and_last_line(start: Start, deployment: Deployment) -> None:
    balancer = start(listening(deployment))
    balancer.await_listening()
    os.kill(pid_of(balancer), SIGKILL)
    until(lambda: not runs(pid_of(balancer)))
    for action in (balancer.check, lambda: balancer.change(deployment)):
        with pytest.raises(DiedError, match=r"^signal SIGKILL; last line: up$"):
            action()


def test_steps_in_order(start: Start, deployment: Deployment, tmp_path: Path) -> None:
    copy = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
    steps = (
        WriteFile("list", "one"),
        RunCommand(python(copy, tmp_path / "list", tmp_path / "copy")),
        WriteFile("list", "two"),
        Signal(SIGUSR1),
    )
    balancer = start(listening(deployment, *steps))
    balancer.await_listening()
    until(lambda: "up" in (tmp_path / "balancer.log").read_text())
    balancer.change(deployment)
    assert ((tmp_path / "copy").read_text(), (tmp_path / "list").read_text()) == ("one", "two")
    until(lambda: "poked" in (tmp_path / "balancer.log").read_text())


def test_files_that_cannot_be_made_for_a_change(
    start: Start, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer = start(listening(deployment))
    balancer.await_listening()
    monkeypatch.setattr(Stub, "change", Mock(side_effect=TargetError("template a.j2:2: no backends[3]")))
    with pytest.raises(DiedError, match=r"^refused a change: template a\.j2:2: no backends\[3\]$"):
        balancer.change(deployment)
    balancer.check()
    monkeypatch.setattr(Stub, "change", Mock(side_effect=UnsupportedError("cannot change membership")))
    with pytest.raises(UnsupportedError, match=r"^cannot change membership$"):
        balancer.change(deployment)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (python("import sys; sys.exit('bad weight')"), "refused a change: exit status 1: bad weight"),
        (python("print('error: bad weight\\nusage: ...'); raise SystemExit(1)"), "exit status 1: error: bad weight$"),
        (python("import sys; sys.exit(3)"), r"refused a change: exit status 3: \(no output\)$"),
        (("/nowhere/ctl",), "refused a change: .*No such file"),
        (python("import time; time.sleep(600)"), "refused a change: .*timed out after 0.5"),
    ],
)
def test_a_command_that_refuses(
    start: Start, deployment: Deployment, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHANGE_S", 0.5 if "time" in words[-1] else PATIENCE_S)
    balancer = start(listening(deployment, RunCommand(words)))
    balancer.await_listening()
    with pytest.raises(DiedError, match=message):
        balancer.change(deployment)


def test_calls(start: Start, deployment: Deployment) -> None:
    async def behave(request: Call) -> None:
        await request.answer(b"no: " + request.body, "400 Bad Request" if request.body == b"bad" else "204 No Content")

    admin = RawBackend(behave)
    try:
        url = f"http://{HOST}:{admin.port}/members"
        start(listening(deployment, AdminCall("PUT", url, "good"))).change(deployment)
        assert admin.calls[0].head.startswith("PUT /members ")
        assert "content-type: application/json" in admin.calls[0].head.lower()
        other = dataclasses.replace(deployment, port=free_ports(1)[0])
        refusing = start(listening(other, AdminCall("PUT", url, "bad")), other)
        with pytest.raises(DiedError, match=r"^refused a change: PUT \S+: 400 b'no: bad'$"):
            refusing.change(other)
    finally:
        admin.close()


def test_a_call_that_nobody_takes(start: Start, deployment: Deployment) -> None:
    balancer = start(listening(deployment, AdminCall("PUT", f"http://{HOST}:{deployment.admin_port}/", "")))
    balancer.await_listening()
    with pytest.raises(DiedError, match=r"^refused a change: PUT \S+: .*refused"):
        balancer.change(deployment)
    os.kill(pid_of(balancer), SIGKILL)
    until(lambda: not runs(pid_of(balancer)))
    with pytest.raises(DiedError, match=r"^signal SIGKILL"):
        balancer.change(deployment)


# --- nginx ------------------------------------------------------------------------------------------------


def served_by(balancer: Balancer) -> bytes:
    return call("POST", f"{balancer.url}/v1/updates", b"{}", timeout_s=PATIENCE_S).body


def test_nginx_changes_its_members_and_refuses_nonsense(
    start: Start, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def other(request: Call) -> None:
        await request.answer(b"other")

    one, two = RawBackend(fine), RawBackend(other)
    try:
        at = [dataclasses.replace(deployment, backends=(Address("gpu-0", HOST, item.port),)) for item in (one, two)]
        balancer = start(NginxTarget(), at[0])
        balancer.await_listening()
        old = tree(pid_of(balancer))
        assert served_by(balancer) == b"fine"
        balancer.change(at[1])
        assert not old & tree(pid_of(balancer))
        assert [served_by(balancer) for _ in range(5)] == [b"other"] * 5
        monkeypatch.setattr(NginxTarget, "render", lambda *_: "htpp {}\n")
        monkeypatch.setattr(module, "CHANGE_S", 1.0)
        with pytest.raises(
            DiedError,
            match=r'^refused a change: its workers .* in 1 s; .*\[emerg\].* unknown directive "htpp" in .*:1$',
        ):
            balancer.change(at[0])
        workers = tree(pid_of(balancer))
        balancer.stop()
        until(lambda: not any(map(runs, workers)))
    finally:
        one.close()
        two.close()


def test_an_invalid_step_is_no_death_of_the_balancer(tmp_path: Path) -> None:
    """It is the adapter that is wrong, so the session stops; a change that the target itself refuses is a death."""
    place = Deployment(tmp_path, HOST, 1, 2, ())
    wrong = Stub(Launch({}, ()), WriteFile("../out", ""))
    with pytest.raises(AdapterError, match=r"target stub: change\(\) returned WriteFile"):
        Balancer(for_live(wrong), place).change(place)

    class Refuses(Stub):
        def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
            raise TargetError("no template")

    with pytest.raises(DiedError, match="refused a change: no template"):
        Balancer(for_live(Refuses(Launch({}, ()))), place).change(place)
