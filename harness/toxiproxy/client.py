"""Blocking client of a fault proxy, embedded or Toxiproxy 2.7 and later; every failure raises.

The only module that uses the `toxiproxy-python` package (0.1.1). It works around these gaps of the package: no
timeouts, HTTP proxies from the environment, 403, 405 and 5xx treated as success, wrong `enabled`, no update of toxics,
host and port in class attributes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import requests
import toxiproxy.api
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from harness.toxiproxy.toxics import TOXIC_TYPES

NAME = re.compile(r"[A-Za-z0-9_.-]+")  # the library does not quote names in URLs
ADVICE = {
    400: "check type, stream and attributes",
    403: "do not send a browser's user agent",
    404: "create it first, or check the name",
    409: "delete the old one first, or choose another name",
    500: "free the listen address, or choose another",
    503: "a peer that does not read blocks a real Toxiproxy: let it read or cut its connections first",
}
Answer = TypeVar("Answer")

# The library keeps host, port and send functions per process, so calls are serialised.
_LIBRARY_LOCK = threading.Lock()


class FaultProxyError(Exception):
    """A call to the fault proxy failed. One line: what was seen, what was expected, what to do."""


@dataclass(frozen=True)
class RemoteProxy:
    """A proxy as reported by the server; `listen` has the real port once it was enabled."""

    name: str
    listen: str
    upstream: str
    enabled: bool


@dataclass(frozen=True)
class RemoteToxic:
    """A toxic as reported by the server, with all attributes of its type (Toxiproxy's units)."""

    name: str
    type: str
    stream: str
    toxicity: float
    attributes: Mapping[str, int]


@dataclass(frozen=True)
class LoggedConnection:
    """A connection logged by the embedded fault proxy. Times are seconds on CLOCK_MONOTONIC.

    `ended` is None while it is open, else `client`, `upstream`, `disabled`, `toxic`, `reset` or `dial_failed` (see
    `harness.toxiproxy.connection_log.CloseCause`). Bytes are those passed on.
    """

    proxy: str
    opened_s: float
    closed_s: float | None
    bytes_up: int
    bytes_down: int
    ended: str | None


class FaultProxy:
    """One fault proxy server.

    Args:
        host: address of its control API.
        port: port of its control API.
        timeout_s: time limit of a request. A real Toxiproxy can hang on a peer that does not read.

    Every method raises FaultProxyError if the server can't be reached in time or refuses.
    """

    def __init__(self, host: str, port: int, timeout_s: float = 5.0) -> None:
        self._host = host
        self._port = port
        self._session = _Session(timeout_s)

    def version(self) -> str:
        """Its release, or the release of its protocol: `2.12.0`; `git` for a build from source."""
        text: str = self._call("GET /version", lambda: toxiproxy.api.APIConsumer.get("/version").text)
        found = re.search(r"\d+\.\d+\.\d+|\bgit\b", text)  # the form differs between releases
        if found is None:
            raise self._error("GET /version", f"answered {text.strip()!r}", "a version number", "check the port")
        return found[0]

    # Proxies.

    def create(self, name: str, listen: str, upstream: str, enabled: bool = True) -> RemoteProxy:
        """Create a proxy; with port 0 in `listen` the response has the port that the system chose."""
        _check_name(name)
        operation = f"create proxy {name}"
        made = self._call(
            operation,
            lambda: toxiproxy.Toxiproxy().create(upstream=upstream, name=name, listen=listen, enabled=enabled),
        )
        proxy = RemoteProxy(made.name, made.listen, made.upstream, made.enabled)
        if proxy.enabled != enabled:
            raise self._error(operation, f"enabled={proxy.enabled}", f"enabled={enabled}", ADVICE[500])
        return proxy

    def proxy(self, name: str) -> RemoteProxy:
        """The proxy as it is now."""
        return _proxy_of(self._call(f"read proxy {name}", lambda: self._fetch(name)))

    def delete(self, name: str) -> None:
        """Delete a proxy; its connections are dropped when this returns."""
        self._call(f"delete proxy {name}", lambda: self._fetch(name).destroy())

    def delete_all(self) -> None:
        """Delete every proxy, including those with names that this client refuses."""
        failures = []
        for name in self._call("list proxies", lambda: list(toxiproxy.Toxiproxy().proxies())):
            try:
                self._delete_url(name, f"/proxies/{quote(name, safe='')}")
            except FaultProxyError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _delete_url(self, name: str, url: str) -> None:
        self._call(f"delete proxy {name}", lambda: toxiproxy.api.APIConsumer.delete(url))

    def enable(self, name: str) -> None:
        """Make a proxy listen again, on the same port."""
        self._switch(name, True)

    def disable(self, name: str) -> None:
        """Disable a proxy: connects fail, its connections are dropped."""
        self._switch(name, False)

    def _switch(self, name: str, enabled: bool) -> None:
        def switch() -> Any:
            proxy = self._fetch(name)
            proxy.enable() if enabled else proxy.disable()
            return self._fetch(name)  # the library's own state would be stale

        operation = f"{'enable' if enabled else 'disable'} proxy {name}"
        observed = self._call(operation, switch).enabled
        if observed != enabled:
            raise self._error(operation, f"enabled={observed}", f"enabled={enabled}", ADVICE[500])

    # Toxics.

    def add_toxic(
        self,
        name: str,
        type: str,
        attributes: Mapping[str, int],
        stream: str = "downstream",
        toxicity: float = 1.0,
        toxic_name: str | None = None,
    ) -> RemoteToxic:
        """Add a toxic to a proxy and read it back.

        Args:
            name: the proxy.
            type: latency, bandwidth, slow_close, timeout, reset_peer, slicer, limit_data or noop.
            attributes: integers, named and measured as in Toxiproxy (`{"latency": 100, "jitter": 10}`: ms).
            stream: `upstream` or `downstream`.
            toxicity: share of connections it applies to, drawn for each connection.
            toxic_name: `<type>_<stream>` if left out.
        """
        toxic_name = toxic_name or f"{type}_{stream}"
        _check_name(toxic_name)
        _check_attributes(type, attributes)
        operation = f"add toxic {toxic_name} to proxy {name}"
        self._call(
            operation,
            lambda: self._fetch(name).add_toxic(
                type=type, stream=stream, name=toxic_name, toxicity=toxicity, attributes=dict(attributes)
            ),
        )
        return self._read_back(operation, name, toxic_name, attributes)

    def update_toxic(
        self,
        name: str,
        toxic_name: str,
        attributes: Mapping[str, int] | None = None,
        toxicity: float | None = None,
    ) -> RemoteToxic:
        """Change attributes or toxicity of a toxic and read it back; omitted values stay."""
        operation = f"update toxic {toxic_name} of proxy {name}"
        attributes = attributes or {}
        old = self._toxic(operation, name, toxic_name)
        _check_attributes(old.type, {**old.attributes, **attributes})
        body: dict[str, object] = {"attributes": dict(attributes)}
        if toxicity is not None:
            body["toxicity"] = toxicity
        url = f"/proxies/{name}/toxics/{toxic_name}"
        self._call(operation, lambda: toxiproxy.api.APIConsumer.post(url, json=body))  # PATCH exists since 2.6
        return self._read_back(operation, name, toxic_name, attributes)

    def remove_toxic(self, name: str, toxic_name: str) -> None:
        """Remove a toxic; removing a `timeout` closes the connections it held."""
        _check_name(toxic_name)
        self._call(
            f"remove toxic {toxic_name} of proxy {name}",
            lambda: self._fetch(name).destroy_toxic(toxic_name),
        )

    def toxics(self, name: str) -> list[RemoteToxic]:
        """The toxics of a proxy: upstream first, then downstream, oldest first."""
        found = self._call(f"list toxics of proxy {name}", lambda: self._fetch(name).toxics())
        return [_toxic_of(toxic) for toxic in found.values()]

    def _toxic(self, operation: str, name: str, toxic_name: str) -> RemoteToxic:
        for toxic in self.toxics(name):
            if toxic.name == toxic_name:
                return toxic
        raise self._error(operation, "no such toxic", "one of that name", ADVICE[404])

    def _read_back(self, operation: str, name: str, toxic_name: str, attributes: Mapping[str, int]) -> RemoteToxic:
        """Read a toxic back: the library does not return the server's values."""
        toxic = self._toxic(operation, name, toxic_name)
        for attribute, value in attributes.items():
            if toxic.attributes.get(attribute) != value:
                observed = f"attributes {dict(toxic.attributes)}"
                raise self._error(
                    operation, observed, f"{attribute}={value}", "check that nothing else changes its toxics"
                )
        return toxic

    # All.

    def reset(self) -> None:
        """Enable every proxy and remove all toxics."""
        self._call("reset", lambda: toxiproxy.Toxiproxy().reset())

    def connections(self, name: str | None = None) -> list[LoggedConnection]:
        """The connections of one proxy or of all, oldest first; empty where the server keeps no log.

        Raises:
            FaultProxyError: also if the log has overflowed, because evidence is missing.
        """
        operation = "read connections"
        found, forgotten = self._call(operation, lambda: self._read_log({} if name is None else {"proxy": name}))
        if forgotten:
            advice = "call clear_connections before each run"
            raise self._error(operation, f"{forgotten} connections forgotten", "none", advice)
        return found

    def _read_log(self, query: dict[str, str]) -> tuple[list[LoggedConnection], int]:
        response = self._session.get(self._url("/connections"), params=query)
        if response.status_code == requests.codes.not_found:
            return [], 0
        log = response.json()
        return [LoggedConnection(**entry) for entry in log["connections"]], log["forgotten"]

    def clear_connections(self) -> None:
        """Remove the connections that have ended from the log."""
        self._call("clear connections", lambda: self._session.delete(self._url("/connections")))

    # Plumbing.

    def _url(self, path: str) -> str:
        return f"http://{self._host}:{self._port}{path}"

    def _fetch(self, name: str) -> Any:
        """The library's object for one proxy, without listing all of them. Only inside `_call`."""
        _check_name(name)
        return toxiproxy.Proxy(**toxiproxy.api.APIConsumer.get(f"/proxies/{name}").json())

    def _call(self, operation: str, action: Callable[[], Answer]) -> Answer:
        """Run an action of the library against this server with our session; translate its failures."""
        with _LIBRARY_LOCK, self._redirected_library():
            try:
                return action()
            except _UnexpectedStatusError as error:
                raise self._error(operation, str(error), "success", ADVICE.get(error.status, "see its log")) from None
            except (InvalidToxic, NotFound, ProxyExists) as error:
                status = {InvalidToxic: 400, NotFound: 404, ProxyExists: 409}[type(error)]
                text = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error
                raise self._error(operation, f"{status} {text}".strip(), "success", ADVICE[status]) from None
            except requests.Timeout:
                observed = f"no answer within {self._session.timeout_s:g} s"
                raise self._error(operation, observed, "an answer", ADVICE[503]) from None
            except (requests.RequestException, ValueError, KeyError, TypeError, AttributeError) as error:
                observed = str(error) or type(error).__name__
                advice = "check that a fault proxy runs there"
                raise self._error(operation, observed, "a fault proxy's answer", advice) from None

    @contextmanager
    def _redirected_library(self) -> Iterator[None]:
        """Direct the library to this server and our session; restore it afterwards."""
        consumer = toxiproxy.api.APIConsumer
        previous = consumer.host, consumer.port, toxiproxy.api.requests
        consumer.host, consumer.port = self._host, self._port
        # The library sends through get, post and delete of its module-level name `requests`.
        toxiproxy.api.requests = self._session
        try:
            yield
        finally:
            consumer.host, consumer.port, toxiproxy.api.requests = previous

    def _error(self, operation: str, observed: str, expected: str, advice: str) -> FaultProxyError:
        text = f"fault proxy {self._host}:{self._port}: {operation}: saw {observed}, expected {expected}; {advice}"
        return FaultProxyError(" ".join(text.split()))  # an answer may have several lines, an error message has one


class _UnexpectedStatusError(Exception):
    def __init__(self, response: requests.Response) -> None:
        super().__init__(f"{response.status_code} {response.text.strip()}".strip())
        self.status = response.status_code


class _Session(requests.Session):
    """Sends for the library: with a timeout, without the environment's proxies, and errors for failing statuses."""

    LIBRARY_RAISES = (400, 404, 409)

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self.timeout_s = timeout_s
        self.trust_env = False
        self.headers["Connection"] = "close"  # a kept connection could close unnoticed between two faults

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As `requests.Session.request`."""
        response = super().request(*args, **{"timeout": self.timeout_s, **kwargs})
        if response.status_code >= 300 and response.status_code not in self.LIBRARY_RAISES:
            raise _UnexpectedStatusError(response)
        return response


def _proxy_of(proxy: Any) -> RemoteProxy:
    return RemoteProxy(proxy.name, proxy.listen, proxy.upstream, proxy.enabled)


def _toxic_of(toxic: Any) -> RemoteToxic:
    return RemoteToxic(toxic.name, toxic.type, toxic.stream, toxic.toxicity, toxic.attributes)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise FaultProxyError(f"name {name!r}: expected letters, digits, '_', '.' and '-' only; choose another")


def _check_attributes(type: str, attributes: Mapping[str, int]) -> None:
    """Refuse values that the server would refuse or silently ignore, or that crash a real Toxiproxy."""
    if type not in TOXIC_TYPES:
        raise FaultProxyError(f"toxic type: saw {type!r}, expected one of {', '.join(TOXIC_TYPES)}; check its spelling")
    known = TOXIC_TYPES[type].attribute_names
    for attribute, value in attributes.items():
        if attribute not in known:
            expected = ", ".join(known) or "none"
            raise FaultProxyError(f"{type}: saw attribute {attribute!r}, expected {expected}; check its spelling")
        if isinstance(value, bool) or not isinstance(value, int):
            raise FaultProxyError(f"{type}: saw {attribute}={value!r}, expected an integer; round it")
    refusal = TOXIC_TYPES[type].refusal({**dict.fromkeys(known, 0), **attributes})
    if refusal is not None:
        raise FaultProxyError(f"{type}: saw {dict(attributes)}, but {refusal}; it would crash a real Toxiproxy")
