"""Addresses as Toxiproxy writes them: `host:port`, `[v6]:port`, `:port`."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

LOOPBACK = "127.0.0.1"


class ListenError(Exception):
    """Listening on an address failed; the text is that of Toxiproxy's 500, as far as known."""


def split_address(text: str) -> tuple[str, str]:
    """Split `host:port` into host (without brackets, may be empty) and port.

    Raises:
        ValueError: no port, or a bare IPv6 address.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"address {text}: missing port in address")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    if ":" in host:
        raise ValueError(f"address {text}: too many colons in address")
    return host, port


def join_address(host: str, port: int) -> str:
    """Join host and port; the inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve_listen(text: str) -> str:
    """The numeric form of an address to listen on, so that two spellings of one address compare equal.

    An empty host, `0.0.0.0` and `::` mean 127.0.0.1 here: the fault proxy never listens beyond loopback unless
    a particular address is named. (Toxiproxy binds all interfaces.) Of several addresses the first IPv4 one is used.

    Raises:
        ListenError: unknown host, or an invalid port.
    """
    try:
        host, port_text = split_address(text or f"{LOOPBACK}:0")
    except ValueError as error:
        raise ListenError(str(error)) from None
    if not (port_text.isascii() and port_text.isdigit()) and port_text:
        raise ListenError(f"lookup tcp/{port_text}: unknown port")
    port = int(port_text or "0")
    if port > 65535:
        raise ListenError(f"address {port_text}: invalid port")
    return join_address(await _resolve_host(host), port)


async def _resolve_host(host: str) -> str:
    if host in ("", "localhost"):
        return LOOPBACK
    try:
        address = ipaddress.ip_address(host)
        return LOOPBACK if address.is_unspecified else str(address)
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ListenError(f"lookup {host}: no such host") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def listen_on(address: str) -> socket.socket:
    """A non-blocking listening socket on a resolved address.

    Raises:
        ListenError: the address is in use, or does not belong to this machine.
    """
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, int(port)))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ListenError(f"listen tcp {address}: bind: {reason[:1].lower()}{reason[1:]}") from None
    return listener


def bound_address(listener: socket.socket) -> str:
    """The address of a listening socket, with the port that the system chose for 0."""
    host, port = listener.getsockname()[:2]
    return join_address(host, port)
