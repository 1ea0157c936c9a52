"""The admin interface of a live balancer: lists and edits its backends as JSON, and serves metrics.

    GET    /backends                list: id, url, weight, state, requests in flight, and the gateway's health data
    PUT    /backends                replace the list: [{id, host, port, weight}] or [{url, id, weight}], with
                                    "draining": true for backends that get no new requests
    POST   /backends                join: {url} with optional id and weight, or {id, host, port, weight}
    GET    /backends/{id}           one backend
    PATCH  /backends/{id}           set the weight: {weight}; PUT does the same
    DELETE /backends/{id}           leave: no new requests; those in flight are cut at the drain deadline
    POST   /backends/{id}/drain     as leave, but it stays listed until DELETE; ?wait_s=5 waits for the end of the drain
    GET    /metrics                 see harness.proxy.metrics

An edit keeps all state of the other backends. Errors are answered with a one-line `{"error": ...}`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aiohttp import web

from harness.proxy.driver import Driver
from harness.proxy.upstreams import BackendAddress, Upstream, address_from_json

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
JOIN_FORM = "expected an object of url (with optional id and weight), or of id, host, port, weight"
LONGEST_WAIT_S = 3600.0


class Admin:
    """Serves the admin interface of one driver and its list of backends."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._upstreams = driver.upstreams

    def application(self) -> web.Application:
        """The aiohttp application with all routes."""
        application = web.Application(middlewares=[_errors_as_json])
        application.router.add_get("/backends", self._list)
        application.router.add_put("/backends", self._use)
        application.router.add_post("/backends", self._join)
        application.router.add_get("/backends/{id}", self._show)
        application.router.add_patch("/backends/{id}", self._weigh)
        application.router.add_put("/backends/{id}", self._weigh)
        application.router.add_delete("/backends/{id}", self._leave)
        application.router.add_post("/backends/{id}/drain", self._drain)
        application.router.add_get("/metrics", self._metrics)
        return application

    def _found(self, request: web.Request) -> Upstream:
        name = request.match_info["id"]
        found = self._upstreams.get(name)
        if found is None:
            raise KeyError(f"no backend {name!r}; GET /backends lists them")
        return found

    def _row(self, item: Upstream) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": item.backend.id,
            "url": item.base,
            "weight": item.backend.weight,
            "state": "ready",
            "draining": item.draining,
            "in_flight": item.in_flight,
        }
        if item.draining:
            return row | {"state": "draining" if item.in_flight else "drained", "ready": False}
        condition = self._driver.condition(item.backend.id)
        if condition is None:  # the gateway reports no condition
            return row
        row |= {"ready": condition.ready, "breaker": condition.breaker, "score": condition.score}
        return row if condition.ready else row | {"state": "not ready"}

    # --- routes -------------------------------------------------------------------------------------------

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response([self._row(item) for item in self._upstreams.listed])

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._row(self._found(request)))

    async def _use(self, request: web.Request) -> web.Response:
        try:
            items = await request.json()
            if not isinstance(items, list):
                raise TypeError(f"{type(items).__name__} is not a list")
            self._driver.use([address_from_json(item) for item in items])
        except (ValueError, KeyError, TypeError) as error:
            return _refusal(400, f"expected a list of id, host, port, weight: {_message(error)}")
        return web.json_response({})

    async def _join(self, request: web.Request) -> web.Response:
        try:
            backend = address_from_json(await request.json())
        except (ValueError, KeyError, TypeError) as error:
            return _refusal(400, f"{JOIN_FORM}: {_message(error)}")
        try:
            joined = self._upstreams.join(backend)
        except ValueError as error:
            return _refusal(409, str(error))
        self._driver.membership_changed()
        return web.json_response(self._row(joined), status=201)

    async def _leave(self, request: web.Request) -> web.Response:
        found = self._found(request)
        self._upstreams.leave(found.backend.id)
        self._driver.membership_changed()
        return web.json_response({"id": found.backend.id, "in_flight": found.in_flight})

    async def _weigh(self, request: web.Request) -> web.Response:
        found = self._found(request)
        try:
            body = await request.json()
            if not isinstance(body, dict) or set(body) != {"weight"}:
                raise ValueError("unexpected keys or type")
            backend: BackendAddress = replace(found.backend, weight=body["weight"])
        except (ValueError, TypeError) as error:
            return _refusal(400, f'expected {{"weight": NUMBER}}: {_message(error)}')
        found.backend = backend
        self._driver.membership_changed()
        return web.json_response(self._row(found))

    async def _drain(self, request: web.Request) -> web.Response:
        found = self._found(request)
        unknown = sorted(set(request.query) - {"wait_s"})
        if unknown:
            return _refusal(400, f"{unknown[0]!r} is unknown; expected wait_s or nothing")
        try:
            wait_s = float(request.query.get("wait_s", "0"))
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s <= LONGEST_WAIT_S:
            given = request.query.get("wait_s")
            return _refusal(400, f"wait_s {given!r}: expected seconds from 0 to {LONGEST_WAIT_S:g}")
        if not found.draining:
            found.draining = True
            self._driver.membership_changed()
        if wait_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(found.idle.wait(), wait_s)
        return web.json_response(self._row(found))

    async def _metrics(self, request: web.Request) -> web.Response:
        text, content_type = self._driver.meters.exposition(request.headers.get("accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except KeyError as error:
        return _refusal(404, error.args[0])
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _refusal(405, f"{request.method} {request.path}: expected {allowed}", {"Allow": allowed})
    except web.HTTPException as error:
        return _refusal(error.status, f"{request.method} {request.path}: {error.reason}")


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": " ".join(message.split())}, status=status, headers=headers)


def _message(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
