"""The list of backends: parsing of addresses, and the state that each edit keeps or drops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.proxy.upstreams import BackendAddress, Upstreams, address_from_json, address_from_text


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("http://127.0.0.1:9001", BackendAddress("127.0.0.1:9001", "127.0.0.1", 9001)),
        ("http://localhost:9001/", BackendAddress("localhost:9001", "localhost", 9001)),
        ("gpu-0=http://127.0.0.1:9001", BackendAddress("gpu-0", "127.0.0.1", 9001)),
        ("http://127.0.0.1:9001#weight=2.5", BackendAddress("127.0.0.1:9001", "127.0.0.1", 9001, 2.5)),
        ("a=http://h:1#weight=0", BackendAddress("a", "h", 1, 0)),
        ("http://[::1]:9001", BackendAddress("[::1]:9001", "::1", 9001)),
    ],
)
def test_a_backend_in_one_word(text: str, backend: BackendAddress) -> None:
    assert address_from_text(text) == backend


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begin with http://"),
        ("127.0.0.1:9001", "begin with http://"),
        ("https://h:1", "scheme https is not supported"),
        ("http://h", "with a host and a port"),
        ("http://:9001", "with a host and a port"),
        ("http://me@h:1", "with a host and a port"),
        ("http://h:70000", "Port out of range"),
        ("http://h:0", "port 0 of backend: expected 1 to 65535"),
        ("http://h:1/v1", "without a path"),
        ("http://h:1?a=b", "without a path"),
        ("http://h:1#weight=heavy", "#weight=heavy: expected a number"),
        ("http://h:1#weight=-1", "weight -1.0 of h:1: expected from 0 to 100"),
        ("http://h:1#weight=nan", "weight nan of h:1"),
        ("http://h:1#wieght=1", "unknown #wieght="),
        ("a b=http://h:1", "id 'a b'"),
        ("=http://h:1", "id ''"),
    ],
)
def test_nonsense_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        address_from_text(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "item",
    [
        {"id": "a", "host": "h", "port": 1, "weight": 1},
        {"url": "http://h:1", "id": "a"},
        {"url": "http://h:1#weight=7", "id": "a", "weight": 1},
    ],
)
def test_a_backend_as_json(item: dict[str, Any]) -> None:
    assert address_from_json(item) == BackendAddress("a", "h", 1, 1)


@pytest.mark.parametrize(
    "item",
    [
        {}, [], 7, {"id": "a", "host": "h", "port": 1},
        {"url": 7}, {"url": "http://h:1", "wieght": 2}, {"url": "http://h:1", "id": 7},
        {"id": "a", "host": "h", "port": "1", "weight": 1}, {"id": "a", "host": "h", "port": True, "weight": 1},
        {"id": "a", "host": "h/x", "port": 1, "weight": 1}, {"id": "a", "host": "h", "port": 1, "weight": "1"},
        {"id": "a", "host": "h", "port": 1, "weight": True}, {"id": "a", "host": "h", "port": 1, "weight": 1, "x": 1},
    ],
)  # fmt: skip
def test_json_of_another_form_is_refused(item: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        address_from_json(item)


def test_one_that_drains_as_json() -> None:
    drains = BackendAddress("a", "h", 1, 1, draining=True)
    assert address_from_json({"id": "a", "host": "h", "port": 1, "weight": 1, "draining": True}) == drains
    assert address_from_json({"id": "a", "url": "http://h:1", "draining": True}) == drains
    with pytest.raises(ValueError, match=r"^draining 1 of a: expected true or false$"):
        address_from_json({"id": "a", "url": "http://h:1", "draining": 1})


Case = Callable[[Upstreams], Awaitable[None]]


def in_a_loop(case: Case) -> None:
    """Run a case on a new list."""

    async def run() -> None:
        upstreams = Upstreams()
        try:
            await case(upstreams)
        finally:
            await upstreams.close()

    asyncio.run(run())


A, B, C = (BackendAddress(name, "h", port) for port, name in enumerate("abc", start=1))


def test_the_list_says_who_drains() -> None:
    async def case(upstreams: Upstreams) -> None:
        drains = replace(A, draining=True)
        upstreams.replace([A, replace(B, draining=True)])
        assert [backend.id for backend in upstreams.members()] == ["a"]
        a = upstreams.get("a")
        upstreams.replace([drains, B])
        assert upstreams.get("a") is a, "it stays, with what is in flight there"
        assert [backend.id for backend in upstreams.members()] == ["b"]
        upstreams.replace([A, B])
        assert [backend.id for backend in upstreams.members()] == ["a", "b"]

    in_a_loop(case)


def test_the_list_keeps_who_stays() -> None:
    async def case(upstreams: Upstreams) -> None:
        assert upstreams.replace([A, B]) == frozenset()
        a = upstreams.get("a")
        assert a is not None
        upstreams.sent(a)
        assert upstreams.replace([C, BackendAddress("a", "h", 1, weight=3)]) == frozenset()
        assert upstreams.get("a") is a and a.in_flight == 1 and a.backend.weight == 3
        assert [backend.id for backend in upstreams.members()] == ["c", "a"]
        assert [backend.weight for backend in upstreams.members()] == [1, 3]
        assert upstreams.remembered == 2

    in_a_loop(case)


def test_another_address_is_another_stay() -> None:
    async def case(upstreams: Upstreams) -> None:
        upstreams.replace([A, B])
        old = upstreams.get("a")
        assert old is not None
        upstreams.sent(old)
        assert upstreams.replace([BackendAddress("a", "elsewhere", 1), B]) == {"a"}
        new = upstreams.get("a")
        assert new is not None and new is not old and new.picks == 0
        assert upstreams.remembered == 3
        upstreams.ended(old, "2xx")
        assert upstreams.remembered == 2

    in_a_loop(case)


def test_nothing_changes_for_a_list_with_an_id_twice() -> None:
    async def case(upstreams: Upstreams) -> None:
        upstreams.replace([A])
        with pytest.raises(ValueError, match="id 'b' occurs twice"):
            upstreams.replace([B, B])
        with pytest.raises(ValueError, match="backend 'a' is already listed"):
            upstreams.join(A)
        assert [item.backend for item in upstreams.listed] == [A]

    in_a_loop(case)


def test_who_drains_is_listed_and_no_member() -> None:
    async def case(upstreams: Upstreams) -> None:
        upstreams.replace([A, B])
        a = upstreams.get("a")
        assert a is not None
        a.draining = True
        assert [backend.id for backend in upstreams.members()] == ["b"]
        assert len(upstreams.listed) == 2
        upstreams.replace([A, B])
        assert len(upstreams.members()) == 2

    in_a_loop(case)


def test_a_client_is_closed_with_the_last_stay_at_its_address() -> None:
    async def case(upstreams: Upstreams) -> None:
        one, two = upstreams.join(A), upstreams.join(BackendAddress("twin", A.host, A.port))
        assert one.client is two.client
        upstreams.leave("a")
        assert upstreams.remembered == 1 and not one.client.closed
        two.checks += 1
        upstreams.sent(two)
        upstreams.leave("twin")
        assert upstreams.get("twin") is None and upstreams.remembered == 1
        upstreams.ended(two, "2xx")
        assert upstreams.remembered == 1, "its health check is still out"
        upstreams.checked(two)
        assert upstreams.remembered == 0
        await upstreams.close()
        assert one.client.closed

    in_a_loop(case)


def test_idle_is_told_to_who_waits() -> None:
    async def case(upstreams: Upstreams) -> None:
        a = upstreams.join(A)
        assert a.idle.is_set()
        upstreams.sent(a)
        upstreams.sent(a)
        upstreams.ended(a, "2xx")
        assert not a.idle.is_set()
        upstreams.ended(a, "reset")
        assert a.idle.is_set()
        assert a.outcomes == {"2xx": 1, "reset": 1} and a.picks == 2

    in_a_loop(case)
