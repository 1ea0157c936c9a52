"""The simulator and the live driver parse the same arrival to the same request."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from harness.claims.features import Affinity, Claims
from harness.gateway.protocol import Action, Event, NowFunction, Reply, Request, RequestArrived
from harness.load.wire import request_of
from harness.proxy.client_connections import ClientConnections
from harness.proxy.driver import Driver
from harness.scenario.arrivals import draw
from harness.scenario.model import Keys, Kind, Load, Method, Stream
from harness.sim.clients import NONCE, request_from_arrival
from tests.harness.live.helpers import HOST

LOAD = Load(
    (
        Stream("asking", 0.0, 10.0, 4, keys=Keys(2, "sweep"), prompt_tokens=20),
        Stream("keyless", 1.0, 10.0, 1),
        Stream("updates", 2.0, 10.0, 1, kind=Kind.UPDATE),
        Stream("keyed updates", 3.0, 10.0, 1, kind=Kind.UPDATE, keys=Keys(1)),
    )
)


class Mirror:
    """Answers all requests itself and records them."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if not isinstance(event, RequestArrived):
            return []
        self.requests.append(event.request)
        return [Reply(event.request.id, 200, "seen")]


async def told_live(requests: list[bytes], carrier: str) -> list[Request]:
    """The requests that a gateway gets for these bytes, each on a separate connection."""
    mirror = Mirror()
    driver = Driver(mirror, NowFunction(), "/health", carrier)
    runner = web.ServerRunner(ClientConnections(driver.answer))
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    try:
        for data in requests:
            reader, writer = await asyncio.open_connection(HOST, runner.addresses[0][1])
            writer.write(data)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
            await writer.wait_closed()
    finally:
        await driver.close()
        await runner.cleanup()
    return mirror.requests


WITHOUT_BODY = ("header:x-model-id", "json:model", "session", "header:X-Tenant", "cookie:sid")


@pytest.mark.parametrize(
    ("carrier", "method"),
    [
        *((carrier, Method.GET) for carrier in WITHOUT_BODY),
        *((carrier, Method.POST) for carrier in (*WITHOUT_BODY, "json:user.id", "prompt-prefix:30")),
    ],
)
def test_both_worlds_tell_the_gateway_the_same(carrier: str, method: Method) -> None:
    seed = 5
    drawn = draw(LOAD, seed)
    arrivals = [replace(item, method=method) if item.kind is Kind.INFERENCE else item for item in drawn]
    claims = Claims((Affinity(key=carrier),))
    sent = [request_of(item, carrier, seed, NONCE, "http").encoded(f"{HOST}:80", close=True) for item in arrivals]
    live = asyncio.run(told_live(sent, claims.key_carrier))
    sim = [request_from_arrival(item, item.number + 1, carrier, claims, seed) for item in arrivals]
    assert [replace(item, id=0, connection=0) for item in live] == [replace(item, id=0, connection=0) for item in sim]
    keys = [item.key for item in sim[:4]]
    assert keys[0] == keys[2] != keys[1] == keys[3]
    assert all(keys)
