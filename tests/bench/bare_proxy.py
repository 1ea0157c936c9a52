"""The plainest reverse proxy that one would write with aiohttp: reads request and answer whole, keeps connections."""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web

NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


async def _serve(backend: str) -> None:
    async def forward(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_PASSED_ON}
        body = await request.read()
        async with client.request(request.method, backend + request.path_qs, headers=headers, data=body) as answer:
            text = await answer.read()
            passed = {name: value for name, value in answer.headers.items() if name.lower() not in NOT_PASSED_ON}
            return web.Response(status=answer.status, headers=passed, body=text)

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", forward)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, timeout=aiohttp.ClientTimeout(total=60)
    ) as client:
        await site.start()
        print(site.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
