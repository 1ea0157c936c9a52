"""One exchange over aiohttp: send a request once, read the answer, say how it ended.

The client never repeats a request: aiohttp would send an idempotent one again when a pooled connection turns out to be
dropped, and what is recorded then would be the second attempt's. It follows no redirect and keeps no cookie.

Where the records differ from Locust's (`client`), because aiohttp's parser stands between the socket and us:
`first_byte_s` is when the head was complete, an answer that ends within its head is CLOSED (or STALE_CONNECTION)
instead of TRUNCATED, bytes after the end of an answer close the connection without a word, and of an answer that was
cut off no bytes are kept, so that it counts as empty.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from harness.load.results.answer import ATTEMPT_HEADERS, ExchangeResult, attempts_told
from harness.load.wire import WireRequest
from harness.scenario.model import Failure

ADDED_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
"""What aiohttp would add by itself."""


class _Resolved(AbstractResolver):
    """Gives the addresses that were found before the run."""

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return self._addresses

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """Where requests go: `base` is the beginning of every URL, without a slash at its end."""

    base: str
    addresses: list[ResolveResult]

    @staticmethod
    def of(url: str) -> BaseUrl:
        """The site of `http://HOST:PORT[/PATH]`. ValueError for anything else, OSError if HOST is unknown."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"url {url!r}: expected http://HOST:PORT")
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, 0, socket.SOCK_STREAM)
        addresses = [
            ResolveResult(
                hostname=parts.hostname, host=str(address[0]), port=int(address[1]), family=family, proto=proto,
                flags=socket.AI_NUMERICHOST,
            )
            for family, _, proto, _, address in found
        ]  # fmt: skip
        return BaseUrl(f"http://{parts.netloc}{parts.path.rstrip('/')}", addresses)

    def session(self, limit: int = 0, force_close: bool = False) -> aiohttp.ClientSession:
        """A client with a pool of its own, of at most `limit` connections; 0 for any number."""
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(_connecting)
        tracing.on_connection_reuseconn.append(_reusing)
        # A kept connection is kept as long as the peer keeps it, as Locust's are; aiohttp's 15 s would open new ones.
        keeping: dict[str, Any] = {"force_close": True} if force_close else {"keepalive_timeout": 3600}
        client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, resolver=_Resolved(self.addresses), **keeping),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
            skip_auto_headers=ADDED_HEADERS,
            headers={"user-agent": "steelyard"},
            trace_configs=[tracing],
        )
        # There is no public switch for its repeats; a test counts attempts at a backend that drops connections.
        client._retry_connection = False
        return client

    async def exchange(
        self, client: aiohttp.ClientSession, request: WireRequest, answer: ExchangeResult, timeout_s: float
    ) -> None:
        """Send `request` exactly once and fill in `answer`, except its end, whatever happens; at most `timeout_s`."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                client.request(
                    request.method,
                    self.base + request.path,
                    headers=request.headers,
                    data=request.body if request.method == "POST" else None,
                    allow_redirects=False,
                    trace_request_ctx=answer,
                ) as response,
            ):
                answer.first_byte_s = monotonic()
                answer.status = response.status
                answer.backend = _only(response, "x-backend-id")
                told = (attempts_told(_only(response, name)) for name in ATTEMPT_HEADERS)
                answer.attempts = next(filter(None, told), 0)
                answer.body = await response.read()
            answer.failure = Failure.NONE
        except TimeoutError:
            answer.failure = Failure.TIMEOUT
        except (aiohttp.ClientError, OSError) as error:
            answer.failure = _failure_of(error, answer)


def _only(response: aiohttp.ClientResponse, name: str) -> str:
    """The value of a header; empty if it is missing or there several times."""
    values = response.headers.getall(name, ())
    return values[0] if len(values) == 1 else ""


async def _connecting(_: aiohttp.ClientSession, context: Any, __: aiohttp.TraceConnectionCreateStartParams) -> None:
    context.trace_request_ctx.sent_s = monotonic()


async def _reusing(_: aiohttp.ClientSession, context: Any, __: aiohttp.TraceConnectionReuseconnParams) -> None:
    context.trace_request_ctx.sent_s = monotonic()
    context.trace_request_ctx.reused = True


def _failure_of(error: Exception, answer: ExchangeResult) -> Failure:
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure.REFUSED if isinstance(error.os_error, ConnectionRefusedError) else Failure.OTHER
    dropped = isinstance(error, ConnectionError | aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    if not dropped and not isinstance(error, aiohttp.ClientPayloadError):
        return Failure.OTHER
    if answer.status:
        return Failure.TRUNCATED
    if answer.reused:
        return Failure.STALE_CONNECTION
    return Failure.CLOSED if isinstance(error, aiohttp.ServerDisconnectedError) else Failure.RESET
