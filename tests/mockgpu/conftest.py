import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from mockgpu.gpu.catalogue import Setup
from mockgpu.server.attempt_log import AttemptLog, LogRow, read_rows
from mockgpu.server.clock import Clock
from mockgpu.server.server import MockBackend


@dataclass(frozen=True, slots=True)
class Served:
    """A listening backend, a client session for it, and its log rows."""

    backend: MockBackend
    port: int
    session: ClientSession
    log: AttemptLog

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded JSON (None for no body) of a GET."""
        async with self.session.get(self.url(path)) as answer:
            body = await answer.read()
            return answer.status, json.loads(body) if body else None

    async def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """Status and decoded JSON of a POST of JSON."""
        async with self.session.post(self.url(path), json=fields) as answer:
            body = await answer.read()
            return answer.status, json.loads(body) if body and answer.content_type == "application/json" else body

    def rows(self) -> list[LogRow]:
        return read_rows(self.log.dump())

    async def health(self) -> dict[str, Any]:
        async with self.session.get(self.url("/health")) as answer:
            data: dict[str, Any] = await answer.json()
            return data

    async def until_running(self, running: int) -> None:
        """Return when ``running`` jobs run."""
        end_s = time.monotonic() + 10
        while (await self.health())["running"] != running:
            assert time.monotonic() < end_s, f"never {running} running"

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds; polls for some seconds."""
        end_s = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end_s, "it never came true"
            await asyncio.sleep(0.002)


Run = Callable[..., Any]


@pytest.fixture
def serve(tmp_path: Path) -> Run:
    """Runs a test's coroutine function with a backend named gpu-3 that listens on a free port."""

    def run(test: Callable[[Served], Awaitable[Any]], setup: Setup, **options: Any) -> Any:
        @contextlib.asynccontextmanager
        async def served() -> AsyncIterator[Served]:
            clock = Clock(asyncio.get_running_loop())
            log = AttemptLog(tmp_path / "log", 1_000)
            backend = MockBackend("gpu-3", setup, clock, log, **options)
            port = await backend.start("127.0.0.1", 0)
            try:
                async with ClientSession() as session:
                    yield Served(backend, port, session, log)
            finally:
                await backend.close()
                clock.close()
                log.close()

        async def main() -> Any:
            async with served() as it:
                return await test(it)

        return asyncio.run(main())

    return run
