"""docs/mockgpu.md against the code: every fault kind with its fields, every route and control call, by asking them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from mockgpu.api import fields as requests
from mockgpu.faults.kinds import KINDS
from mockgpu.faults.selection import SELECTION_FIELDS, STEP_FIELDS, SelectiveFault
from mockgpu.fleet.fleet import _STEPS, Fleet, FleetSettings
from mockgpu.gpu.catalogue import setup_of
from mockgpu.server import routes, server

PAGE = (Path(__file__).parent.parent / "docs" / "mockgpu.md").read_text(encoding="utf-8")
SECTIONS = {
    title: text.partition("\n| kind |")[0]
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
}


def calls(title: str) -> list[tuple[str, str]]:
    """The calls in the first column of a section's table: method and path."""
    rows = re.findall(r"^\| ([^|]*) \|", SECTIONS[title], re.MULTILINE)
    return [(method, path) for row in rows for method, path in re.findall(r"`(GET|POST) (/[^`]*)`", row)]


def test_every_fault_kind_is_there_with_its_fields() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]*)\| ([^|]*)\| ", PAGE, re.MULTILINE)
    told = {kind: (sorted(re.findall(r"`(\w+)`", names)), "yes" in band) for kind, names, band in rows}
    shared = {*SELECTION_FIELDS, *STEP_FIELDS}
    expected = {
        name: (sorted({each.name for each in fields(kind)} - shared), issubclass(kind, SelectiveFault))
        for name, kind in KINDS.items()
    }
    assert told == expected
    assert all(f"`{name}`" in PAGE for name in SELECTION_FIELDS)


def test_every_route_of_a_server_is_there() -> None:
    told = set(calls("What a server answers"))
    exact = {(method, path) for path, methods in routes.ROUTES.items() for method in methods}
    exact |= {("POST", path) for path in server._POSTS}
    assert exact - told == set()


def test_every_field_that_is_checked_is_there() -> None:
    text = SECTIONS["What a server answers"]
    checked = {*requests.COMPLETION, *requests.CHAT, *requests.RESPONSE, *requests.EMBEDDING} - {"stream_options"}
    assert "`stream_options.include_usage`" in text
    assert {name for name in checked if f"`{name}`" not in text} == set()


def test_every_control_call_in_the_code_is_there() -> None:
    source = Path(server.__file__).read_text(encoding="utf-8")
    known = set(re.findall(r'case "(GET|POST)", "(/mock/\w+)"', source))
    assert len(known) == 7 and known == set(calls("Control of one server"))
    assert {path.rpartition("/")[2] for _, path in calls("Control of the fleet")} >= set(_STEPS)


@pytest.fixture(scope="module")
def statuses() -> dict[tuple[str, str], int]:
    """Status of every call on the page, and of its curl commands, asked of a fleet of one; all as the page has them."""
    found: dict[tuple[str, str], int] = {}
    bodies = {"/mock/pin": {"model": "a"}, "/mock/reset": {"nonce": 7}, "/fleet/reset": {"nonce": 7}}

    async def ask(session: ClientSession, port: int, call: tuple[str, str]) -> None:
        method, path = call
        url = f"http://127.0.0.1:{port}{path.replace('{id}', 'gpu-0').replace('{model}', 'a')}"
        async with session.request(method, url, json=bodies.get(path, {}) if method == "POST" else None) as answer:
            found[call] = answer.status

    async def main() -> None:
        # One process for all, so that a kill is refused; a start and a stop in the page's order end with a restart.
        async with Fleet(FleetSettings(setup_of("tiny-full", "tiny-full"), (0,))) as fleet, ClientSession() as session:
            (backend,) = fleet.describe()
            port: Any = backend["port"]
            for title in ("What a server answers", "Control of one server"):
                for call in calls(title):
                    await ask(session, port, call)
            for command in re.findall(r"^    (curl .*)$", PAGE, re.MULTILINE):
                found["curl", command] = await curl(session, port, command)
            for call in calls("Control of the fleet"):
                await ask(session, fleet.control_port, call)

    asyncio.run(main())
    return found


async def curl(session: ClientSession, port: int, command: str) -> int:
    """The status of a curl command of the page, sent to `port`."""
    words = shlex.split(command)
    headers = dict([words[words.index("-H") + 1].split(": ", 1)]) if "-H" in words else {}
    url = f"http://{words[1].replace('9001', str(port))}"
    async with session.post(url, data=words[words.index("-d") + 1], headers=headers) as answer:
        json.loads(words[words.index("-d") + 1])
        return answer.status


def test_every_call_of_the_page_is_known(statuses: dict[tuple[str, str], int]) -> None:
    told = {call: status for call, status in statuses.items() if call[0] != "curl"}
    assert len(told) > 50
    assert {call: status for call, status in told.items() if status in (404, 405, 500)} == {}
    control = {call: status for call, status in told.items() if call[1].startswith(("/mock", "/fleet"))}
    refused = {call[1].rpartition("/")[2] for call, status in control.items() if status != 200}
    assert refused == {"kill", "pause", "resume"}, control


def test_the_commands_of_the_page(statuses: dict[tuple[str, str], int]) -> None:
    told = {command: status for (method, command), status in statuses.items() if method == "curl"}
    assert len(told) == 4
    for command, status in told.items():
        assert status == (503 if "X-Return-Error" in command else 200), command
