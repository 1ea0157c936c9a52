"""The live shell of a gateway: an aiohttp reverse proxy that carries out what the gateway decides.

harness.proxy.serve makes a process of it. Rules of the protocol (exactly one
`AttemptEnded` per `Send`, queued events, broken transfers) are kept here; see harness.gateway.protocol.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from harness.gateway.crash_report import crash_line
from harness.gateway.parse_request import described
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    BackendDrained,
    Cancel,
    CancelTimer,
    ClientGone,
    Commit,
    Event,
    Exit,
    FirstByte,
    Gateway,
    HealthCheckResult,
    MemberReport,
    MembershipChanged,
    NowFunction,
    Reply,
    ReportsMembers,
    RequestArrived,
    ResponseHead,
    Send,
    SendHealthCheck,
    SetTimer,
    TimerFired,
)
from harness.proxy.client_connections import ClientConnection
from harness.proxy.health_poll import health_of
from harness.proxy.metrics import Meters
from harness.proxy.upstreams import BackendAddress, Upstream, Upstreams

HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host", "expect")
)
"""Headers that end at this hop (RFC 9110, section 7.6.1); `expect` was answered when the body was read."""

RESET = struct.pack("ii", 1, 0)
"""Linger for no time: the connection ends with a reset."""


@dataclass(slots=True)
class _Exchange:
    """A client's request and what is to answer it: a reply of the gateway's own, or a response passed on.

    `sent` counts its attempts, `running` those of them that nobody gave up.
    """

    request: web.BaseRequest
    body: bytes
    connection: ClientConnection
    began_s: float
    outcome: asyncio.Future[Reply | web.StreamResponse]
    sent: int = 0
    running: int = 0
    broken: bool = False


@dataclass(slots=True)
class _Running:
    """An attempt: its task, where it went, and the request that it was committed to."""

    upstream: Upstream
    exchange: _Exchange
    task: asyncio.Task[None] | None = None
    given_up: bool = False
    status: int = 0
    committed: asyncio.Event = field(default_factory=asyncio.Event)
    committed_to: int = -1
    error: str | None = "aborted"


class _ClientLeftError(Exception):
    """The client of an answer under way is gone."""


class Driver:
    """Runs `gateway` for the backends that `use` names; `key_carrier` is where its key is claimed.

    `upstreams` is the list of backends: after an edit, call `membership_changed`. `meters` counts.
    """

    def __init__(self, gateway: Gateway, now: NowFunction, health_path: str, key_carrier: str) -> None:
        self._gateway = gateway
        self._now = now
        self._health_path = health_path
        self._key_carrier = key_carrier
        self.upstreams = Upstreams()
        self.meters = Meters(self.upstreams, self.condition)
        self._events: deque[Event] = deque()
        self._busy = False
        self._exchanges: dict[int, _Exchange] = {}
        self._attempts: dict[int, _Running] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._next_request = 0
        self.stopped = asyncio.Event()

    @property
    def requests_in_flight(self) -> int:
        """Client requests that are not answered yet."""
        return len(self._exchanges)

    def condition(self, name: str) -> MemberReport | None:
        """What the gateway knows of a member now; None if it doesn't tell."""
        return self._gateway.condition(name, time.monotonic()) if isinstance(self._gateway, ReportsMembers) else None

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
                    self._give_up(running)
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
            case SendHealthCheck():
                task = asyncio.create_task(self._health_check(action))
                self._checks.add(task)
                task.add_done_callback(self._checks.discard)
            case BackendDrained():
                pass  # what is in flight where is counted here, for every gateway alike
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

    async def answer(self, request: web.BaseRequest, body: bytes, connection: ClientConnection) -> web.StreamResponse:
        """The answer to a client's request, whatever its path; one that came from a backend is on its way already."""
        loop = asyncio.get_running_loop()
        if not request.path_qs.startswith("/"):
            return web.json_response({"error": {"message": "expected a path that begins with /"}}, status=400)
        self._next_request += 1
        number = self._next_request
        exchange = _Exchange(request, body, connection, loop.time(), loop.create_future())
        self._exchanges[number] = exchange
        try:
            seen = described(
                number=number,
                connection=connection.number,
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
            self.meters.left(loop.time() - exchange.began_s, broken=exchange.broken)
            raise
        finally:
            del self._exchanges[number]
        if isinstance(outcome, Reply):
            self.meters.own_answer(outcome.status, outcome.reason, loop.time() - exchange.began_s, tried=exchange.sent)
            return _own_answer(outcome)
        self.meters.answered(outcome.status, loop.time() - exchange.began_s)
        return outcome

    # --- attempts -----------------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        exchange = self._exchanges.get(send.request_id)
        if exchange is None:  # the client left in the same instant; the gateway hears of both
            self.tell(AttemptEnded(send.attempt_id, "aborted"))
            return
        upstream = self.upstreams.get(send.backend_id)
        if upstream is None:
            self.tell(AttemptEnded(send.attempt_id, "refused"))
            return
        if exchange.sent:
            self.meters.another_attempt(hedge=exchange.running > 0)
        exchange.sent += 1
        exchange.running += 1
        self.upstreams.sent(upstream)
        running = _Running(upstream, exchange)
        self._attempts[send.attempt_id] = running
        running.task = asyncio.create_task(self._attempt(send, running, exchange))
        # A task that is cancelled before its first step never reaches its `finally`; the callback always runs.
        running.task.add_done_callback(lambda _: self._ended(send.attempt_id, running))

    @staticmethod
    def _give_up(running: _Running) -> None:
        if not running.given_up:
            running.given_up = True
            running.exchange.running -= 1

    def _ended(self, attempt_id: int, running: _Running) -> None:
        del self._attempts[attempt_id]
        self._give_up(running)
        self.upstreams.ended(running.upstream, running.error or f"{running.status // 100}xx")
        self.tell(AttemptEnded(attempt_id, running.error))

    def _commit(self, request_id: int, attempt_id: int) -> None:
        running = self._attempts.get(attempt_id)
        if running is not None:
            running.committed_to = request_id
            running.committed.set()

    async def _attempt(self, send: Send, running: _Running, exchange: _Exchange) -> None:
        request = exchange.request
        headers = _passed_on(request.headers)
        # Already encoded: requoting would rewrite what the client asked for.
        url = URL(running.upstream.base + request.path_qs, encoded=True)
        try:
            async with (
                asyncio.timeout(send.timeout_s),
                running.upstream.client.request(
                    request.method, url, headers=headers, data=exchange.body or None, allow_redirects=False
                ) as response,
            ):
                retry_after = response.headers.get("Retry-After", "")
                retry_after_s = float(retry_after) if retry_after.isdecimal() else None
                running.status = response.status
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
        headers = _passed_on(response.headers)
        answer: web.StreamResponse
        if response.content_length is not None and response.content.is_eof():  # all of it is here: one write
            answer = web.Response(status=response.status, headers=headers, body=first + await response.read())
            self.meters.first_byte(asyncio.get_running_loop().time() - exchange.began_s)
        else:
            answer = web.StreamResponse(status=response.status, headers=headers)
            await self._stream(response, exchange, first, answer)
        if not exchange.outcome.done():
            exchange.outcome.set_result(answer)

    async def _stream(
        self, response: aiohttp.ClientResponse, exchange: _Exchange, first: bytes, answer: web.StreamResponse
    ) -> None:
        loop = asyncio.get_running_loop()
        exchange.connection.mark(answer, loop.time())
        await _to_client(answer.prepare(exchange.request))
        chunk = first or await response.content.readany()
        self.meters.first_byte(loop.time() - exchange.began_s)
        while chunk:
            await _to_client(answer.write(chunk))
            chunk = await response.content.readany()
        await _to_client(answer.write_eof())

    def _break_transfer(self, request_id: int) -> None:
        """Cut a client's connection: an answer that broke off must not look whole."""
        exchange = self._exchanges.get(request_id)
        if exchange is None or exchange.outcome.done():
            return
        transport = exchange.request.transport
        if transport is not None:
            exchange.broken = True
            if exchange.request.version < HttpVersion11:  # no length and no chunks: a mere end would be a clean one
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            transport.abort()

    # --- health checks ----------------------------------------------------------------------------------------

    async def _health_check(self, check: SendHealthCheck) -> None:
        upstream = self.upstreams.get(check.backend_id)
        if upstream is None:
            self.tell(HealthCheckResult(check.check_id, check.backend_id, ok=False))
            return
        upstream.checks += 1
        try:
            result = await health_of(upstream, check, self._health_path)
        finally:
            self.upstreams.checked(upstream)
        self.tell(result)

    # --- the process --------------------------------------------------------------------------------------

    def use(self, places: Iterable[BackendAddress]) -> None:
        """Make these the list of backends, in this order. ValueError, and no change, if an id occurs twice."""
        moved = self.upstreams.replace(places)
        if moved:  # another address is another server: the gateway is to forget what it knows of the old one
            self.tell(MembershipChanged(tuple(item for item in self.upstreams.members() if item.id not in moved)))
        self.membership_changed()

    def membership_changed(self) -> None:
        """Tell the gateway who the members are now."""
        self.tell(MembershipChanged(self.upstreams.members()))

    async def close(self) -> None:
        """Let go of everything."""
        for handle in self._timers.values():
            handle.cancel()
        for task in [*self._checks, *(item.task for item in self._attempts.values() if item.task)]:
            task.cancel()
        await self.upstreams.close()


async def _to_client(step: Awaitable[object]) -> None:
    """Carry out a write to a client; its failure must not pass for one of the backend's, which raises alike."""
    try:
        await step
    except OSError:
        raise _ClientLeftError from None


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers without those that end at this hop: the known ones, and those that `ClientConnection` names."""
    named = {name.strip().lower() for value in headers.getall("connection", ()) for name in value.split(",")}
    ending = HOP_BY_HOP | named if named else HOP_BY_HOP
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in ending)


def _own_answer(reply: Reply) -> web.Response:
    headers = {} if reply.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(reply.retry_after_s)))}
    return web.json_response({"error": {"message": reply.reason}}, status=reply.status, headers=headers)
