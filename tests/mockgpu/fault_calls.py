"""Calls to a backend under faults, with raw connections."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from mockgpu.api.tags import tag_of
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowOutcome

TAG = tag_of(77, 5)
STEP_S = 0.004
SETUP = Setup(Gpu("box", 1_000, 4, None, update_s=0.005), Model("any", 0, 0.0, 10_000.0, STEP_S))
LONG_AGO = 60.0


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "one two three", "max_tokens": 5, "seed": TAG} | fields


async def change(it: Any, *faults: dict[str, Any], clear: Any = ()) -> list[dict[str, Any]]:
    body = {"set": list(faults), "clear": clear if clear == "all" else list(clear)}
    async with it.session.post(it.url("/mock/faults"), json=body) as answer:
        assert answer.status == 200
        data: list[dict[str, Any]] = (await answer.json())["faults"]
        return data


async def complete(it: Any, **fields: Any) -> tuple[int, bytes, Any]:
    async with it.session.post(it.url("/v1/completions"), json=ask(**fields)) as answer:
        return answer.status, await answer.read(), answer.headers


async def raw(
    it: Any, body: dict[str, Any], path: str = "/v1/completions", *, close: bool = False
) -> tuple[bytes, bool]:
    """All bytes of an answer on a new connection, and whether the connection was reset.

    ``close`` requests that the server closes the connection after the answer.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n" + "Connection: close\r\n" * close
    writer.write(f"{head}\r\n".encode() + data)
    got = b""
    try:
        async with asyncio.timeout(LONG_AGO):
            while block := await reader.read(65_536):
                got += block
    except ConnectionResetError:
        return got, True
    finally:
        writer.close()
    return got, False


async def last_row(it: Any, outcome: RowOutcome) -> Any:
    """The row of the last request, once it has this outcome."""
    await it.until(lambda: it.rows()[-1].outcome is outcome)
    return it.rows()[-1]


async def part_of(it: Any, body: dict[str, Any], enough: Callable[[bytes], bool]) -> tuple[bytes, Any, Any]:
    """The part of an answer received when ``enough`` holds, and the open connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
    data = json.dumps(body).encode()
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    got = b""
    async with asyncio.timeout(10):
        while not enough(got):
            block = await reader.read(65_536)
            assert block, got
            got += block
    return got, reader, writer
