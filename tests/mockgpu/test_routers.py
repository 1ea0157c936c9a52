"""Real inference routers accept mock backends as vLLM or SGLang servers: they start, and requests succeed.

The routers are not installed with the project, because their packages clash: `.ci/routers DIR` makes an environment
for each, and STEELYARD_ROUTERS=DIR names it. Without it they are searched in PATH.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from mockgpu.api.tags import tag_of
from mockgpu.server.attempt_log import RowOutcome
from tests.mockgpu.processes import HOST, NONCE, Fleet, child, fleet, free_ports

COMMANDS: dict[str, tuple[str, ...]] = {
    "vllm-router": (),
    "sglang-router": ("launch",),
    "smg": ("launch",),
}
"""Each router's command and its first arguments."""

BACKENDS = 4
REQUESTS = 200
AT_ONCE = 8
TOKENS = 5
READY_S = 60.0
MODEL = "tiny"


def command_of(name: str) -> str:
    """Path of a router's command; skips the test if it is not installed and STEELYARD_ROUTERS is not set."""
    folder = os.environ.get("STEELYARD_ROUTERS")
    if folder is None:
        return shutil.which(name) or pytest.skip(f"no {name}: make it with .ci/routers DIR, set STEELYARD_ROUTERS=DIR")
    found = shutil.which(name, path=Path(folder) / name / "bin")
    return found or pytest.fail(f"STEELYARD_ROUTERS={folder} holds no {name}: make it with .ci/routers {folder}")


@contextmanager
def router(name: str, backends: Fleet, folder: Path) -> Iterator[str]:
    """A router in front of these backends, once it finds all of them healthy; its address."""
    command = command_of(name)
    port, metrics_port = free_ports(2)
    words = [command, *COMMANDS[name], "--host", HOST, "--port", str(port), "--policy", "round_robin"]
    words += ["--prometheus-host", HOST, "--prometheus-port", str(metrics_port), "--worker-urls", *backends.urls()]
    log = folder / f"{name}.log"
    with child(log, *words) as process:
        url = f"http://{HOST}:{port}"
        deadline_s = time.monotonic() + READY_S
        while (healthy := healthy_workers(url)) != BACKENDS:
            message = f"{name} finds {healthy} of {BACKENDS} backends healthy:\n{log.read_text()[-4000:]}"
            assert process.status is None and time.monotonic() < deadline_s, message
            time.sleep(0.02)
        yield url


def healthy_workers(url: str) -> int:
    """Number of backends that the router reports as healthy; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/readiness", timeout=5) as answer:
            return int(json.load(answer)["healthy_workers"])
    except (urllib.error.URLError, ConnectionError):
        return 0


async def ask_all(url: str) -> list[tuple[int, str]]:
    """Send all requests with limited concurrency; for each the backend named in the answer, and the text."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with ClientSession(timeout=ClientTimeout(total=30)) as session:

        async def ask(number: int, chat: bool, stream: bool) -> tuple[int, str]:
            body: dict[str, Any] = {"model": MODEL, "max_tokens": TOKENS, "seed": tag_of(NONCE, number)}
            body |= {"messages": [{"role": "user", "content": "Hello"}]} if chat else {"prompt": "Hello"}
            body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            path = "/v1/chat/completions" if chat else "/v1/completions"
            async with gate, session.post(url + path, json=body) as answer:
                text = await answer.text()
                assert answer.status == 200, text
            return read_stream(text, chat) if stream else read_whole(json.loads(text), chat)

        kinds = itertools.cycle(itertools.product((False, True), repeat=2))
        return await asyncio.gather(*(ask(number, *next(kinds)) for number in range(REQUESTS)))


def read_whole(data: Any, chat: bool) -> tuple[int, str]:
    assert data["usage"]["completion_tokens"] == TOKENS
    (choice,) = data["choices"]
    assert choice["finish_reason"] == "length"
    return backend_of(data), choice["message"]["content"] if chat else choice["text"]


def read_stream(text: str, chat: bool) -> tuple[int, str]:
    *events, end = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert end == "[DONE]"
    parts = [json.loads(event) for event in events]
    assert parts[-1]["usage"]["completion_tokens"] == TOKENS
    choices = [part["choices"][0] for part in parts[:-1]]
    assert choices[-1]["finish_reason"] == "length"
    (backend,) = {backend_of(part) for part in parts}
    return backend, "".join(choice["delta"].get("content", "") if chat else choice["text"] for choice in choices)


def backend_of(data: Any) -> int:
    return int(data["backend"].removeprefix("gpu-"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_router_serves_from_mock_backends(name: str, tmp_path: Path) -> None:
    command_of(name)
    with fleet(tmp_path, BACKENDS, "--gpu", "tiny", "--model", MODEL) as backends:
        with router(name, backends, tmp_path) as url:
            answers = asyncio.run(ask_all(url))
        logs = [backends.inferences(number) for number in range(BACKENDS)]
    assert {text for _, text in answers} == {" the" * TOKENS}
    # The logs of the backends agree with the answers to clients; each request is logged once.
    done = {row.tag: number for number, rows in enumerate(logs) for row in rows}
    assert done == {tag_of(NONCE, number): backend for number, (backend, _) in enumerate(answers)}
    rows = [row for rows in logs for row in rows]
    assert {(row.status, row.outcome) for row in rows} == {(200, RowOutcome.ANSWERED)} and len(rows) == REQUESTS
    assert Counter(backend for backend, _ in answers) == dict.fromkeys(range(BACKENDS), REQUESTS // BACKENDS)
