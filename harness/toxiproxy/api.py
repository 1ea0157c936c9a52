"""Toxiproxy's control API over HTTP (release 2.12), plus `/connections`.

Extension: `GET /connections` answers `{"connections":[...],"forgotten":N}`, oldest first, each with `proxy`,
`opened_s` and `closed_s` (CLOCK_MONOTONIC), `bytes_up`, `bytes_down` and `ended`; `?proxy=NAME` selects one
proxy. `forgotten` counts entries lost because the log is bounded. `DELETE /connections` removes entries that have
ended.
"""

from __future__ import annotations

import asyncio
import posixpath
import random
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, quote, unquote

from aiohttp import HttpVersion11, web

from harness.toxiproxy import wire
from harness.toxiproxy.address import ListenError
from harness.toxiproxy.metrics import MEDIA_TYPE, ProxyMetrics
from harness.toxiproxy.proxy import Proxy
from harness.toxiproxy.registry import ProxyRequest, Registry
from harness.toxiproxy.stage import DOWNSTREAM, UPSTREAM, Toxic
from harness.toxiproxy.toxics import TOXIC_TYPES
from harness.toxiproxy.wire import ApiError

VERSION = "2.12.0"  # the release whose protocol this is
REQUEST_ID_ALPHABET = "0123456789abcdefghijklmnopqrstuv"
ANY_METHOD = "*"
BODY_TIMEOUT_S = 15.0
"""Time limit in seconds for a request body after its head (as Toxiproxy)."""

Handler = Callable[..., Awaitable[web.Response]]


