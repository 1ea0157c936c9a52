"""Small blocking HTTP calls on loopback, without retries and without the environment's proxies."""

from __future__ import annotations

import http.client
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status, headers (lower-case names) and body of an answer."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def call(
    method: str,
    url: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
) -> HttpResponse:
    """Send a request on a new connection. OSError (refused, reset, timeout) or http.client.HTTPException on failure."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, path, body=body or None, headers=dict(headers or {}))
        response = connection.getresponse()
        return HttpResponse(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        )
    finally:
        connection.close()


def accepts(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether a connection is accepted. It is reset at once, so that it leaves no TIME_WAIT entry."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        return False
    return True
