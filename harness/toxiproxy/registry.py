"""All proxies of one server, and the rules for creating, changing, populating and resetting them.

Addresses are resolved before any change; each change is then one synchronous step. Concurrent calls therefore never see
a proxy half changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from harness.toxiproxy.address import resolve_listen
from harness.toxiproxy.connection_log import ConnectionLog
from harness.toxiproxy.metrics import Traffic
from harness.toxiproxy.proxy import Proxy
from harness.toxiproxy.wire import ApiError


class ProxyRequest(NamedTuple):
    """A requested proxy."""

    name: str
    listen: str
    upstream: str
    enabled: bool


class Registry:
    """The proxies by name.

    Args:
        seed: for toxicities, jitter and slices; None draws a fresh one. Draws repeat only if connections are opened and
            toxics changed in the same order.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.proxies: dict[str, Proxy] = {}
        self.log = ConnectionLog()
        self.traffic = Traffic()
        self._random = Random(seed)

    def find(self, name: str) -> Proxy:
        """The proxy of that name.

        Raises:
            ApiError: 404.
        """
        if name not in self.proxies:
            raise ApiError(404, "proxy not found")
        return self.proxies[name]

    async def create(self, wish: ProxyRequest) -> Proxy:
        """Add a new proxy and start it if requested; a failure leaves nothing behind.

        Raises:
            ApiError: 409 if the name exists.
            ListenError: it can't listen there.
        """
        if wish.name in self.proxies:
            raise ApiError(409, "proxy already exists")
        address = await _address_if_started(wish)
        if wish.name in self.proxies:  # created by another call during address resolution
            raise ApiError(409, "proxy already exists")
        proxy = self._new(wish)
        if address is not None:
            proxy.start(address)
        self.proxies[wish.name] = proxy
        return proxy

    async def update(self, proxy: Proxy, listen: str, upstream: str, enabled: bool) -> None:
        """Give a proxy new values. A new address or upstream drops its connections; toxics stay.

        Raises:
            ListenError: invalid address (nothing changes), or listening failed (the proxy keeps the new address and is
                disabled).
        """
        address = await resolve_listen(listen)
        moved = listen != proxy.listen and address != await resolve_listen(proxy.listen)
        self._check_still_there(proxy)
        if moved or upstream != proxy.upstream:
            proxy.stop()
            proxy.listen, proxy.upstream = listen, upstream
        try:
            if enabled:
                proxy.start(address)
            else:
                proxy.stop()
        finally:
            await proxy.settled()

    async def delete(self, proxy: Proxy) -> None:
        """Drop a proxy and its connections."""
        del self.proxies[proxy.name]
        proxy.stop()
        await proxy.settled()

    async def populate(self, wishes: Sequence[ProxyRequest], done: list[Proxy]) -> None:
        """Create or replace proxies in order, until one fails; existing proxies that match are left untouched.

        Args:
            wishes: the requested proxies, already checked.
            done: receives each proxy that now matches its request.

        Raises:
            ListenError: one failed to listen; a proxy that it should have replaced stays, disabled.
        """
        for wish in wishes:
            old = self.proxies.get(wish.name)
            if old is None:
                done.append(await self.create(wish))
                continue
            address = await resolve_listen(wish.listen)
            unchanged = wish.upstream == old.upstream and address == await resolve_listen(old.listen)
            self._check_still_there(old)
            if unchanged:
                done.append(old)
                continue
            old.stop()
            proxy = self._new(wish)
            if wish.enabled:
                proxy.start(address)
            self.proxies[wish.name] = proxy
            await old.settled()
            done.append(proxy)

    async def reset(self) -> None:
        """Start every proxy and remove all toxics.

        Raises:
            ListenError: one failed to listen; it and the proxies after it stay unchanged.
        """
        for proxy in list(self.proxies.values()):
            address = await resolve_listen(proxy.listen)
            self._check_still_there(proxy)
            proxy.start(address)
            for toxic in proxy.listed_toxics():
                proxy.remove_toxic(toxic)

    async def close(self) -> None:
        """Delete every proxy."""
        for proxy in list(self.proxies.values()):
            await self.delete(proxy)

    def _check_still_there(self, proxy: Proxy) -> None:
        """Check that a proxy was not deleted during address resolution; such a proxy must not be started."""
        if self.find(proxy.name) is not proxy:
            raise ApiError(404, "proxy not found")

    def _new(self, wish: ProxyRequest) -> Proxy:
        return Proxy(wish.name, wish.listen, wish.upstream, self.log, self.traffic, self._random)


async def _address_if_started(wish: ProxyRequest) -> str | None:
    """The address to listen on, or None for a disabled proxy, whose `listen` is not resolved."""
    return await resolve_listen(wish.listen) if wish.enabled else None
