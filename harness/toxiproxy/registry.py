"""All proxies of one server, and the rules for creating, changing, populating and resetting them.

Addresses are resolved before anything is changed; every change is then one synchronous step. So calls that run
at the same time never see or leave a proxy half changed.
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
    """A proxy as a request asks for it."""

    name: str
    listen: str
    upstream: str
    enabled: bool


class Registry:
    """The proxies by name.

    Args:
        seed: of toxicities, jitter and slices; None draws a fresh one. A seed repeats its draws only if
            connections are opened, and toxics changed, in the same order.
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
        """Add a new proxy and start it if wished; a failure leaves nothing behind.

        Raises:
            ApiError: 409 if the name exists.
            ListenError: it can't listen there.
        """
        if wish.name in self.proxies:
            raise ApiError(409, "proxy already exists")
        address = await _address_if_started(wish)
        if wish.name in self.proxies:  # created by another call while the address was looked up
            raise ApiError(409, "proxy already exists")
        proxy = self._new(wish)
        if address is not None:
            proxy.start(address)
        self.proxies[wish.name] = proxy
        return proxy

    async def update(self, proxy: Proxy, listen: str, upstream: str, enabled: bool) -> None:
        """Give a proxy new values. A new address or upstream drops its connections; toxics stay.

        Raises:
            ListenError: the address is none (nothing changes), or it can't be listened on (the proxy keeps the
                new address and is disabled).
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
        """Create or replace proxies in order, until one fails; those that exist as wished are left untouched.

        Args:
            wishes: what the request asks for, already checked.
            done: receives each proxy that now is as wished.

        Raises:
            ListenError: one can't listen; one that it was to replace stays, disabled.
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
            ListenError: one can't listen; it and those after it are left as they are.
        """
        for proxy in list(self.proxies.values()):
            address = await resolve_listen(proxy.listen)
            self._check_still_there(proxy)
            proxy.start(address)
            for toxic in proxy.listed_toxics():
                proxy.remove_toxic(toxic)

    async def close(self) -> None:
        """Drop everything."""
        for proxy in list(self.proxies.values()):
            await self.delete(proxy)

    def _check_still_there(self, proxy: Proxy) -> None:
        """Looking an address up can take a while; a proxy deleted meanwhile must not be started."""
        if self.find(proxy.name) is not proxy:
            raise ApiError(404, "proxy not found")

    def _new(self, wish: ProxyRequest) -> Proxy:
        return Proxy(wish.name, wish.listen, wish.upstream, self.log, self.traffic, self._random)


async def _address_if_started(wish: ProxyRequest) -> str | None:
    """The address to start on, or None for a proxy that is not to start; then `listen` is not even looked at."""
    return await resolve_listen(wish.listen) if wish.enabled else None
