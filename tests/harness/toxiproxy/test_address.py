"""Addresses: parsing and resolution; unspecified addresses mean loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest

from harness.toxiproxy.address import ListenError, bound_address, listen_on, resolve_listen, split_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a:1", ("a", "1")), (":0", ("", "0")), ("[::1]:80", ("::1", "80")), ("h:", ("h", ""))],
)
def test_splitting(text: str, parts: tuple[str, str]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["nonsense", "", "::1:80"])
def test_invalid_addresses_are_not_split(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        split_address(text)


@pytest.mark.parametrize("text", ["", ":0", "0.0.0.0:0", "[::]:0", "localhost:0", "127.0.0.1:0"])
def test_every_interface_means_loopback(text: str) -> None:
    assert asyncio.run(resolve_listen(text)) == "127.0.0.1:0"


def test_a_particular_address_is_kept() -> None:
    assert asyncio.run(resolve_listen("[::1]:080")) == "[::1]:80"
    assert asyncio.run(resolve_listen("10.1.2.3:80")) == "10.1.2.3:80"


@pytest.mark.parametrize("text", ["nonsense", "127.0.0.1:99999", "127.0.0.1:abc", "127.0.0.1:-1", "127.0.0.1:٣"])
def test_invalid_listen_addresses_are_refused(text: str) -> None:
    with pytest.raises(ListenError):
        asyncio.run(resolve_listen(text))


def test_a_taken_address_gives_toxiproxys_error_text() -> None:
    with listen_on("127.0.0.1:0") as first:
        taken = bound_address(first)
        with pytest.raises(ListenError, match=f"^listen tcp {taken}: bind: address already in use$"):
            listen_on(taken)


def test_a_listener_does_not_block() -> None:
    with listen_on("127.0.0.1:0") as listener:
        assert isinstance(listener, socket.socket)
        with pytest.raises(BlockingIOError):
            listener.accept()
