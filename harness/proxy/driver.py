"""The HTTP driver of a gateway: an aiohttp reverse proxy that carries out the gateway's actions.

harness.proxy.serve runs it as a process. The rules of harness.gateway.protocol (exactly one `AttemptEnded` per `Send`,
queued events, broken transfers) are implemented here.
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
from harness.gateway.parse_request import parse_request
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
from harness.proxy.health_poll import poll_health
from harness.proxy.metrics import Meters
from harness.proxy.upstreams import BackendAddress, Upstream, Upstreams

HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host", "expect")
)
"""Hop-by-hop headers (RFC 9110, section 7.6.1); `expect` is answered when the body is read."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0: closing the connection sends a reset."""


@dataclass(slots=True)
class _Exchange:
    """A client's request and its future answer: the gateway's own reply, or a response passed on.

    `sent` counts its attempts, `running` those neither ended nor cancelled.
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
class _Attempt:
    """An attempt: its upstream, request and task; `over`: ended or cancelled; the request id it is committed to."""

    upstream: Upstream
    exchange: _Exchange
    task: asyncio.Task[None] | None = None
    over: bool = False
    status: int = 0
    committed: asyncio.Event = field(default_factory=asyncio.Event)
    committed_to: int = -1
    error: str | None = "aborted"


class _ClientLeftError(Exception):
    """The client left while its answer was being sent."""


class Driver:
    """Runs `gateway` for the backends given to `use`; `key_carrier` is the claimed location of the affinity key.

    `upstreams` is the list of backends: call `membership_changed` after an edit. `meters` are the metrics.
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
        self._attempts: dict[int, _Attempt] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._next_request = 0
        self.stopped = asyncio.Event()

    @property
    def requests_in_flight(self) -> int:
        """Number of unanswered client requests."""
        return len(self._exchanges)

    def condition(self, name: str) -> MemberReport | None:
        """The gateway's current report on a member; None if it reports none."""
        return self._gateway.condition(name, time.monotonic()) if isinstance(self._gateway, ReportsMembers) else None

    # --- the gateway --------------------------------------------------------------------------------------

    def dispatch(self, event: Event) -> None:
        """Hand an event to the gateway and carry out its actions. An exception of the gateway ends the process."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                queued = self._events.popleft()
                self._now.now_s = time.monotonic()
                for action in self._gateway.handle(queued, self._now.now_s):
                    self._carry_out(action)
        except BaseException as error:
            print(f"the gateway raised {crash_line(error, queued)}", file=sys.stderr, flush=True)
            os._exit(3)  # as a crashed balancer would; no handler may continue with a broken state
        finally:
            self._busy = False

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send():
                self._send(action)
            case Cancel(attempt_id):
                running = self._attempts.get(attempt_id)
                if running is not None and running.task is not None:
                    self._mark_over(running)
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
                pass  # attempts in flight are counted here, for every gateway
            case Exit():
                self.stopped.set()

    def _cancel_timer(self, timer_id: int) -> None:
        handle = self._timers.pop(timer_id, None)
        if handle is not None:
            handle.cancel()

    def _timer(self, timer_id: int) -> None:
        del self._timers[timer_id]
        self.dispatch(TimerFired(timer_id))

    # --- clients ------------------------------------------------------------------------------------------

    async def answer(self, request: web.BaseRequest, body: bytes, connection: ClientConnection) -> web.StreamResponse:
        """Answer a client's request of any path. A streamed answer has already been sent when this returns."""
        loop = asyncio.get_running_loop()
        if not request.path_qs.startswith("/"):
            return web.json_response({"error": {"message": "expected a path that begins with /"}}, status=400)
        self._next_request += 1
        number = self._next_request
        exchange = _Exchange(request, body, connection, loop.time(), loop.create_future())
        self._exchanges[number] = exchange
        try:
            arrived = parse_request(
                number=number,
                connection=connection.number,
                method=request.method,
                path=request.path,
                headers=request.headers,
                body=body,
                key_carrier=self._key_carrier,
            )
            self.dispatch(RequestArrived(arrived))
            outcome = await exchange.outcome
        except asyncio.CancelledError:
            self.dispatch(ClientGone(number))
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
        if exchange is None:  # the client has just left; the gateway gets both events
            self.dispatch(AttemptEnded(send.attempt_id, "aborted"))
            return
        upstream = self.upstreams.get(send.backend_id)
        if upstream is None:
            self.dispatch(AttemptEnded(send.attempt_id, "refused"))
            return
        if exchange.sent:
            self.meters.another_attempt(hedge=exchange.running > 0)
        exchange.sent += 1
        exchange.running += 1
        self.upstreams.sent(upstream)
        running = _Attempt(upstream, exchange)
        self._attempts[send.attempt_id] = running
        running.task = asyncio.create_task(self._attempt(send, running, exchange))
        # A task cancelled before its first step never reaches its `finally`; the callback always runs.
        running.task.add_done_callback(lambda _: self._ended(send.attempt_id, running))

    @staticmethod
    def _mark_over(running: _Attempt) -> None:
        if not running.over:
            running.over = True
            running.exchange.running -= 1

    def _ended(self, attempt_id: int, running: _Attempt) -> None:
        del self._attempts[attempt_id]
        self._mark_over(running)
        self.upstreams.ended(running.upstream, running.error or f"{running.status // 100}xx")
        self.dispatch(AttemptEnded(attempt_id, running.error))

    def _commit(self, request_id: int, attempt_id: int) -> None:
        running = self._attempts.get(attempt_id)
        if running is not None:
            running.committed_to = request_id
            running.committed.set()

    async def _attempt(self, send: Send, running: _Attempt, exchange: _Exchange) -> None:
        request = exchange.request
        headers = _end_to_end_headers(request.headers)
        # Already encoded: requoting would change the client's path.
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
                self.dispatch(ResponseHead(send.attempt_id, response.status, retry_after_s))
                first = b""
                if not running.committed.is_set():  # the gateway may await the first byte
                    first = await response.content.readany()
                    self.dispatch(FirstByte(send.attempt_id))
                await running.committed.wait()
                await self._pass_on(response, self._exchanges.get(running.committed_to), first)
            running.error = None
        except TimeoutError:
            running.error = "timeout"
        except _ClientLeftError:
            pass  # aborted: not a failure of the backend
        except aiohttp.ClientConnectorError:
            running.error = "refused"
        except (aiohttp.ClientError, OSError):
            running.error = "reset"
        finally:
            if running.error is not None and running.committed.is_set():
                self._break_transfer(running.committed_to)

    async def _pass_on(self, response: aiohttp.ClientResponse, exchange: _Exchange | None, first: bytes) -> None:
        """Pass a backend's answer on to the client; `first` is the part of its body already read."""
        if exchange is None:
            return
        headers = _end_to_end_headers(response.headers)
        answer: web.StreamResponse
        if response.content_length is not None and response.content.is_eof():  # complete: one write
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
        """Abort a client's connection, so that a broken-off answer does not look complete."""
        exchange = self._exchanges.get(request_id)
        if exchange is None or exchange.outcome.done():
            return
        transport = exchange.request.transport
        if transport is not None:
            exchange.broken = True
            if exchange.request.version < HttpVersion11:  # neither length nor chunks: a plain close would look complete
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            transport.abort()

    # --- health checks ----------------------------------------------------------------------------------------

    async def _health_check(self, check: SendHealthCheck) -> None:
        upstream = self.upstreams.get(check.backend_id)
        if upstream is None:
            self.dispatch(HealthCheckResult(check.check_id, check.backend_id, ok=False))
            return
        upstream.checks += 1
        try:
            result = await poll_health(upstream, check, self._health_path)
        finally:
            self.upstreams.checked(upstream)
        self.dispatch(result)

    # --- the process --------------------------------------------------------------------------------------

    def use(self, backends: Iterable[BackendAddress]) -> None:
        """Replace the list of backends, in this order. ValueError, without any change, if an id occurs twice."""
        moved = self.upstreams.replace(backends)
        if moved:  # a new address is a new server: make the gateway drop its state of the old one
            self.dispatch(MembershipChanged(tuple(item for item in self.upstreams.members() if item.id not in moved)))
        self.membership_changed()

    def membership_changed(self) -> None:
        """Send the gateway the current members."""
        self.dispatch(MembershipChanged(self.upstreams.members()))

    async def close(self) -> None:
        """Cancel timers, health checks and attempts, and close all upstream connections."""
        for handle in self._timers.values():
            handle.cancel()
        for task in [*self._checks, *(item.task for item in self._attempts.values() if item.task)]:
            task.cancel()
        await self.upstreams.close()


async def _to_client(step: Awaitable[object]) -> None:
    """Await a write to a client. An OSError becomes _ClientLeftError, to differ from a backend's OSError."""
    try:
        await step
    except OSError:
        raise _ClientLeftError from None


def _end_to_end_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers without the hop-by-hop ones: HOP_BY_HOP and those that the `Connection` header names."""
    named = {name.strip().lower() for value in headers.getall("connection", ()) for name in value.split(",")}
    hop_by_hop = HOP_BY_HOP | named if named else HOP_BY_HOP
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in hop_by_hop)


def _own_answer(reply: Reply) -> web.Response:
    headers = {} if reply.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(reply.retry_after_s)))}
    return web.json_response({"error": {"message": reply.reason}}, status=reply.status, headers=headers)
