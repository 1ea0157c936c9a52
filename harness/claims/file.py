"""The claims file: TOML that names the balancer under test, how to run it, and its claims (see README).

An invalid file is a `ClaimsError` of one line: what was read, what was expected and, for a misspelt name, the most
similar valid names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from harness.claims.features import FEATURES, PROTOCOLS, Claims, Feature
from harness.scenario.model import ClaimsError
from harness.scenario.reading import among, read, shown, toml_in
from harness.scenario.validation import nearest

URL = re.compile(r"http://(?:127\.0\.0\.1|localhost):([0-9]+)/?")
CORRELATE = ("header:x-request-id", "json:seed", "prompt-suffix")
MOST_LISTEN = 28
"""Limit of `listen` addresses: each needs a backend on a port of the run's block, which has this many."""


def _local(url: str) -> str:
    _port_of(url)
    return url.rstrip("/")


def _address(text: str) -> str:
    address_of(text)
    return text


Command = tuple[str, ...]
Carrier = Annotated[str, among(("header:x-mock-tag", *CORRELATE))]
ListenAddress = Annotated[str, AfterValidator(_address)]


# --- the tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BalancerTable:
    """`[balancer]`: see README."""

    name: str | None = None
    version: str = "unknown"
    url: Annotated[str, AfterValidator(_local)] | None = None
    protocol: Annotated[str, among(PROTOCOLS)] = "http"
    correlate: tuple[Carrier, ...] = CORRELATE
    python: str | None = None


@dataclass(frozen=True, slots=True)
class BackendsTable:
    """`[backends]`: the addresses that a running balancer uses, and the route of its health checks."""

    listen: Annotated[tuple[ListenAddress, ...], Field(max_length=MOST_LISTEN)] = ()
    health_path: Annotated[str, Field(pattern="^/")] = "/health"


@dataclass(frozen=True, slots=True)
class RunSection:
    """`[run]`: how Steelyard starts, reloads and stops the balancer.

    `config` is a Jinja template (path relative to the claims file) with the variables `workdir, host, port, admin_port,
    backends[] (id, host, port, weight, draining), off[]`; in the commands `{config}`, `{workdir}`, `{host}`, `{port}`
    and `{admin_port}` are replaced. `check` runs before `start`; its exit status says whether the configuration is
    valid. `switches` names the features that the template omits when they are in `off`.
    """

    config: Annotated[str, Field(min_length=1)]
    start: Annotated[Command, Field(min_length=1)]
    reload: Command = ()
    switches: tuple[Annotated[str, among(FEATURES)], ...] = ()
    check: Command = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A whole file; the tables of `claims` are read one by one."""

    balancer: BalancerTable = field(default_factory=BalancerTable)
    backends: BackendsTable = field(default_factory=BackendsTable)
    run: RunSection | None = None
    claims: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimsFile:
    """A validated claims file. `folder`: its folder, the base of relative paths."""

    folder: Path
    name: str
    version: str
    claims: Claims
    url: str | None = None
    python: str | None = None
    correlate: tuple[str, ...] = CORRELATE
    listen: tuple[str, ...] = ()
    health_path: str = "/health"
    run: RunSection | None = None


# --- reading ----------------------------------------------------------------------------------------------


def claims_file(path: Path) -> ClaimsFile:
    """Read and validate the claims file at `path`. ClaimsError: one line on the first error found."""
    try:
        return _checked(path, read(Document, toml_in(path, "a claims file")))
    except ValueError as error:
        raise ClaimsError(f"{path}: {error}") from None


def _checked(path: Path, document: Document) -> ClaimsFile:
    balancer, backends, run = document.balancer, document.backends, document.run
    if not (balancer.url or balancer.python or run):
        raise ValueError("nothing to test: [balancer] needs url or python, or a [run] table says how to start it")
    if balancer.url and not balancer.python and not run and not backends.listen:
        raise ValueError('[backends] listen = ["127.0.0.1:9001", ...] must name the addresses your balancer uses')
    _check_distinct(backends.listen, balancer.url)
    members = run is not None and bool(run.reload)
    claims = Claims(
        features=features_of(document.claims),
        fixed_backends=len(backends.listen) or None,
        can_join=members or bool(balancer.python),
        can_reload=members,
        protocol=balancer.protocol,
    )
    return ClaimsFile(
        folder=path.resolve().parent,
        name=balancer.name or path.stem,
        version=balancer.version,
        claims=claims,
        url=balancer.url,
        python=balancer.python,
        correlate=balancer.correlate or CORRELATE,
        listen=backends.listen,
        health_path=backends.health_path,
        run=run,
    )


def features_of(tables: Mapping[str, Any]) -> tuple[Feature, ...]:
    """The features under `[claims]`; ValueError names the invalid table and key, or says that none is claimed."""
    if not tables:
        raise ValueError("claims nothing; add at least one table such as [claims.affinity]")
    for name in tables:
        if name not in FEATURES:
            raise ValueError(f"claims.{name} is unknown; {nearest(name, FEATURES)}")
    return tuple(read(FEATURES[name], table, f"claims.{name}") for name, table in sorted(tables.items()))


# --- addresses --------------------------------------------------------------------------------------------


def _port_of(url: str) -> int:
    found = URL.fullmatch(url)
    if not found:
        raise ValueError(f"saw {shown(url)}, expected http://127.0.0.1:PORT; load is sent to this machine only")
    if not 0 < int(found[1]) < 65536:
        raise ValueError(f"saw {shown(url)}, expected http://127.0.0.1:PORT with a port from 1 to 65535")
    return int(found[1])


def _check_distinct(listen: tuple[str, ...], url: str | None) -> None:
    for address in listen:
        if listen.count(address) > 1:
            raise ValueError(f"backends.listen names {address} twice; each backend needs an address of its own")
        if url and address_of(address)[1] == _port_of(url):
            raise ValueError(f"backends.listen names {address}, but balancer.url has that port; choose another")


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; ValueError otherwise. Only IPv4 loopback addresses are accepted.

    IPv6 is rejected because fault probes use IPv4: every fault there would count as effective, whether it was or not.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address {text!r}: expected HOST:PORT such as 127.0.0.1:9001")
    if host == "[::1]":
        raise ValueError(f"address {text!r}: mock backends listen on IPv4 only; use 127.0.0.1:{port}")
    if host not in ("127.0.0.1", "localhost"):
        raise ValueError(f"address {text!r}: mock backends listen on this machine only; use 127.0.0.1:{port}")
    return host, int(port)
