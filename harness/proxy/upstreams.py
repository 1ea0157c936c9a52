"""The backends of a live balancer, by id: where each is, what is in flight there, and a client for each address.

An **upstream** is one stay of a backend in the list. One that leaves, or returns at another address, ends that stay:
what is in flight there is counted to its end, then its connections and its numbers go. Two ids may share an address.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from harness.gateway.protocol import Backend

OWN_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
"""Headers that aiohttp's client would add where a client sent none; a backend must see what the client sent."""

ID = re.compile(r"[\w.:\[\]-]{1,200}", re.ASCII)
HEAVIEST = 100.0


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """A backend as the configuration names it. ValueError for an id, host, port or weight that cannot be.

    `draining`: it is listed, and gets nothing new.
    """

    id: str
    host: str
    port: int
    weight: float = 1.0
    draining: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not ID.fullmatch(self.id):
            raise ValueError(f"id {self.id!r}: expected letters, digits and . : - _, at most 200")
        if not isinstance(self.host, str) or not self.host or re.search(r"[\s/?#@]", self.host):
            raise ValueError(f"host {self.host!r} of {self.id}: expected a name or an address")
        if not isinstance(self.port, int) or isinstance(self.port, bool) or not 0 < self.port < 65_536:
            raise ValueError(f"port {self.port!r} of {self.id}: expected 1 to 65535")
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float):
            raise ValueError(f"weight {self.weight!r} of {self.id}: expected a number")
        if not 0 <= self.weight <= HEAVIEST:  # the hash ring has points in proportion
            raise ValueError(f"weight {self.weight!r} of {self.id}: expected from 0 to {HEAVIEST:g}")
        if not isinstance(self.draining, bool):
            raise ValueError(f"draining {self.draining!r} of {self.id}: expected true or false")

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_from(text: str) -> BackendAddress:
    """A backend from `[NAME=]http://HOST:PORT[#weight=W]`; without a name it is called HOST:PORT.

    ValueError of one line if it is anything else.
    """
    name, equals, rest = text.partition("=")
    url = rest if equals and "/" not in name else text
    form = f"backend {text!r}: expected [NAME=]http://HOST:PORT[#weight=W]"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{form} ({error})") from None
    if parts.scheme != "http":
        raise ValueError(
            f"{form}; {f'{parts.scheme} is not spoken here, only http' if parts.scheme else 'begin with http://'}"
        )
    if not parts.hostname or port is None or "@" in parts.netloc:
        raise ValueError(f"{form}, with a host and a port")
    if parts.path not in ("", "/") or parts.query:
        raise ValueError(f"{form}, without a path: paths are passed on as the clients ask for them")
    weight = 1.0
    if parts.fragment:
        key, _, number = parts.fragment.partition("=")
        try:
            weight = float(number)
        except ValueError:
            raise ValueError(f"{form}; #{parts.fragment} has no number") from None
        if key != "weight":
            raise ValueError(f"{form}; #{key}= is not known")
    at = BackendAddress("place", parts.hostname, port)
    return BackendAddress(name if url is not text else at.address, parts.hostname, port, weight)


def place_of(item: object) -> BackendAddress:
    """A backend from a JSON object: `{id, host, port, weight}`, or `{url}` with `id` and `weight` where wanted.

    Either may say `draining`. KeyError, TypeError or ValueError for anything else.
    """
    if not isinstance(item, dict):
        raise TypeError(f"{item!r} is no object")
    if "url" not in item:
        _expect(item, {"id", "host", "port", "weight", "draining"})
        return BackendAddress(item["id"], item["host"], item["port"], item["weight"], item.get("draining", False))
    _expect(item, {"url", "id", "weight", "draining"})
    if not isinstance(item["url"], str):
        raise TypeError(f"url {item['url']!r}: expected text")
    made = place_from(item["url"])
    weight, draining = item.get("weight", made.weight), item.get("draining", False)
    return replace(made, id=item.get("id", made.id), weight=weight, draining=draining)


def _expect(item: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(item) - keys)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not known; expected {', '.join(sorted(keys))}")