class ControlApi:
    """Answers the requests of the control API; `handle` is an `aiohttp.web.Server` handler.

    Args:
        registry: the proxies.
        metrics: content of /metrics; None disables the path.
        body_timeout_s: time limit for a request body, in seconds.
    """

    def __init__(
        self, registry: Registry, metrics: ProxyMetrics | None = None, body_timeout_s: float = BODY_TIMEOUT_S
    ) -> None:
        self._registry = registry
        self._body_timeout_s = body_timeout_s
        # A `*` matches one path segment, which is passed to the handler.
        self._routes: dict[tuple[str, ...], dict[str, Handler]] = {
            ("version",): {"GET": self._version},
            ("proxies",): {"GET": self._list, "POST": self._create},
            ("proxies", "*"): {
                "GET": self._show,
                "POST": self._update,
                "PATCH": self._update,
                "DELETE": self._delete,
            },
            ("proxies", "*", "toxics"): {"GET": self._list_toxics, "POST": self._add_toxic},
            ("proxies", "*", "toxics", "*"): {
                "GET": self._show_toxic,
                "POST": self._update_toxic,
                "PATCH": self._update_toxic,
                "DELETE": self._remove_toxic,
            },
            ("populate",): {"POST": self._populate},
            ("reset",): {"POST": self._reset},
            ("connections",): {"GET": self._list_connections, "DELETE": self._clear_connections},
        }
        if metrics is not None:
            self._metrics = metrics
            self._routes["metrics",] = {ANY_METHOD: self._show_metrics}

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Route a request: path first, then method, then user agent, as Toxiproxy does."""
        path = unquote(request.raw_path.partition("?")[0])
        if not _is_supported_expectation(request):
            return web.Response(status=417, headers={"Connection": "close"})
        normalised = _normalised_path(path)
        if normalised != path:
            return web.Response(status=301, headers={"Location": quote(normalised)})
        segments = tuple(path.split("/")[1:])
        methods = self._route_methods(segments)
        if methods is None:
            return _plain(404, "404 page not found\n")
        handler = methods.get(request.method) or methods.get(ANY_METHOD)
        if handler is None:
            return web.Response(status=405)
        if request.headers.get("User-Agent", "").startswith("Mozilla/"):  # keeps browsers, and so web pages, out
            response = _plain(403, "User agent not allowed\n")
        else:
            response = await self._answer(handler, request, segments)
        response.headers["X-Toxiproxy-Request-Id"] = "".join(random.choices(REQUEST_ID_ALPHABET, k=20))
        return response

    def _route_methods(self, segments: tuple[str, ...]) -> dict[str, Handler] | None:
        if "" in segments:
            return None
        pattern = tuple("*" if index % 2 else segment for index, segment in enumerate(segments))
        return self._routes.get(pattern)

    async def _answer(self, handler: Handler, request: web.BaseRequest, segments: tuple[str, ...]) -> web.Response:
        try:
            await self._read_body(request)
            return await handler(request, *segments[1::2])
        except ApiError as error:
            return _error(error)
        except ListenError as error:
            return _error(ApiError(500, str(error)))

    async def _read_body(self, request: web.BaseRequest) -> None:
        """Read the whole body before any lookup; the handlers' own `read` then returns at once.

        Sends 100 Continue to a client that waits for it (curl with more than 1 MiB).
        """
        try:
            async with asyncio.timeout(self._body_timeout_s):
                if "Expect" in request.headers and request.can_read_body and request.version >= HttpVersion11:
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    request.writer.output_size = 0  # not part of the answer: an error can still be sent
                await request.read()
        except TimeoutError:
            raise wire.bad_body("i/o timeout") from None
        except (ConnectionError, web.RequestPayloadError):  # the client disconnected, or sent invalid framing
            raise wire.bad_body("unexpected EOF") from None

    async def _show_metrics(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=self._metrics.text().encode(), headers={"Content-Type": MEDIA_TYPE})

    # Proxies.

    async def _version(self, request: web.BaseRequest) -> web.Response:
        return web.Response(
            body=f'{{"version": "{VERSION}"}}\n'.encode(),
            headers={"Content-Type": "application/json;charset=utf-8"},
        )

    async def _list(self, request: web.BaseRequest) -> web.Response:
        proxies = sorted(self._registry.proxies.values(), key=lambda proxy: proxy.name)
        encoded = (f"{wire.text_json(proxy.name)}:{wire.proxy_json(proxy)}" for proxy in proxies)
        return _json(200, f"{{{','.join(encoded)}}}")

    async def _create(self, request: web.BaseRequest) -> web.Response:
        proxy_request = _read_proxy_request(wire.read_fields(wire.read_value(await request.read())))
        _check_proxy_request(proxy_request)
        return _json(201, wire.proxy_json(await self._registry.create(proxy_request)))

    async def _show(self, request: web.BaseRequest, name: str) -> web.Response:
        return _json(200, wire.proxy_json(self._registry.find(name)))

    async def _update(self, request: web.BaseRequest, name: str) -> web.Response:
        body = await request.read()
        proxy = self._registry.find(name)
        fields = wire.read_fields(wire.read_value(body))
        await self._registry.update(
            proxy,
            wire.text_field(fields, "listen", proxy.listen),
            wire.text_field(fields, "upstream", proxy.upstream),
            wire.flag_field(fields, "enabled", proxy.enabled),
        )
        return _json(200, wire.proxy_json(proxy))

    async def _delete(self, request: web.BaseRequest, name: str) -> web.Response:
        await self._registry.delete(self._registry.find(name))
        return web.Response(status=204)

    async def _populate(self, request: web.BaseRequest) -> web.Response:
        matching: list[Proxy] = []
        try:
            await self._registry.populate(read_proxy_requests(await request.read()), matching)
        except (ApiError, ListenError) as error:
            status = error.status if isinstance(error, ApiError) else 500
            text = wire.text_json(str(error))
            return _json(status, f'{{"error":{text},"status":{status},"proxies":{wire.proxies_json(matching)}}}')
        return _json(201, f'{{"proxies":{wire.proxies_json(matching)}}}')

    async def _reset(self, request: web.BaseRequest) -> web.Response:
        await self._registry.reset()
        return web.Response(status=204)

    # Toxics.

    async def _list_toxics(self, request: web.BaseRequest, name: str) -> web.Response:
        return _json(200, wire.toxics_json(self._registry.find(name).listed_toxics()))

    async def _add_toxic(self, request: web.BaseRequest, name: str) -> web.Response:
        body = await request.read()
        proxy = self._registry.find(name)
        toxic = _read_toxic(wire.read_fields(wire.read_value(body)), proxy)
        proxy.add_toxic(toxic)
        return _json(200, wire.toxic_json(toxic))

    async def _show_toxic(self, request: web.BaseRequest, name: str, toxic_name: str) -> web.Response:
        return _json(200, wire.toxic_json(_find_toxic(self._registry.find(name), toxic_name)))

    async def _update_toxic(self, request: web.BaseRequest, name: str, toxic_name: str) -> web.Response:
        body = await request.read()
        proxy = self._registry.find(name)
        toxic = _find_toxic(proxy, toxic_name)
        _merge_update(toxic, wire.read_fields(wire.read_value(body)))
        proxy.toxic_updated(toxic)
        return _json(200, wire.toxic_json(toxic))

    async def _remove_toxic(self, request: web.BaseRequest, name: str, toxic_name: str) -> web.Response:
        proxy = self._registry.find(name)
        proxy.remove_toxic(_find_toxic(proxy, toxic_name))
        return web.Response(status=204)

    # Connections.

    async def _list_connections(self, request: web.BaseRequest) -> web.Response:
        query = parse_qs(request.raw_path.partition("?")[2])
        log = self._registry.log
        entries = ",".join(map(wire.connection_json, log.entries(query.get("proxy", [None])[0])))
        return _json(200, f'{{"connections":[{entries}],"forgotten":{log.forgotten}}}')

    async def _clear_connections(self, request: web.BaseRequest) -> web.Response:
        self._registry.log.clear()
        return web.Response(status=204)


# Requests.


def read_proxy_requests(body: bytes) -> list[ProxyRequest]:
    """The proxies requested by a /populate body or a configuration file.

    Raises:
        ApiError: 400, not an array of proxies, or a proxy without name or upstream.
    """
    value = wire.read_value(body)
    if value is not None and not isinstance(value, list):
        raise wire.bad_body("must be an array of proxies")
    proxy_requests = [_read_proxy_request(wire.read_fields(entry, "a proxy")) for entry in value or []]
    for number, proxy_request in enumerate(proxy_requests, start=1):
        _check_proxy_request(proxy_request, f" at proxy {number}")
    return proxy_requests


def _read_proxy_request(fields: dict[str, object]) -> ProxyRequest:
    return ProxyRequest(
        name=wire.text_field(fields, "name"),
        listen=wire.text_field(fields, "listen"),
        upstream=wire.text_field(fields, "upstream"),
        enabled=wire.flag_field(fields, "enabled", True),
    )


def _check_proxy_request(proxy_request: ProxyRequest, where: str = "") -> None:
    if not proxy_request.name:
        raise ApiError(400, f"missing required field: name{where}")
    if not proxy_request.upstream:
        raise ApiError(400, f"missing required field: upstream{where}")


def _read_toxic(fields: dict[str, object], proxy: Proxy) -> Toxic:
    """A new toxic, checked in Toxiproxy's order: shape, stream, type, name, attributes."""
    kind = wire.text_field(fields, "type")
    stream = wire.text_field(fields, "stream", DOWNSTREAM)
    name = wire.text_field(fields, "name") or f"{kind}_{stream}"
    toxicity = wire.float32_field(fields, "toxicity", 1.0)
    attributes = wire.read_fields(fields.get("attributes"), "attributes")
    if stream.lower() not in (UPSTREAM, DOWNSTREAM):
        raise ApiError(400, "stream was invalid, can be either upstream or downstream")
    if kind not in TOXIC_TYPES:
        raise ApiError(400, "invalid toxic type")
    if name in proxy.toxics:
        raise ApiError(409, "toxic already exists")
    names = TOXIC_TYPES[kind].attribute_names
    merged, error = wire.read_attributes(attributes, names, dict.fromkeys(names, 0))
    if error is not None:
        raise error
    _reject_crashing_attributes(kind, merged)
    return Toxic(name, kind, stream, toxicity, merged)


