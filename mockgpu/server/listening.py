"""What every listener of this package shares: the HTTP server around a handler, ports, tokens, small answers."""

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
    """A port that can't be listened on; the text is one line that says what to do."""


class _Connection(web.RequestHandler):
    """A connection on which errors are answered in JSON.

    What is no HTTP/1.1 is answered 400 without a word in the log. It is no fault of ours: routers try HTTP/2 on every
    backend to see whether it speaks gRPC. Whatever else comes out of the handler is logged and answered 500.
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
            text = f"this is no HTTP/1.1 request: {first}".encode(errors="replace").decode()
            response = json_response(status, wire.error(text, "invalid_request_error", "bad_request"))
        else:
            _logger.error("%s %s failed", request.method, request.path, exc_info=exc)
            response = json_response(500, wire.error("internal error of the mock", "internal_error", "internal"))
        response.force_close()
        return response


class _Server(web.Server):
    """A server of such connections."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


def http_server(handler: Callable[[BaseRequest], Awaitable[web.StreamResponse]]) -> web.ServerRunner:
    """A runner for a plain handler: cancels it when the client leaves, and closes no idle connection itself."""
    server = _Server(
        handler,
        handler_cancellation=True,
        keepalive_timeout=3600.0,
        access_log=None,
        auto_decompress=False,  # see must_be_plain
    )
    # Those still inside are cancelled, not waited for.
    return web.ServerRunner(server, shutdown_timeout=0.01)


async def listen(runner: web.ServerRunner, host: str, port: int) -> int:
    """Listen, and return the port (which port 0 leaves to the system); raises PortError."""
    try:
        site = web.TCPSite(runner, host, port, reuse_address=True, backlog=1024)
        await site.start()
    except socket.gaierror as error:
        raise PortError(f"host {host} is not known here ({error.strerror}); choose another host") from None
    except (OSError, OverflowError) as error:
        # Newer Pythons pass over addresses of other machines, and say in the end that none was left, without a number.
        if isinstance(error, OSError) and error.errno in (errno.EADDRNOTAVAIL, None):
            raise PortError(f"host {host} is no address of this machine; choose another host") from None
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            problem = "is taken; stop what listens there or choose another port"
        else:
            problem = f"can't be listened on ({error}); choose another port"
        raise PortError(f"port {port} on {host} {problem}") from None
    return int(runner.addresses[0][1])


def is_loopback(host: str) -> bool:
    """Whether an address, or localhost, is reached from this machine alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def objection(request: BaseRequest, token: str) -> str:
    """Why a control call is not to be obeyed, "" if it is: it must bear the token or, without one, be of this machine.

    A server may listen for other machines, but who can reach it must not thereby be able to reset it or set faults.
    """
    if not token and not is_loopback(request.remote or ""):
        return f"control calls from {request.remote} need a token, which the server was not given: see --token"
    return "" if _bears(request, token) else "x-mock-token is missing or wrong"


def _bears(request: BaseRequest, token: str) -> bool:
    """Whether a control request bears the token, where there is one."""
    given = request.headers.get("x-mock-token", "")
    return not token or hmac.compare_digest(given.encode(errors="replace"), token.encode())


def must_be_plain(headers: Mapping[str, str]) -> None:
    """Refuse a body with any ``Content-Encoding`` but identity, as servers of models do: BadRequestError with 415."""
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        seen = f"Content-Encoding is {wire.shown(encoding)}"
        raise wire.BadRequestError(f"{seen}, expected identity: send the body as it is", "Content-Encoding", status=415)


def json_response(status: int, body: bytes) -> web.Response:
    """A response of JSON text."""
    return web.Response(status=status, body=body, content_type="application/json")


def read_nonce(body: bytes) -> int:
    """The nonce of a reset; raises BadRequestError."""
    nonce = wire.read_json(body).get("nonce")
    if type(nonce) is not int or not 0 <= nonce < NONCE_LIMIT:
        raise wire.BadRequestError(f"nonce is {wire.shown(nonce)}, expected a whole number from 0 below 2^31", "nonce")
    return nonce
