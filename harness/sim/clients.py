"""The clients of a simulated run: they send at their intended times, wait, give up, and note what they got."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from harness.claims.features import Claims
from harness.gateway.parse_request import described
from harness.gateway.protocol import ClientGone, Event, Request, RequestArrived
from harness.load.wire import request_of
from harness.scenario.arrivals import Arrival
from harness.scenario.closed_loop import VirtualUser, VirtualUsers, answer_failed
from harness.scenario.model import Echo, Failure, HarnessError
from harness.sim.event_queue import EventQueue
from harness.sim.evidence import ClientRow

OTHER = Failure.OTHER  # looked up once, as it is needed for every request

NONCE = 1
"""Marks the requests of every simulated run alike: they cannot meet those of another."""

Answer = tuple[int, int, int, Echo, Failure]
"""Number of the request, status, number of the backend (-1: the balancer itself), whose echo, and what went wrong."""


def as_live_sees_it(arrival: Arrival, connection: int, key_carrier: str, claims: Claims, seed: int) -> Request:
    """The request that the live shell would read from the bytes of this arrival. HarnessError if it has no such form.

    `key_carrier` is where the load puts the key, the one in `claims` where the balancer looks for it.
    """
    try:
        wire = request_of(arrival, key_carrier, seed, NONCE, claims.protocol)
    except ValueError as error:
        raise HarnessError(str(error)) from None
    return described(
        number=arrival.number,
        connection=connection,
        method=wire.method,
        path=wire.path,
        headers=dict(wire.headers),
        body=wire.body,
        key_carrier=claims.key_carrier,
    )


class Reader:
    """Requests as the live shell would read them; what differs in number and connection alone is read once."""

    def __init__(self, key_carrier: str, claims: Claims, seed: int) -> None:
        self._key_carrier = key_carrier
        self._claims = claims
        self._seed = seed
        self._read: dict[tuple[int | str, ...], Request] = {}

    def __call__(self, arrival: Arrival, connection: int) -> Request:
        """The request of `arrival` on this connection. HarnessError if it has no form on the wire."""
        alike = (
            arrival.stream,
            arrival.method,
            arrival.key,
            arrival.kind,
            arrival.urgency,
            arrival.session,
            arrival.prompt_tokens,
            arrival.payload_bytes,
        )
        known = self._read.get(alike)
        if known is None:
            known = as_live_sees_it(arrival, connection, self._key_carrier, self._claims, self._seed)
            self._read[alike] = known
        return Request(
            arrival.number,
            connection,
            known.kind,
            known.method,
            known.model,
            known.session,
            known.urgency,
            known.prompt_tokens,
            known.payload_bytes,
            known.key,
        )


class Clients:
    """All clients. `open` counts the requests without an end; `rows` are theirs, by number.

    `see` makes the request that the gateway is told of, from an arrival and the number of its connection. `arrivals`
    and `rows` grow by what the chats of `crowd` ask.
    """

    def __init__(
        self,
        event_queue: EventQueue,
        arrivals: list[Arrival],
        crowd: VirtualUsers,
        rows: list[ClientRow],
        streams: int,
        see: Callable[[Arrival, int], Request],
        tell: Callable[[Event], None],
    ) -> None:
        self.open = len(arrivals)
        self._event_queue = event_queue
        self._arrivals = arrivals
        self._rows = rows
        self._see = see
        self._tell = tell
        self._idle_connections: list[int] = []
        self._connections = streams  # those below belong to streams with a single one
        self._queues: dict[int, deque[Arrival]] = {}
        self._connection_of: dict[int, int] = {}
        self._coming = iter(tuple(arrivals))
        self._crowd = crowd
        self._chat_of: dict[int, VirtualUser] = {}

    def begin(self) -> None:
        """Put the first request on the event queue, which each is followed by the next, and the first of every chat."""
        self._next()
        for chat in self._crowd.users:
            self._think(chat, chat.start_s)

    def _next(self) -> None:
        arrival = next(self._coming, None)
        if arrival is not None:
            self._event_queue.before(arrival.at_s, self._due, arrival)

    def answered(self, answer: Answer) -> None:
        """An answer is here, whole or (TRUNCATED) broken off."""
        number, status, backend, echo, failure = answer
        row = self._rows[number]
        if row.done:
            return
        row.status, row.answered_by, row.echo, row.failure = status, backend, echo, failure
        row.first_byte_s = row.end_s = self._event_queue.now.now_s
        self._done(row)

    def _due(self, arrival: Arrival) -> None:
        self._next()
        self._send(arrival)

    def _think(self, chat: VirtualUser, free_s: float, failed: bool = False) -> None:
        due_s = chat.due_s(free_s, failed)
        if due_s is not None:
            self._event_queue.at(due_s, self._ask, chat)

    def _ask(self, chat: VirtualUser) -> None:
        arrival = chat.next_request(self._event_queue.now.now_s)
        self._arrivals.append(arrival)
        self._rows.append(ClientRow(arrival.number))
        self._chat_of[arrival.number] = chat
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
        row.failure = OTHER  # stays so if the run ends first, as in live
        self._event_queue.after_network_delay(self._tell, RequestArrived(self._see(arrival, connection)))
        self._event_queue.limit(arrival.patience_s, self._give_up, row)
        self._connection_of[arrival.number] = connection

    def _give_up(self, row: ClientRow) -> None:
        row.failure, row.end_s = Failure.TIMEOUT, self._event_queue.now.now_s
        self._done(row)
        self._event_queue.after_network_delay(self._tell, ClientGone(row.number))

    def _done(self, row: ClientRow) -> None:
        row.done = True
        self.open -= 1
        connection = self._connection_of.pop(row.number)
        chat = self._chat_of.pop(row.number, None)
        if chat is not None:
            self._think(chat, self._event_queue.now.now_s, answer_failed(row.failure, row.status))
        queue = self._queues.get(connection)
        if queue is None:
            if not self._arrivals[row.number].fresh:
                self._idle_connections.append(connection)
            return
        queue.popleft()
        if queue:
            self._start(queue[0], connection)
