"""The claims file: TOML that names the balancer under test, how to run it, and its claims (see README).

An invalid file is a `ClaimsError` of one line: what was read, what was expected and, for a misspelt name, the most
similar valid names.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.claims.features import FEATURES, PROTOCOLS, Backoff, Claims, Feature
from harness.scenario.model import ClaimsError
from harness.scenario.validation import nearest, one_of


@dataclass(frozen=True, slots=True)
class RunSection:
    """`[run]`: how Steelyard starts, reloads and stops the balancer.

    `config` is a Jinja template (path relative to the claims file) with the variables `workdir, host, port, admin_port,
    backends[] (id, host, port, weight, draining), off[]`; in the commands `{config}`, `{workdir}` and `{port}` are
    replaced. `check` runs before `start`; its exit status says whether the configuration is valid. `switches` names
    the features that the template omits when they are in `off`.
    """

    config: str
    start: tuple[str, ...]
    reload: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    check: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimsFile:
    """A validated claims file. `folder`: its folder, the base of relative paths."""

    folder: Path
    name: str
    version: str
    claims: Claims
    url: str | None = None
    python: str | None = None
    correlate: tuple[str, ...] = ("header:x-request-id", "json:seed", "prompt-suffix")
    listen: tuple[str, ...] = ()
    health_path: str = "/health"
    run: RunSection | None = None


CORRELATE = re.compile(r"^(header:x-request-id|header:x-mock-tag|json:seed|prompt-suffix)$")
URL = re.compile(r"http://(?:127\.0\.0\.1|localhost):([0-9]+)/?")
MOST_LISTEN = 28
"""Limit of `listen` addresses: each needs a backend on a port of the run's block, which has this many."""

_BALANCER_KEYS = ("name", "version", "url", "protocol", "correlate", "python")
_BACKENDS_KEYS = ("listen", "health_path")
_RUN_KEYS = ("config", "check", "start", "reload", "switches")


