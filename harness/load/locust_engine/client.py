"""One exchange over a socket: send a request once, read the answer, record how it ended.

Own sockets, geventhttpclient's parser. FastHttpUser and geventhttpclient's HTTPClient are not used, because they hide
evidence: HTTPClient.request resends idempotent methods after a bare close (up to pool size + 2 times), its answers
hide a missing end of the body, and its pool does not show whether a connection was reused.
"""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

import gevent
import gevent.socket
from geventhttpclient.response import HTTPParseError, HTTPResponse

from harness.load.results.answer import ATTEMPT_HEADERS, ExchangeResult, attempts_in
from harness.scenario.model import Failure

_BLOCK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Destination:
    """Target of requests, resolved once: `addresses` are (family, socket address) pairs to try in turn."""

    authority: str
    base_path: str
    addresses: tuple[tuple[int, tuple[str | int, ...]], ...]

    @staticmethod
    def of(url: str) -> Destination:
        """The site of `http://HOST:PORT[/PATH]`. ValueError for anything else, OSError if HOST is unknown."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"url {url!r}: expected http://HOST:PORT")
        port = parts.port or 80
        found = gevent.socket.getaddrinfo(parts.hostname, port, 0, socket.SOCK_STREAM)
        return Destination(
            authority=parts.netloc,
            base_path=parts.path.rstrip("/"),
            addresses=tuple((family, address) for family, _, _, _, address in found),
        )


class Pool:
    """Idle connections to one target, newest first; without a cap.

    A cap would make late requests wait for early answers and so turn an open loop into a closed one.
    """

    def __init__(self, site: Destination) -> None:
        self.site = site
        self._idle: list[gevent.socket.socket] = []

    def exchange(self, request: bytes, answer: ExchangeResult, timeout_s: float, keep: bool) -> None:
        """Send `request` exactly once and fill in `answer`, on failure too.

        `keep`: use an idle connection if there is one, and keep it afterwards; else open a new one and close it
        afterwards. The whole exchange, connect included, may take `timeout_s` from its `sent_s`.
        """
        connection = self._take() if keep else None
        message = _Message()
        answer.reused = connection is not None
        answer.sent_s = monotonic()
        timer = gevent.Timeout.start_new(timeout_s)
        try:
            if connection is None:
                connection = self._connect()
            _send_and_read(connection, request, message, answer)
            answer.failure = Failure.NONE
        except gevent.Timeout as fired:
            if fired is not timer:
                raise
            answer.failure = Failure.TIMEOUT
        except OSError as error:
            answer.failure = _failure_of(error, connection is not None, answer)
        except HTTPParseError:
            answer.failure = Failure.OTHER
        finally:
            timer.close()
            answer.end_s = monotonic()
            message.fill(answer)
            if connection is not None:
                if keep and answer.failure is Failure.NONE and not message.should_close():
                    self._idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> gevent.socket.socket | None:
        while self._idle:
            connection = self._idle.pop()
            if _still_open(connection):
                return connection
            connection.close()
        return None

    def _connect(self) -> gevent.socket.socket:
        failed: OSError | None = None
        for family, address in self.site.addresses:
            connection = gevent.socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.connect(address)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                connection.close()
                failed = error
            except BaseException:  # timeout or end of the job
                connection.close()
                raise
            else:
                return connection
        raise failed or OSError(f"no address for {self.site.authority}")


class _BareCloseError(ConnectionError):
    """The peer closed before the answer was complete."""


class _Message(HTTPResponse):
    """Parser of one answer. `status` is 0 until its head is complete; interim answers (1xx) are skipped."""

    status = 0

    def _on_message_begin(self) -> None:
        if self.answered:
            raise HTTPParseError("bytes after the end of the answer")
        super()._on_message_begin()

    def _on_headers_complete(self) -> int | bool | None:
        result = super()._on_headers_complete()
        if self.get_code() >= 200:
            self.status = self.get_code()
        return result

    @property
    def answered(self) -> bool:
        return self.status > 0 and self.message_complete

    def fill(self, answer: ExchangeResult) -> None:
        """Copy the parsed message into `answer`. A repeated header counts as missing."""
        answer.status = self.status
        answer.body = bytes(self._body_buffer)
        backend = self.get("x-backend-id")
        answer.backend = backend if isinstance(backend, str) else ""
        answer.attempts = next(filter(None, (attempts_in(self.get(name)) for name in ATTEMPT_HEADERS)), 0)

    def peer_closed(self) -> None:
        """Accept the close as the end of a body without a length; else raise _BareCloseError."""
        try:
            self.feed(b"")
        except HTTPParseError:
            raise _BareCloseError from None
        if not self.answered:
            raise _BareCloseError


def _send_and_read(connection: gevent.socket.socket, request: bytes, message: _Message, answer: ExchangeResult) -> None:
    broken: OSError | None = None
    try:
        connection.sendall(request)
    except (BrokenPipeError, ConnectionResetError) as error:
        broken = error  # the peer may have answered before it closed, so read anyway
    while not message.answered:
        block = connection.recv(_BLOCK_BYTES)
        if block:
            if math.isnan(answer.first_byte_s):
                answer.first_byte_s = monotonic()
            message.feed(block)
        elif broken is not None and math.isnan(answer.first_byte_s):
            raise broken
        else:
            message.peer_closed()


def _failure_of(error: OSError, connected: bool, answer: ExchangeResult) -> Failure:
    if not connected and isinstance(error, ConnectionRefusedError):
        return Failure.REFUSED
    if not isinstance(error, ConnectionError):
        return Failure.OTHER
    if not math.isnan(answer.first_byte_s):
        return Failure.TRUNCATED
    if answer.reused:
        return Failure.STALE_CONNECTION
    return Failure.RESET if isinstance(error, ConnectionResetError) else Failure.CLOSED


def _still_open(connection: gevent.socket.socket) -> bool:
    """Whether an idle connection has neither end of file nor unexpected bytes pending; does not block."""
    connection.settimeout(0.0)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(None)
    return False
