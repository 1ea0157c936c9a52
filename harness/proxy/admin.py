"""The admin interface of a live balancer: its backends as JSON, edits of the list, and metrics.

    GET    /backends                the list: id, url, weight, state, in flight, and what the gateway knows
    PUT    /backends                the whole list: [{id, host, port, weight}] or [{url, id, weight}], with "draining":
                                    true for those that are to get nothing new
    POST   /backends                join: {url} with id and weight where wanted, or {id, host, port, weight}
    GET    /backends/{id}           one of them
    PATCH  /backends/{id}           weigh: {weight}; PUT does the same
    DELETE /backends/{id}           leave: nothing new; what is in flight has the drain deadline to end, then it is cut
    POST   /backends/{id}/drain     as leave, but it stays listed until it is told to leave; ?wait_s=5 waits for the end
    GET    /metrics                 see harness.proxy.metrics

An edit keeps everything that is known about the others. Mistakes are answered with `{"error": ...}` of one line.
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
from harness.proxy.upstreams import BackendAddress, Upstream, place_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
JOIN_FORM = "expected an object of url (with id and weight where wanted), or of id, host, port, weight"
LONGEST_WAIT_S = 3600.0


class Admin:
    """Serves the interface for one shell and its list."""

    def __init__(self, shell: Driver) -> None:
        self._shell = shell
        self._upstreams = shell.upstreams

    def application(self) -> web.Application:
        """The routes."""
        made = web.Application(middlewares=[_errors_as_json])
        made.router.add_get("/backends", self._list)
        made.router.add_put("/backends", self._use)
        made.router.add_post("/backends", self._join)
        made.router.add_get("/backends/{id}", self._show)
        made.router.add_patch("/backends/{id}", self._weigh)
        made.router.add_put("/backends/{id}", self._weigh)
        made.router.add_delete("/backends/{id}", self._leave)
        made.router.add_post("/backends/{id}/drain", self._drain)
        made.router.add_get("/metrics", self._metrics)
        return made

    def _found(self, request: web.Request) -> Upstream:
        name = request.match_info["id"]
        found = self._upstreams.get(name)
        if found is None:
            raise KeyError(f"no backend {name!r}; GET /backends lists them")
        return found

    def _row(self, item: Upstream) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": item.place.id,
            "url": item.base,
            "weight": item.place.weight,
            "state": "ready",
            "draining": item.draining,
            "in_flight": item.in_flight,
        }
        if item.draining:
            return row | {"state": "draining" if item.in_flight else "drained", "ready": False}
        condition = self._shell.condition(item.place.id)
        if condition is None:  # the gateway tells nothing
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
                raise TypeError(f"{type(items).__name__} is no list")
            self._shell.use([place_of(item) for item in items])
        except (ValueError, KeyError, TypeError) as error:
            return _refusal(400, f"expected a list of id, host, port, weight: {_told(error)}")
        return web.json_response({})

    async def _join(self, request: web.Request) -> web.Response:
        try:
            place = place_of(await request.json())
        except (ValueError, KeyError, TypeError) as error:
            return _refusal(400, f"{JOIN_FORM}: {_told(error)}")
        try:
            joined = self._upstreams.join(place)
        except ValueError as error:
            return _refusal(409, str(error))
        self._shell.membership_changed()
        return web.json_response(self._row(joined), status=201)

    async def _leave(self, request: web.Request) -> web.Response:
        found = self._found(request)
        self._upstreams.leave(found.place.id)
        self._shell.membership_changed()
        return web.json_response({"id": found.place.id, "in_flight": found.in_flight})

    async def _weigh(self, request: web.Request) -> web.Response:
        found = self._found(request)
        try:
            asked = await request.json()
            if not isinstance(asked, dict) or set(asked) != {"weight"}:
                raise ValueError("another form")
            place: BackendAddress = replace(found.place, weight=asked["weight"])
        except (ValueError, TypeError) as error:
            return _refusal(400, f'expected {{"weight": NUMBER}}: {_told(error)}')
        found.place = place
        self._shell.membership_changed()
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
            asked = request.query.get("wait_s")
            return _refusal(400, f"wait_s {asked!r}: expected seconds from 0 to {LONGEST_WAIT_S:g}")
        if not found.draining:
            found.draining = True
            self._shell.membership_changed()
        if wait_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(found.idle.wait(), wait_s)
        return web.json_response(self._row(found))

    async def _metrics(self, request: web.Request) -> web.Response:
        text, content_type = self._shell.meters.exposition(request.headers.get("accept", ""))
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


def _refusal(status: int, told: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": " ".join(told.split())}, status=status, headers=headers)


def _told(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
