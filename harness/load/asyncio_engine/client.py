"""One exchange over aiohttp: send a request once, read the answer, record how it ended.

The client never repeats a request: aiohttp would resend an idempotent one on a dropped pooled connection, and the
second attempt would be recorded. It follows no redirect and keeps no cookie.

Records differ from those of Locust's client, because aiohttp parses the answer: `first_byte_s` is the time of the
complete head, an answer that ends within its head is CLOSED (or STALE_CONNECTION) instead of TRUNCATED, bytes after
the end of an answer close the connection silently, and an interrupted answer counts as empty.
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

from harness.load.results.answer import ATTEMPT_HEADERS, ExchangeResult, attempts_in
from harness.load.wire import WireRequest
from harness.scenario.model import Failure

ADDED_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
"""Headers that aiohttp would add by itself."""


class _Resolved(AbstractResolver):
    """Resolves to the addresses found before the run."""

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return self._addresses

    async def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """Target of requests: `base` is the beginning of every URL, without a trailing slash."""

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
        """A client with its own pool of at most `limit` connections; 0 for no limit."""
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(_connecting)
        tracing.on_connection_reuseconn.append(_reusing)
        # Keep connections as long as the peer does, as with Locust; aiohttp's 15 s would open new ones.
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
        # No public option disables its retries; a test counts attempts at a backend that drops connections.
        client._retry_connection = False
        return client

    async def exchange(
        self, client: aiohttp.ClientSession, request: WireRequest, answer: ExchangeResult, timeout_s: float
    ) -> None:
        """Send `request` exactly once, within `timeout_s`, and fill in `answer` except its end, on failure too."""
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
                attempts = (attempts_in(_only(response, name)) for name in ATTEMPT_HEADERS)
                answer.attempts = next(filter(None, attempts), 0)
                answer.body = await response.read()
            answer.failure = Failure.NONE
        except TimeoutError:
            answer.failure = Failure.TIMEOUT
        except (aiohttp.ClientError, OSError) as error:
            answer.failure = _failure_of(error, answer)


def _only(response: aiohttp.ClientResponse, name: str) -> str:
    """The value of a header; empty if it is missing or repeated."""
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
