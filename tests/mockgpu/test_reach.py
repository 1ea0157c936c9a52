"""Control calls are accepted with the token or, if none is set, from this machine only."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, web

from mockgpu.fleet.fleet import Fleet, FleetSettings
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.listening import PortError, control_refusal, is_loopback

SETUP = Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 10_000.0, 0.002))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost"])
def test_what_is_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "192.168.1.1", "example.org", ""])
def test_what_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("remote", "token", "given", "message"),
    [
        ("127.0.0.1", "", "", ""),
        ("127.0.0.1", "", "superfluous", ""),
        ("10.0.0.1", "", "", "control requests from 10.0.0.1 need a token"),
        ("10.0.0.1", "", "guessed", "control requests from 10.0.0.1 need a token"),
        (None, "", "", "need a token"),
        ("10.0.0.1", "t", "t", ""),
        ("10.0.0.1", "t", "", "missing or wrong"),
        ("127.0.0.1", "t", "u", "missing or wrong"),
    ],
)
def test_a_token_or_this_machine(remote: str | None, token: str, given: str, message: str) -> None:
    request: Any = SimpleNamespace(remote=remote, headers={"x-mock-token": given} if given else {})
    refusal = control_refusal(request, token)
    assert message in refusal and bool(refusal) == bool(message)


def test_calls_from_elsewhere_are_refused_at_every_control_path(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mockgpu.server.listening.is_loopback", lambda host: False)

    async def test(it: Any) -> None:
        for method, path in (("GET", "/mock/faults"), ("POST", "/mock/reset"), ("GET", "/mock/log")):
            async with it.session.request(method, it.url(path), data=b'{"nonce": 1}') as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (403, "forbidden")
        assert (await it.get("/health"))[0] == 200
        assert (await it.post("/v1/completions", prompt="a"))[0] == 200

    serve(test, SETUP)

    async def fleet() -> None:
        async with Fleet(FleetSettings(SETUP, (0,))) as it, ClientSession() as session:
            for method, path in (("GET", "/fleet"), ("POST", "/fleet/gpu-0/restart"), ("GET", "/fleet/gpu-0/log")):
                async with session.request(method, f"http://127.0.0.1:{it.control_port}{path}") as answer:
                    assert (answer.status, "need a token" in json.loads(await answer.text())["error"]) == (403, True)

    asyncio.run(fleet())


@pytest.mark.parametrize(
    ("host", "token", "expected"),
    [
        ("0.0.0.0", "", "127.0.0.1"),
        ("::", "", "127.0.0.1"),
        ("0.0.0.0", "t", "0.0.0.0"),
        ("127.0.0.2", "", "127.0.0.2"),
        ("::1", "", "::1"),
    ],
)
def test_the_control_port_is_for_this_machine_unless_there_is_a_token(
    monkeypatch: pytest.MonkeyPatch, host: str, token: str, expected: str
) -> None:
    queried: list[str] = []

    async def note(runner: web.ServerRunner, host: str, port: int) -> int:
        queried.append(host)
        raise PortError("no further")

    monkeypatch.setattr("mockgpu.fleet.fleet.listen", note)

    async def main() -> None:
        with pytest.raises(PortError):
            await Fleet(FleetSettings(SETUP, (0,), host, token=token)).__aenter__()

    asyncio.run(main())
    assert queried == [expected]
