"""The backends of a live balancer, by id: their addresses, attempts in flight, and an HTTP client for each address.

An **upstream** is the membership of a backend from its listing to its removal. A backend that leaves, or is listed with
another address, ends its upstream: attempts in flight are counted to their end, then its connections and counters are
dropped. Two ids may share an address.
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
"""Headers that aiohttp's client would add if absent; backends must receive the client's headers unchanged."""

ID = re.compile(r"[\w.:\[\]-]{1,200}", re.ASCII)
HEAVIEST = 100.0


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """A backend of the configuration. ValueError for an invalid id, host, port, weight or `draining`.

    `draining`: listed, but gets no new requests.
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
        if not 0 <= self.weight <= HEAVIEST:  # the hash ring's points are proportional to the weight
            raise ValueError(f"weight {self.weight!r} of {self.id}: expected from 0 to {HEAVIEST:g}")
        if not isinstance(self.draining, bool):
            raise ValueError(f"draining {self.draining!r} of {self.id}: expected true or false")

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_from_text(text: str) -> BackendAddress:
    """Parse `[NAME=]http://HOST:PORT[#weight=W]`; the default name is HOST:PORT.

    ValueError with a one-line message for any other form.
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
            f"{form}; {f'scheme {parts.scheme} is not supported, only http' if parts.scheme else 'begin with http://'}"
        )
    if not parts.hostname or port is None or "@" in parts.netloc:
        raise ValueError(f"{form}, with a host and a port")
    if parts.path not in ("", "/") or parts.query:
        raise ValueError(f"{form}, without a path: clients' paths are passed on unchanged")
    weight = 1.0
    if parts.fragment:
        key, _, number = parts.fragment.partition("=")
        try:
            weight = float(number)
        except ValueError:
            raise ValueError(f"{form}; #{parts.fragment}: expected a number") from None
        if key != "weight":
            raise ValueError(f"{form}; unknown #{key}=")
    unnamed = BackendAddress("backend", parts.hostname, port)
    return BackendAddress(name if url is not text else unnamed.address, parts.hostname, port, weight)


def address_from_json(item: object) -> BackendAddress:
    """Parse a JSON object: `{id, host, port, weight}`, or `{url}` with optional `id` and `weight`.

    Both forms accept `draining`. KeyError, TypeError or ValueError for anything else.
    """
    if not isinstance(item, dict):
        raise TypeError(f"{item!r} is not an object")
    if "url" not in item:
        _expect(item, {"id", "host", "port", "weight", "draining"})
        return BackendAddress(item["id"], item["host"], item["port"], item["weight"], item.get("draining", False))
    _expect(item, {"url", "id", "weight", "draining"})
    if not isinstance(item["url"], str):
        raise TypeError(f"url {item['url']!r}: expected text")
    parsed = address_from_text(item["url"])
    weight, draining = item.get("weight", parsed.weight), item.get("draining", False)
    return replace(parsed, id=item.get("id", parsed.id), weight=weight, draining=draining)


def _expect(item: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(item) - keys)
    if unknown:
        raise ValueError(f"unknown {unknown[0]!r}; expected {', '.join(sorted(keys))}")


@dataclass(slots=True, eq=False)
class Upstream:
    """A listed backend. `outcomes` counts its finished attempts by outcome, `picks` its sent attempts."""

    backend: BackendAddress
    client: aiohttp.ClientSession
    draining: bool = False
    listed: bool = True
    in_flight: int = 0
    checks: int = 0
    picks: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no attempt is in flight; the end of a drain."""

    @property
    def base(self) -> str:
        """Base of the URLs of its requests."""
        return f"http://{self.backend.address}"


