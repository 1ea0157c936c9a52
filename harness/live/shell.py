"""The live shell of a gateway: an aiohttp reverse proxy that carries out what the gateway decides.

harness.live.serve makes a process of it. Rules of the protocol (exactly one
`AttemptEnded` per `Send`, queued events, broken transfers) are kept here; see harness.balancer.protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from harness.balancer.crash import crash_line
from harness.balancer.describe import described
from harness.balancer.protocol import (
    Action,
    AttemptEnded,
    Backend,
    BackendDrained,
    Cancel,
    CancelTimer,
    CheckUp,
    CheckUpResult,
    ClientGone,
    Commit,
    Event,
    Exit,
    FirstByte,
    Gateway,
    MembershipChanged,
    NowFunction,
    Reply,
    RequestArrived,
    ResponseHead,
    Send,
    SetTimer,
    TimerFired,
)

HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host")
)
"""Headers that end at this hop (RFC 9110, section 7.6.1)."""

OWN_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
"""Headers that aiohttp's client would add where a client sent none; a backend must see what the client sent."""

WHOLE_BODY = 64 * 2**10
"""Answers of a known length up to this many bytes are passed on in one write."""


@dataclass(slots=True)
class _Exchange:
    """A client's request and what is to answer it: a reply of the gateway's own, or a response passed on."""

    request: web.Request
    body: bytes
    outcome: asyncio.Future[Reply | web.StreamResponse]


@dataclass(slots=True)
class _Running:
    """An attempt: its task, and the request that it was committed to."""

    task: asyncio.Task[None] | None = None
    committed: asyncio.Event = field(default_factory=asyncio.Event)
    committed_to: int = -1
    error: str | None = "aborted"


class _ClientLeftError(Exception):
    """The client of an answer under way is gone."""


