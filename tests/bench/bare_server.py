"""What the mock is measured against: aiohttp as everybody uses it, with one route that reads and answers JSON.

Usage: ``python bare_server.py SECONDS``, the time that it sleeps over each request, or over each token of a stream.
Prints its port when it listens; ends when its standard input does. Answers have the form and the size of the mock's.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from aiohttp import web

SERVICE_S = float(sys.argv[1])


async def _answer(request: web.Request) -> web.StreamResponse:
    asked: dict[str, Any] = await request.json()
    if asked.get("stream"):
        return await _stream(request, asked)
    if SERVICE_S:
        await asyncio.sleep(SERVICE_S)
    tokens = asked["max_tokens"]
    return web.json_response(
        {
            "id": "sy-none",
            "object": "text_completion",
            "created": 1_700_000_000,
            "model": asked["model"],
            "choices": [{"index": 0, "text": " the" * tokens, "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens},
        }
    )


async def _stream(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    choice = {"index": 0, "text": " the", "logprobs": None, "finish_reason": None}
    head = {"id": "sy-none", "object": "text_completion", "created": 1_700_000_000, "model": asked["model"]}
    before = b"data: " + json.dumps(head).encode()[:-1] + b', "token": '
    after = b", " + json.dumps({"choices": [choice]}).encode()[1:] + b"\n\n"
    due_s = time.monotonic()
    for number in range(asked["max_tokens"]):
        due_s += SERVICE_S
        await asyncio.sleep(due_s - time.monotonic())
        await response.write(b"%b%d%b" % (before, number, after))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _serve() -> None:
    app = web.Application()
    app.router.add_post("/v1/completions", _answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(_serve())
