"""Shared parts of this package's listeners: the HTTP server, ports, authorization of control requests, responses."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_request import BaseRequest

from mockgpu.api import wire
from mockgpu.api.tags import NONCE_LIMIT

_logger = logging.getLogger(__name__)


class PortError(OSError):
    """The address cannot be bound; the text is one line with a remedy."""


class _Connection(web.RequestHandler):
    """A connection with JSON error responses.

    Input that is not HTTP/1.1 is answered 400 and not logged, because routers try HTTP/2 on every backend to detect
    gRPC. Any exception of the handler is logged and answered 500.
    """

    __slots__ = ()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError):
            first = (message or str(exc)).strip().partition("\n")[0]
            text = f"not an HTTP/1.1 request: {first}".encode(errors="replace").decode()
            response = json_response(status, wire.error(text, "invalid_request_error", "bad_request"))
        else:
            _logger.error("%s %s failed", request.method, request.path, exc_info=exc)
            response = json_response(500, wire.error("internal error of the mock", "internal_error", "internal"))
        response.force_close()
        return response


class _Server(web.Server):
    """A server with ``_Connection`` as its protocol."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


def http_server(handler: Callable[[BaseRequest], Awaitable[web.StreamResponse]]) -> web.ServerRunner:
    """A runner for ``handler``: cancels it when the client leaves; keeps idle connections open for an hour."""
    server = _Server(
        handler,
        handler_cancellation=True,
        keepalive_timeout=3600.0,
        access_log=None,
        auto_decompress=False,  # see require_identity_encoding
    )
    # Requests in flight at shutdown are cancelled, not awaited.
    return web.ServerRunner(server, shutdown_timeout=0.01)


async def listen(runner: web.ServerRunner, host: str, port: int) -> int:
    """Listen and return the port (chosen by the system for port 0); raises PortError."""
    try:
        site = web.TCPSite(runner, host, port, reuse_address=True, backlog=1024)
        await site.start()
    except socket.gaierror as error:
        raise PortError(f"host {host} is not known here ({error.strerror}); choose another host") from None
    except (OSError, OverflowError) as error:
        # Newer Python versions skip addresses of other machines and then raise an error without errno.
        if isinstance(error, OSError) and error.errno in (errno.EADDRNOTAVAIL, None):
            raise PortError(f"host {host} is not an address of this machine; choose another host") from None
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            problem = "is taken; stop its listener or choose another port"
        else:
            problem = f"can't be listened on ({error}); choose another port"
        raise PortError(f"port {port} on {host} {problem}") from None
    return int(runner.addresses[0][1])


def is_loopback(host: str) -> bool:
    """Whether an address, or localhost, is reachable from this machine only."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def control_refusal(request: BaseRequest, token: str) -> str:
    """Why a control request is refused, or "": it needs the token or, if there is none, a client on this machine.

    A server may listen for other machines without letting them reset it or set faults.
    """
    if not token and not is_loopback(request.remote or ""):
        return f"control requests from {request.remote} need a token, and this server has none: see --token"
    return "" if _has_token(request, token) else "x-mock-token is missing or wrong"


def _has_token(request: BaseRequest, token: str) -> bool:
    """Whether a control request has the token, or none is required."""
    given = request.headers.get("x-mock-token", "")
    return not token or hmac.compare_digest(given.encode(errors="replace"), token.encode())


def require_identity_encoding(headers: Mapping[str, str]) -> None:
    """Refuse a body with another ``Content-Encoding`` than identity, as model servers do: BadRequestError with 415."""
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        problem = f"Content-Encoding is {wire.shown(encoding)}, expected identity: send the body unencoded"
        raise wire.BadRequestError(problem, "Content-Encoding", status=415)


def json_response(status: int, body: bytes) -> web.Response:
    """A JSON response."""
    return web.Response(status=status, body=body, content_type="application/json")


def read_nonce(body: bytes) -> int:
    """The nonce of a reset; raises BadRequestError."""
    nonce = wire.read_json(body).get("nonce")
    if type(nonce) is not int or not 0 <= nonce < NONCE_LIMIT:
        raise wire.BadRequestError(f"nonce is {wire.shown(nonce)}, expected a whole number from 0 below 2^31", "nonce")
    return nonce