class Shell:
    """Runs `gateway` for the backends that `change_backends` names; `key_carrier` is where its key is claimed."""

    def __init__(self, gateway: Gateway, now: NowFunction, health_path: str, key_carrier: str) -> None:
        self._gateway = gateway
        self._now = now
        self._health_path = health_path
        self._key_carrier = key_carrier
        self._addresses: dict[str, str] = {}
        self._events: deque[Event] = deque()
        self._busy = False
        self._exchanges: dict[int, _Exchange] = {}
        self._attempts: dict[int, _Running] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._connections: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._next_connection = 0
        self._next_request = 0
        self.stopped = asyncio.Event()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        self._client = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
            skip_auto_headers=OWN_HEADERS,
        )
        # aiohttp repeats idempotent requests on its own when a pooled connection was dropped; attempts are the
        # gateway's decision alone. There is no public switch; a test counts attempts at a dropping backend.
        self._client._retry_connection = False

    # --- the gateway --------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Hand an event to the gateway and carry out its actions. A gateway that raises ends the process."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                following = self._events.popleft()
                self._now.now_s = time.monotonic()
                for action in self._gateway.handle(following, self._now.now_s):
                    self._carry_out(action)
        except BaseException as error:
            print(f"the gateway raised {crash_line(error, following)}", file=sys.stderr, flush=True)
            os._exit(3)  # as a balancer that crashes would; handlers must not go on with a broken state
        finally:
            self._busy = False

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send():
                self._send(action)
            case Cancel(attempt_id):
                running = self._attempts.get(attempt_id)
                if running is not None and running.task is not None:
                    running.task.cancel()
            case Commit(request_id, attempt_id):
                self._commit(request_id, attempt_id)
            case Reply(request_id):
                exchange = self._exchanges.get(request_id)
                if exchange is not None and not exchange.outcome.done():
                    exchange.outcome.set_result(action)
            case SetTimer(timer_id, at_s):
                self._cancel_timer(timer_id)
                self._timers[timer_id] = asyncio.get_running_loop().call_at(at_s, self._timer, timer_id)
            case CancelTimer(timer_id):
                self._cancel_timer(timer_id)
            case CheckUp():
                task = asyncio.create_task(self._check_up(action))
                self._checks.add(task)
                task.add_done_callback(self._checks.discard)
            case BackendDrained():
                pass  # the admin interface tells of members, not of leavers
            case Exit():
                self.stopped.set()

    def _cancel_timer(self, timer_id: int) -> None:
        handle = self._timers.pop(timer_id, None)
        if handle is not None:
            handle.cancel()

    def _timer(self, timer_id: int) -> None:
        del self._timers[timer_id]
        self.tell(TimerFired(timer_id))

    # --- clients ------------------------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handler of every client request, whatever its path."""
        body = await request.read()
        self._next_request += 1
        number = self._next_request
        exchange = _Exchange(request, body, asyncio.get_running_loop().create_future())
        self._exchanges[number] = exchange
        try:
            seen = described(
                number=number,
                connection=self._connection(request.transport),
                method=request.method,
                path=request.path,
                headers=request.headers,
                body=body,
                key_carrier=self._key_carrier,
            )
            self.tell(RequestArrived(seen))
            outcome = await exchange.outcome
        except asyncio.CancelledError:
            self.tell(ClientGone(number))
            raise
        finally:
            del self._exchanges[number]
        return _own_answer(outcome) if isinstance(outcome, Reply) else outcome

    def _connection(self, transport: object) -> int:
        """Number of a client's connection; a new one for a client that has left already."""
        connection = None if transport is None else self._connections.get(transport)
        if connection is None:
            self._next_connection += 1
            connection = self._next_connection
            if transport is not None:
                self._connections[transport] = connection
        return connection

    # --- attempts -----------------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        exchange = self._exchanges.get(send.request_id)
        if exchange is None:  # the client left in the same instant; the gateway hears of both
            self.tell(AttemptEnded(send.attempt_id, "aborted"))
            return
        running = _Running()
        self._attempts[send.attempt_id] = running
        running.task = asyncio.create_task(self._attempt(send, running, exchange))
        # A task that is cancelled before its first step never reaches its `finally`; the callback always runs.
        running.task.add_done_callback(lambda _: self._ended(send.attempt_id, running))

    def _ended(self, attempt_id: int, running: _Running) -> None:
        del self._attempts[attempt_id]
        self.tell(AttemptEnded(attempt_id, running.error))

    def _commit(self, request_id: int, attempt_id: int) -> None:
        running = self._attempts.get(attempt_id)
        if running is not None:
            running.committed_to = request_id
            running.committed.set()

    async def _attempt(self, send: Send, running: _Running, exchange: _Exchange) -> None:
        request = exchange.request
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
        )
        # Already encoded: requoting would rewrite what the client asked for.
        url = URL(self._addresses.get(send.backend_id, "") + request.path_qs, encoded=True)
        try:
            async with (
                asyncio.timeout(send.timeout_s),
                self._client.request(
                    request.method, url, headers=headers, data=exchange.body or None, allow_redirects=False
                ) as response,
            ):
                retry_after = response.headers.get("Retry-After", "")
                retry_after_s = float(retry_after) if retry_after.isdecimal() else None
                self.tell(ResponseHead(send.attempt_id, response.status, retry_after_s))
                first = b""
                if not running.committed.is_set():  # the gateway waits for the first byte, or for something else
                    first = await response.content.readany()
                    self.tell(FirstByte(send.attempt_id))
                await running.committed.wait()
                await self._pass_on(response, self._exchanges.get(running.committed_to), first)
            running.error = None
        except TimeoutError:
            running.error = "timeout"
        except _ClientLeftError:
            pass  # aborted: the backend has not failed
        except aiohttp.ClientConnectorError:
            running.error = "refused"
        except (aiohttp.ClientError, OSError):
            running.error = "reset"
        finally:
            if running.error is not None and running.committed.is_set():
                self._break_transfer(running.committed_to)

    async def _pass_on(self, response: aiohttp.ClientResponse, exchange: _Exchange | None, first: bytes) -> None:
        """Give a backend's answer to a client as it comes; `first` is what was read of its body already."""
        if exchange is None:
            return
        headers = CIMultiDict(
            (name, value) for name, value in response.headers.items() if name.lower() not in HOP_BY_HOP
        )
        length = response.content_length
        answer: web.StreamResponse
        if length is not None and length <= WHOLE_BODY and not first:
            try:
                answer = web.Response(status=response.status, headers=headers, body=await response.read())
            except (aiohttp.ClientError, OSError):
                # The head goes out all the same: the client must see an answer that broke off, not a bare close.
                await _to_client(web.StreamResponse(status=response.status, headers=headers).prepare(exchange.request))
                raise
        else:
            answer = web.StreamResponse(status=response.status, headers=headers)
            await _to_client(answer.prepare(exchange.request))
            if first:
                await _to_client(answer.write(first))
            async for chunk in response.content.iter_any():
                await _to_client(answer.write(chunk))
            await _to_client(answer.write_eof())
        if not exchange.outcome.done():
            exchange.outcome.set_result(answer)

    def _break_transfer(self, request_id: int) -> None:
        """Cut a client's connection: an answer that broke off must not look whole."""
        exchange = self._exchanges.get(request_id)
        if exchange is None or exchange.outcome.done():
            return
        transport = exchange.request.transport
        if transport is not None:
            transport.abort()

    # --- check-ups ----------------------------------------------------------------------------------------

    async def _check_up(self, check: CheckUp) -> None:
        ok, report = False, None
        base = self._addresses.get(check.backend_id)
        try:
            async with (
                asyncio.timeout(check.timeout_s),
                self._client.get((base or "") + self._health_path) as response,
            ):
                text = await response.read()
                ok = response.status == 200
                report = _report(check.backend_id, text)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            ok = False
        self.tell(CheckUpResult(check.check_id, check.backend_id, ok, report))

    # --- the process --------------------------------------------------------------------------------------

    async def set_backends(self, request: web.Request) -> web.Response:
        """PUT /backends on the admin interface: a JSON list of {id, host, port, weight}."""
        try:
            self.change_backends(await request.json())
        except (ValueError, KeyError, TypeError) as error:
            return web.json_response({"error": f"expected a list of id, host, port, weight: {error}"}, status=400)
        return web.json_response({})

    def change_backends(self, items: list[dict[str, Any]]) -> None:
        """Make these the members, in this order."""
        backends = tuple(
            Backend(id=item["id"], address=f"{item['host']}:{item['port']}", weight=item["weight"]) for item in items
        )
        self._addresses.update({backend.id: f"http://{backend.address}" for backend in backends})
        self.tell(MembershipChanged(backends))

    async def close(self) -> None:
        """Let go of everything."""
        for handle in self._timers.values():
            handle.cancel()
        for task in [*self._checks, *(item.task for item in self._attempts.values() if item.task)]:
            task.cancel()
        await self._client.close()


async def _to_client(step: Awaitable[object]) -> None:
    """Carry out a write to a client; its failure must not pass for one of the backend's, which raises alike."""
    try:
        await step
    except OSError:
        raise _ClientLeftError from None


def _own_answer(reply: Reply) -> web.Response:
    headers = {} if reply.retry_after_s is None else {"Retry-After": str(max(1, round(reply.retry_after_s)))}
    return web.json_response({"error": {"message": reply.reason}}, status=reply.status, headers=headers)


def _report(backend_id: str, text: bytes) -> Backend | None:
    """A backend's report of itself; None where it sent none or another form of it."""
    try:
        said = json.loads(text)
        return Backend(
            id=backend_id,
            address="",
            memory_total_mb=float(said["memory_total_mb"]),
            memory_used_mb=float(said["memory_used_mb"]),
            memory_evictable_mb=float(said["memory_evictable_mb"]),
            queue_depth=int(said["queue_depth"]),
            running=int(said["running"]),
            pending_tokens=int(said["pending_tokens"]),
            loaded_models=tuple(said["models"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