class Upstreams:
    """The ordered list of upstreams with unique ids. Edits keep all state of the other upstreams."""

    def __init__(self) -> None:
        self._listed: dict[str, Upstream] = {}
        self._leaving: set[Upstream] = set()
        self._clients: dict[tuple[str, int], tuple[aiohttp.ClientSession, set[Upstream]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def listed(self) -> tuple[Upstream, ...]:
        """Members and draining backends, in order."""
        return tuple(self._listed.values())

    @property
    def remembered(self) -> int:
        """Number of upstreams with any kept state: listed ones, and removed ones with attempts in flight."""
        return len(self._listed) + len(self._leaving)

    def get(self, name: str) -> Upstream | None:
        """The listed upstream of this id, if any."""
        return self._listed.get(name)

    def members(self) -> tuple[Backend, ...]:
        """Backends that may get new requests, in the gateway's form."""
        return tuple(
            Backend(id=name, address=item.backend.address, weight=item.backend.weight)
            for name, item in self._listed.items()
            if not item.draining
        )

    # --- edits --------------------------------------------------------------------------------------------

    def replace(self, backends: Iterable[BackendAddress]) -> frozenset[str]:
        """Replace the list. A draining backend becomes a member again unless its new entry is draining.

        Returns the ids whose address changed. ValueError, without any change, if an id occurs twice.
        """
        new = list(backends)
        ids = [backend.id for backend in new]
        if len(set(ids)) < len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise ValueError(f"id {twice!r} occurs twice; expected unique ids")
        previous, self._listed = self._listed, {}
        moved = set()
        for backend in new:
            known = previous.pop(backend.id, None)
            if known is not None and known.backend.address == backend.address:
                known.backend, known.draining = backend, backend.draining
                self._listed[backend.id] = known
                continue
            if known is not None:
                moved.add(backend.id)
                self._unlist(known)
            self._listed[backend.id] = self._begin(backend)
        for removed in previous.values():
            self._unlist(removed)
        return frozenset(moved)

    def join(self, backend: BackendAddress) -> Upstream:
        """Add a backend. ValueError if its id is already listed."""
        if backend.id in self._listed:
            raise ValueError(f"backend {backend.id!r} is already listed; remove it first or use another id")
        self._listed[backend.id] = self._begin(backend)
        return self._listed[backend.id]

    def leave(self, name: str) -> None:
        """Remove a backend from the list. KeyError if it is not listed."""
        self._unlist(self._listed.pop(name))

    def _begin(self, backend: BackendAddress) -> Upstream:
        address = (backend.host, backend.port)
        if address not in self._clients:
            self._clients[address] = (_client(), set())
        client, users = self._clients[address]
        upstream = Upstream(backend, client, draining=backend.draining)
        upstream.idle.set()
        users.add(upstream)
        return upstream

    def _unlist(self, upstream: Upstream) -> None:
        upstream.listed = False
        self._leaving.add(upstream)
        self._drop_if_finished(upstream)

    # --- attempts in flight -------------------------------------------------------------------------------

    def sent(self, upstream: Upstream) -> None:
        """Count a sent attempt."""
        upstream.picks += 1
        upstream.in_flight += 1
        upstream.idle.clear()

    def ended(self, upstream: Upstream, outcome: str) -> None:
        """Count a finished attempt by its outcome."""
        upstream.outcomes[outcome] += 1
        upstream.in_flight -= 1
        if not upstream.in_flight:
            upstream.idle.set()
            self._drop_if_finished(upstream)

    def checked(self, upstream: Upstream) -> None:
        """Count a finished health check; the caller incremented `checks` at its start."""
        upstream.checks -= 1
        self._drop_if_finished(upstream)

    def _drop_if_finished(self, upstream: Upstream) -> None:
        if upstream.listed or upstream.in_flight or upstream.checks:
            return
        self._leaving.discard(upstream)
        address = (upstream.backend.host, upstream.backend.port)
        client, users = self._clients[address]
        users.discard(upstream)
        if not users:
            del self._clients[address]
            task = asyncio.get_running_loop().create_task(client.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*self._closing, *(client.close() for client, _ in self._clients.values()))


def _client() -> aiohttp.ClientSession:
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        # The default jar would send one client's cookies with another's requests.
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        trust_env=False,
        skip_auto_headers=OWN_HEADERS,
    )
    # aiohttp repeats idempotent requests by itself when a pooled connection was dropped; only the gateway may decide on
    # attempts. There is no public switch; a test counts attempts at a dropping backend.
    client._retry_connection = False
    return client
