"""Clients of a simulated run: send requests at their intended times, time out, and record the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from harness.claims.features import Claims
from harness.gateway.parse_request import parse_request
from harness.gateway.protocol import ClientGone, Event, Request, RequestArrived
from harness.load.wire import request_of
from harness.scenario.arrivals import Arrival
from harness.scenario.closed_loop import VirtualUser, VirtualUsers, answer_failed
from harness.scenario.model import Echo, Failure, HarnessError
from harness.sim.event_queue import EventQueue
from harness.sim.evidence import ClientRow

OTHER = Failure.OTHER  # cached, as every request needs it

NONCE = 1
"""Run nonce of every simulated run; requests of different simulated runs never mix."""

Answer = tuple[int, int, int, Echo, Failure]
"""Request number, status, backend number (-1: the balancer itself), echo, and failure."""


def request_from_arrival(arrival: Arrival, connection: int, key_carrier: str, claims: Claims, seed: int) -> Request:
    """The request that the live driver would parse from this arrival's bytes. HarnessError if it has no wire form.

    `key_carrier` is where the load puts the key; the carrier in `claims` is where the balancer reads it.
    """
    try:
        wire = request_of(arrival, key_carrier, seed, NONCE, claims.protocol)
    except ValueError as error:
        raise HarnessError(str(error)) from None
    return parse_request(
        number=arrival.number,
        connection=connection,
        method=wire.method,
        path=wire.path,
        headers=dict(wire.headers),
        body=wire.body,
        key_carrier=claims.key_carrier,
    )


class Reader:
    """Parses arrivals as the live driver would; caches requests that differ only in number and connection."""

    def __init__(self, key_carrier: str, claims: Claims, seed: int) -> None:
        self._key_carrier = key_carrier
        self._claims = claims
        self._seed = seed
        self._cache: dict[tuple[int | str, ...], Request] = {}

    def __call__(self, arrival: Arrival, connection: int) -> Request:
        """The request of `arrival` on this connection. HarnessError if it has no wire form."""
        cache_key = (
            arrival.stream,
            arrival.method,
            arrival.key,
            arrival.kind,
            arrival.urgency,
            arrival.session,
            arrival.prompt_tokens,
            arrival.payload_bytes,
        )
        cached = self._cache.get(cache_key)
        if cached is None:
            cached = request_from_arrival(arrival, connection, self._key_carrier, self._claims, self._seed)
            self._cache[cache_key] = cached
        return Request(
            arrival.number,
            connection,
            cached.kind,
            cached.method,
            cached.model,
            cached.session,
            cached.urgency,
            cached.prompt_tokens,
            cached.payload_bytes,
            cached.key,
        )


class Clients:
    """All clients. `open` counts the unfinished requests; `rows` are the requests' records, by request number.

    `read` makes the gateway's request from an arrival and its connection number. `arrivals` and `rows` grow with the
    requests of `virtual_users`.
    """

    def __init__(
        self,
        event_queue: EventQueue,
        arrivals: list[Arrival],
        virtual_users: VirtualUsers,
        rows: list[ClientRow],
        streams: int,
        read: Callable[[Arrival, int], Request],
        dispatch: Callable[[Event], None],
    ) -> None:
        self.open = len(arrivals)
        self._event_queue = event_queue
        self._arrivals = arrivals
        self._rows = rows
        self._read = read
        self._dispatch = dispatch
        self._idle_connections: list[int] = []
        self._connections = streams  # lower numbers belong to streams with a single connection
        self._queues: dict[int, deque[Arrival]] = {}
        self._connection_of: dict[int, int] = {}
        self._upcoming = iter(tuple(arrivals))
        self._virtual_users = virtual_users
        self._user_of: dict[int, VirtualUser] = {}

    def begin(self) -> None:
        """Schedule the first open-loop request (each schedules the next) and each virtual user's first."""
        self._schedule_next()
        for user in self._virtual_users.users:
            self._schedule_user(user, user.start_s)

    def _schedule_next(self) -> None:
        arrival = next(self._upcoming, None)
        if arrival is not None:
            self._event_queue.before(arrival.at_s, self._send_due, arrival)

    def answered(self, answer: Answer) -> None:
        """Record a received answer, complete or broken off (TRUNCATED)."""
        number, status, backend, echo, failure = answer
        row = self._rows[number]
        if row.done:
            return
        row.status, row.answered_by, row.echo, row.failure = status, backend, echo, failure
        row.first_byte_s = row.end_s = self._event_queue.now.now_s
        self._finish(row)

    def _send_due(self, arrival: Arrival) -> None:
        self._schedule_next()
        self._send(arrival)

    def _schedule_user(self, user: VirtualUser, free_s: float, failed: bool = False) -> None:
        due_s = user.due_s(free_s, failed)
        if due_s is not None:
            self._event_queue.at(due_s, self._send_next, user)

    def _send_next(self, user: VirtualUser) -> None:
        arrival = user.next_request(self._event_queue.now.now_s)
        self._arrivals.append(arrival)
        self._rows.append(ClientRow(arrival.number))
        self._user_of[arrival.number] = user
        self.open += 1
        self._send(arrival)

    def _send(self, arrival: Arrival) -> None:
        if arrival.connection < 0:
            if arrival.fresh or not self._idle_connections:
                self._connections += 1
                self._start(arrival, self._connections)
            else:
                self._start(arrival, self._idle_connections.pop())
            return
        queue = self._queues.setdefault(arrival.connection, deque())
        queue.append(arrival)
        if len(queue) == 1:
            self._start(arrival, arrival.connection)

    def _start(self, arrival: Arrival, connection: int) -> None:
        row = self._rows[arrival.number]
        row.sent_s = self._event_queue.now.now_s
        row.failure = OTHER  # remains if the run ends first, as in live
        self._event_queue.after_network_delay(self._dispatch, RequestArrived(self._read(arrival, connection)))
        self._event_queue.limit(arrival.patience_s, self._give_up, row)
        self._connection_of[arrival.number] = connection

    def _give_up(self, row: ClientRow) -> None:
        row.failure, row.end_s = Failure.TIMEOUT, self._event_queue.now.now_s
        self._finish(row)
        self._event_queue.after_network_delay(self._dispatch, ClientGone(row.number))

    def _finish(self, row: ClientRow) -> None:
        row.done = True
        self.open -= 1
        connection = self._connection_of.pop(row.number)
        user = self._user_of.pop(row.number, None)
        if user is not None:
            self._schedule_user(user, self._event_queue.now.now_s, answer_failed(row.failure, row.status))
        queue = self._queues.get(connection)
        if queue is None:
            if not self._arrivals[row.number].fresh:
                self._idle_connections.append(connection)
            return
        queue.popleft()
        if queue:
            self._start(queue[0], connection)