def claims_file(path: Path) -> ClaimsFile:
    """Read and validate the claims file at `path`. ClaimsError: one line on the first error found."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ClaimsError(f"{path}: cannot be read ({error}); expected a claims file in TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise ClaimsError(f"{path}: not valid TOML: {error}") from None
    try:
        return _checked(path, document)
    except ValueError as error:
        raise ClaimsError(f"{path}: {error}") from None


def _checked(path: Path, document: dict[str, Any]) -> ClaimsFile:
    _known(document, ("balancer", "backends", "run", "claims"), "table")
    balancer = _table(document, "balancer", _BALANCER_KEYS)
    backends = _table(document, "backends", _BACKENDS_KEYS)
    run = _run_section(document)
    url, python = _text(balancer, "url"), _text(balancer, "python")
    if not (url or python or run):
        raise ValueError("nothing to test: [balancer] needs url or python, or a [run] table says how to start it")
    port = _port_of(url) if url else None
    protocol = _text(balancer, "protocol") or "http"
    one_of(protocol, "[balancer] protocol", PROTOCOLS)
    listen = _listen_addresses(backends, port)
    if url and not python and not run and not listen:
        raise ValueError('[backends] listen = ["127.0.0.1:9001", ...] must name the addresses your balancer uses')
    health_path = _text(backends, "health_path") or "/health"
    if not health_path.startswith("/"):
        raise ValueError(f"[backends] health_path {health_path!r}: expected a path such as /health")
    correlate = _texts(balancer, "correlate", "[balancer] ") or ("header:x-request-id", "json:seed", "prompt-suffix")
    for carrier in correlate:
        if not CORRELATE.match(carrier):
            raise ValueError(
                f"[balancer] correlate: {carrier!r} expected header:x-request-id, json:seed or prompt-suffix"
            )
    members = run is not None and bool(run.reload)
    claims = Claims(
        features=features_of(document.get("claims", {})),
        fixed_backends=len(listen) or None,
        can_join=members or bool(python),
        can_reload=members,
        protocol=protocol,
    )
    return ClaimsFile(
        folder=path.resolve().parent,
        name=_text(balancer, "name") or path.stem,
        version=_text(balancer, "version") or "unknown",
        claims=claims,
        url=url.rstrip("/") if url else None,
        python=python,
        correlate=correlate,
        listen=listen,
        health_path=health_path,
        run=run,
    )


def features_of(tables: object) -> tuple[Feature, ...]:
    """The features under `[claims]`; ValueError names the invalid table and key, or says that none is claimed."""
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError("claims nothing; add at least one table such as [claims.affinity]")
    _known(tables, tuple(FEATURES), "[claims.*] table")
    return tuple(_feature(name, table) for name, table in sorted(tables.items()))


def _feature(name: str, table: object) -> Feature:
    from pydantic import TypeAdapter, ValidationError

    cls = FEATURES[name]
    if not isinstance(table, Mapping):
        raise ValueError(f"[claims.{name}]: saw {table!r}, expected a table of settings")
    _known(table, tuple(item.name for item in dataclasses.fields(cls)), f"[claims.{name}] key")
    backoff = table.get("backoff")
    if isinstance(backoff, Mapping):
        _known(backoff, tuple(item.name for item in dataclasses.fields(Backoff)), f"[claims.{name}.backoff] key")
    try:
        # As JSON: strict Python mode accepts no table for a dataclass, lax mode accepts true for 1 and "5" for 5.
        return TypeAdapter(cls).validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"[claims.{name}]{' ' + where if where else ''}: saw {first['input']!r}: {message}") from None


def _run_section(document: Mapping[str, Any]) -> RunSection | None:
    if "run" not in document:
        return None
    run = _table(document, "run", _RUN_KEYS)
    config = _text(run, "config")
    if not config or not run.get("start"):
        raise ValueError("[run] needs config (a template) and start (a command as a list of words)")
    switches = _texts(run, "switches", "[run] ")
    for name in switches:
        one_of(name, "[run] switches", tuple(FEATURES))
    check, start, reload = (_texts(run, name, "[run] ") for name in ("check", "start", "reload"))
    return RunSection(config, start, reload, switches, check)


def _port_of(url: str) -> int:
    found = URL.fullmatch(url)
    if not found:
        raise ValueError(f"[balancer] url {url!r}: expected http://127.0.0.1:PORT; load is sent to this machine only")
    if not 0 < int(found[1]) < 65536:
        raise ValueError(f"[balancer] url {url!r}: expected http://127.0.0.1:PORT with a port from 1 to 65535")
    return int(found[1])


def _listen_addresses(backends: Mapping[str, Any], balancer_port: int | None) -> tuple[str, ...]:
    listen = _texts(backends, "listen", "[backends] ")
    if len(listen) > MOST_LISTEN:
        raise ValueError(f"[backends] listen names {len(listen)} addresses; a run has ports for {MOST_LISTEN} backends")
    for address in listen:
        _, port = address_of(address)
        if listen.count(address) > 1:
            raise ValueError(f"[backends] listen names {address} twice; each backend needs an address of its own")
        if port == balancer_port:
            raise ValueError(f"[backends] listen names {address}, but [balancer] url has that port; choose another")
    return listen


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


def _known(table: Mapping[str, Any], valid: tuple[str, ...], what: str) -> None:
    for name in table:
        if name not in valid:
            raise ValueError(f"unknown {what} {name!r}; {nearest(name, valid)}")


def _table(document: Mapping[str, Any], name: str, valid: tuple[str, ...]) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"[{name}]: saw {table!r}, expected a table")
    _known(table, valid, f"[{name}] key")
    return table


def _text(table: Mapping[str, Any], name: str) -> str | None:
    value = table.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}: saw {value!r}, expected text")
    return value


def _texts(table: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{where}{name}: saw {value!r}, expected a list of texts")
    return tuple(value)