def _merge_update(toxic: Toxic, fields: dict[str, object]) -> None:
    """Merge an update into a toxic. As with Toxiproxy, valid attributes apply even if another one is invalid."""
    toxicity = wire.float32_field(fields, "toxicity", toxic.toxicity)
    attributes = wire.read_fields(fields.get("attributes"), "attributes")
    names = TOXIC_TYPES[toxic.type].attribute_names
    merged, error = wire.read_attributes(attributes, names, toxic.attributes)
    _reject_crashing_attributes(toxic.type, merged)
    toxic.attributes = merged
    if error is not None:
        raise error
    toxic.toxicity = toxicity


def _reject_crashing_attributes(kind: str, attributes: dict[str, int]) -> None:
    refusal = TOXIC_TYPES[kind].refusal(attributes)
    if refusal is not None:
        raise wire.bad_body(refusal)


def _is_supported_expectation(request: web.BaseRequest) -> bool:
    """Whether the only expectation of a request, if any, is 100-continue."""
    return request.headers.get("Expect", "100-continue").lower() == "100-continue"


def _find_toxic(proxy: Proxy, name: str) -> Toxic:
    if name not in proxy.toxics:
        raise ApiError(404, "toxic not found")
    return proxy.toxics[name]


def _normalised_path(path: str) -> str:
    """Normalise a path: no doubled slashes or dots; a trailing slash stays."""
    normalised = posixpath.normpath("/" + path.lstrip("/"))
    return normalised + "/" if path.endswith("/") and normalised != "/" else normalised


# Responses.


def _json(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=text.encode(), headers={"Content-Type": "application/json"})


def _error(error: ApiError) -> web.Response:
    """An error body is JSON but, as with Go's http.Error, declared as text."""
    return _plain(error.status, f'{{"error":{wire.text_json(error.text)},"status":{error.status}}}\n')


def _plain(status: int, text: str) -> web.Response:
    headers = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    return web.Response(status=status, body=text.encode(), headers=headers)
