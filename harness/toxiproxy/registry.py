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

    async def create(self, request: ProxyRequest) -> Proxy:
        """Add a new proxy and start it if requested; a failure leaves nothing behind.

        Raises:
            ApiError: 409 if the name exists.
            ListenError: it can't listen there.
        """
        if request.name in self.proxies:
            raise ApiError(409, "proxy already exists")
        address = await _address_if_started(request)
        if request.name in self.proxies:  # created by another call during address resolution
            raise ApiError(409, "proxy already exists")
        proxy = self._new_proxy(request)
        if address is not None:
            proxy.start(address)
        self.proxies[request.name] = proxy
        return proxy

    async def update(self, proxy: Proxy, listen: str, upstream: str, enabled: bool) -> None:
        """Give a proxy new values. A new address or upstream drops its connections; toxics stay.

        Raises:
            ListenError: invalid address (nothing changes), or listening failed (the proxy keeps the new address and is
                disabled).
        """
        address = await resolve_listen(listen)
        moved = listen != proxy.listen and address != await resolve_listen(proxy.listen)
        self._check_not_deleted(proxy)
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

    async def populate(self, requests: Sequence[ProxyRequest], matching: list[Proxy]) -> None:
        """Create or replace proxies in order, until one fails; existing proxies that match are left untouched.

        Args:
            requests: the requested proxies, already checked.
            matching: receives each proxy that now matches its request.

        Raises:
            ListenError: one failed to listen; a proxy that it should have replaced stays, disabled.
        """
        for request in requests:
            existing = self.proxies.get(request.name)
            if existing is None:
                matching.append(await self.create(request))
                continue
            address = await resolve_listen(request.listen)
            unchanged = request.upstream == existing.upstream and address == await resolve_listen(existing.listen)
            self._check_not_deleted(existing)
            if unchanged:
                matching.append(existing)
                continue
            existing.stop()
            proxy = self._new_proxy(request)
            if request.enabled:
                proxy.start(address)
            self.proxies[request.name] = proxy
            await existing.settled()
            matching.append(proxy)

    async def reset(self) -> None:
        """Start every proxy and remove all toxics.

        Raises:
            ListenError: one failed to listen; it and the proxies after it stay unchanged.
        """
        for proxy in list(self.proxies.values()):
            address = await resolve_listen(proxy.listen)
            self._check_not_deleted(proxy)
            proxy.start(address)
            for toxic in proxy.listed_toxics():
                proxy.remove_toxic(toxic)

    async def close(self) -> None:
        """Delete every proxy."""
        for proxy in list(self.proxies.values()):
            await self.delete(proxy)

    def _check_not_deleted(self, proxy: Proxy) -> None:
        """Check that a proxy was not deleted during address resolution; such a proxy must not be started."""
        if self.find(proxy.name) is not proxy:
            raise ApiError(404, "proxy not found")

    def _new_proxy(self, request: ProxyRequest) -> Proxy:
        return Proxy(request.name, request.listen, request.upstream, self.log, self.traffic, self._random)


async def _address_if_started(request: ProxyRequest) -> str | None:
    """The address to listen on, or None for a disabled proxy, whose `listen` is not resolved."""
    return await resolve_listen(request.listen) if request.enabled else None