@dataclass(slots=True, eq=False)
class Upstream:
    """One stay of a backend in the list. `outcomes` counts its attempts by how they ended, `picks` those sent."""

    place: BackendAddress
    client: aiohttp.ClientSession
    draining: bool = False
    listed: bool = True
    in_flight: int = 0
    checks: int = 0
    picks: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing is in flight; who waits for a drain waits for this."""

    @property
    def base(self) -> str:
        """Beginning of the URLs of everything that it is asked."""
        return f"http://{self.place.address}"


class Upstreams:
    """The list, in order. Edits keep everything about the others; ids are unique (ValueError or KeyError if not)."""

    def __init__(self) -> None:
        self._listed: dict[str, Upstream] = {}
        self._leaving: set[Upstream] = set()
        self._clients: dict[tuple[str, int], tuple[aiohttp.ClientSession, set[Upstream]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def listed(self) -> tuple[Upstream, ...]:
        """Members and those that drain, in order."""
        return tuple(self._listed.values())

    @property
    def remembered(self) -> int:
        """Stays of which anything is kept: the listed ones, and those that left with something in flight."""
        return len(self._listed) + len(self._leaving)

    def get(self, name: str) -> Upstream | None:
        """The listed one of this id."""
        return self._listed.get(name)

    def members(self) -> tuple[Backend, ...]:
        """Those that may get something new, as a gateway is told of them."""
        return tuple(
            Backend(id=name, address=item.place.address, weight=item.place.weight)
            for name, item in self._listed.items()
            if not item.draining
        )

    # --- edits --------------------------------------------------------------------------------------------

    def replace(self, places: Iterable[BackendAddress]) -> frozenset[str]:
        """Make these the list; who drained is a member again unless it is to drain on. The ids with another address.

        ValueError if an id occurs twice; nothing has changed then.
        """
        wanted = list(places)
        ids = [place.id for place in wanted]
        if len(set(ids)) < len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise ValueError(f"id {twice!r} is there twice; expected different ones")
        old, self._listed = self._listed, {}
        moved = set()
        for place in wanted:
            known = old.pop(place.id, None)
            if known is not None and known.place.address == place.address:
                known.place, known.draining = place, place.draining
                self._listed[place.id] = known
                continue
            if known is not None:
                moved.add(place.id)
                self._unlist(known)
            self._listed[place.id] = self._begin(place)
        for gone in old.values():
            self._unlist(gone)
        return frozenset(moved)

    def join(self, place: BackendAddress) -> Upstream:
        """List one more. ValueError if its id is listed already."""
        if place.id in self._listed:
            raise ValueError(f"backend {place.id!r} is there already; leave first, or give another id")
        self._listed[place.id] = self._begin(place)
        return self._listed[place.id]

    def leave(self, name: str) -> None:
        """Take one off the list. KeyError if it isn't on it."""
        self._unlist(self._listed.pop(name))

    def _begin(self, place: BackendAddress) -> Upstream:
        where = (place.host, place.port)
        if where not in self._clients:
            self._clients[where] = (_client(), set())
        client, users = self._clients[where]
        made = Upstream(place, client, draining=place.draining)
        made.idle.set()
        users.add(made)
        return made

    def _unlist(self, upstream: Upstream) -> None:
        upstream.listed = False
        self._leaving.add(upstream)
        self._forget_if_over(upstream)

    # --- what is in flight --------------------------------------------------------------------------------

    def sent(self, upstream: Upstream) -> None:
        """An attempt leaves for it."""
        upstream.picks += 1
        upstream.in_flight += 1
        upstream.idle.clear()

    def ended(self, upstream: Upstream, outcome: str) -> None:
        """An attempt there is over."""
        upstream.outcomes[outcome] += 1
        upstream.in_flight -= 1
        if not upstream.in_flight:
            upstream.idle.set()
            self._forget_if_over(upstream)

    def checked(self, upstream: Upstream) -> None:
        """A health check there is over; `checks` was raised when it began."""
        upstream.checks -= 1
        self._forget_if_over(upstream)

    def _forget_if_over(self, upstream: Upstream) -> None:
        if upstream.listed or upstream.in_flight or upstream.checks:
            return
        self._leaving.discard(upstream)
        where = (upstream.place.host, upstream.place.port)
        client, users = self._clients[where]
        users.discard(upstream)
        if not users:
            del self._clients[where]
            task = asyncio.get_running_loop().create_task(client.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*self._closing, *(client.close() for client, _ in self._clients.values()))


def _client() -> aiohttp.ClientSession:
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        # The library's own jar would hand one client's cookies to the next.
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        trust_env=False,
        skip_auto_headers=OWN_HEADERS,
    )
    # aiohttp repeats idempotent requests on its own when a pooled connection was dropped; attempts are the gateway's
    # decision alone. There is no public switch; a test counts attempts at a dropping backend.
    client._retry_connection = False
    return client
