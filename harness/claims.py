"""What a target says it does, with its numbers: one frozen class per feature, and the claims file that lists them.

A claims file is TOML (see README and `claims_file` below). Everything wrong with one is a `ClaimsError` of one line
that says what was seen, what was expected and, for a misspelt name, which valid names are nearest.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from harness.model import ClaimsError, UnsupportedError

CARRIER = re.compile(r"^(header:[A-Za-z0-9-]+|json:[A-Za-z0-9_.]+|prompt-prefix:[0-9]+|session|cookie:[\w-]+)$")
CORRELATE = re.compile(r"^(header:x-request-id|header:x-mock-tag|json:seed|prompt-suffix)$")
URL = re.compile(r"^https?://[^/\s]+/?$")
PROTOCOLS = ("http", "openai")


@dataclass(frozen=True, slots=True)
class Feature:
    """Base of all claims. `table` is the claim's name in a claims file and in `off` lists."""

    table: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Affinity(Feature):
    """Requests with equal keys go to the same backend.

    `key`: where the key travels, one of `header:NAME`, `json:PATH`, `prompt-prefix:N` (characters), `session` (header
    x-session-id), `cookie:NAME`. `algorithm`: ring, maglev, rendezvous, jump or any. `virtual_nodes`: ring points of
    a backend of weight 1.
    """

    table: ClassVar[str] = "affinity"
    key: str = "header:x-model-id"
    algorithm: str = "ring"
    virtual_nodes: int = 150

    def __post_init__(self) -> None:
        if not CARRIER.match(self.key):
            raise ValueError(
                f"key {self.key!r} is none of header:NAME, json:PATH, prompt-prefix:N, session, cookie:NAME"
            )
        _one_of(self.algorithm, "algorithm", ("ring", "maglev", "rendezvous", "jump", "any"))
        _positive(self, "virtual_nodes")

    @property
    def names_model(self) -> bool:
        """Whether the key is the model itself, so that affinity keeps models resident."""
        return self.key in ("header:x-model-id", "json:model")


@dataclass(frozen=True, slots=True)
class Spread(Feature):
    """Updates (`POST /v1/updates`, no key) are spread over all backends.

    `policy`: round_robin, random, two_choices or least_connections. `workers`: processes or threads of the balancer
    that count on their own; with round robin each may be off by one.
    """

    table: ClassVar[str] = "spread"
    policy: str = "round_robin"
    workers: int = 1

    def __post_init__(self) -> None:
        _one_of(self.policy, "policy", ("round_robin", "random", "two_choices", "least_connections"))
        _positive(self, "workers")


@dataclass(frozen=True, slots=True)
class Failover(Feature):
    """After a backend died, no request sent more than `within_s` later is lost."""

    table: ClassVar[str] = "failover"
    within_s: float = 5.0

    def __post_init__(self) -> None:
        _positive(self, "within_s")


@dataclass(frozen=True, slots=True)
class Ejection(Feature):
    """Passive ejection: after `failures` failed attempts in a row a backend gets nothing for `open_s`."""

    table: ClassVar[str] = "ejection"
    failures: int = 3
    open_s: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "failures", "open_s")


@dataclass(frozen=True, slots=True)
class HealthChecks(Feature):
    """Active checks: every `interval_s`, out after `unhealthy` failures in a row, back after `healthy` successes."""

    table: ClassVar[str] = "health_checks"
    interval_s: float = 0.5
    timeout_s: float = 1.0
    unhealthy: int = 2
    healthy: int = 1

    def __post_init__(self) -> None:
        _positive(self, "interval_s", "timeout_s", "unhealthy", "healthy")


@dataclass(frozen=True, slots=True)
class Retry(Feature):
    """A failed attempt may be followed by others, `attempts` in all."""

    table: ClassVar[str] = "retry"
    attempts: int = 2

    def __post_init__(self) -> None:
        _positive(self, "attempts")


@dataclass(frozen=True, slots=True)
class Hedge(Feature):
    """A slow attempt is joined by a second one on another backend; at most `share` of the requests."""

    table: ClassVar[str] = "hedge"
    quantile: float = 0.95
    share: float = 0.05

    def __post_init__(self) -> None:
        _positive(self, "quantile", "share")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growth of a breaker's open time: times `multiplier` up to `max_s`, each within ± `jitter` of itself."""

    multiplier: float = 1.0
    max_s: float = 60.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, "multiplier", "max_s")


@dataclass(frozen=True, slots=True)
class Breaker(Feature):
    """A circuit breaker per backend: opens after `failures` in a row for `open_s`, then `probes` at a time."""

    table: ClassVar[str] = "breaker"
    failures: int = 5
    open_s: float = 2.0
    probes: int = 1
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        _positive(self, "failures", "open_s", "probes")


FEATURES: dict[str, type[Feature]] = {
    cls.table: cls for cls in (Affinity, Breaker, Ejection, Failover, HealthChecks, Hedge, Retry, Spread)
}

AnyFeature = TypeVar("AnyFeature", bound=Feature)


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims of a target, and the fleet that it can be given.

    `fixed_backends`: the number of backends if it can't be chosen. `can_join`: whether backends can leave and join
    while it runs. `protocol`: "http" (any path passes) or "openai" (only OpenAI's routes do).
    """

    features: tuple[Feature, ...] = ()
    fixed_backends: int | None = None
    can_join: bool = True
    can_reload: bool = True
    protocol: str = "http"

    def __getitem__(self, cls: type[AnyFeature]) -> AnyFeature:
        for feature in self.features:
            if isinstance(feature, cls):
                return feature
        raise KeyError(f"{cls.__name__} is not claimed")

    def __contains__(self, cls: object) -> bool:
        return any(type(feature) is cls for feature in self.features)

    @property
    def names(self) -> tuple[str, ...]:
        """Table names of the claimed features, sorted."""
        return tuple(sorted(feature.table for feature in self.features))

    def fleet(self, want: int, at_least: int = 2) -> int:
        """Number of backends for a scenario that would like `want`; UnsupportedError below `at_least`."""
        count = want if self.fixed_backends is None else min(want, self.fixed_backends)
        if count < at_least:
            raise UnsupportedError(f"needs {at_least} backends")
        if self.fixed_backends is not None:
            return self.fixed_backends
        return count

    def need_membership(self) -> None:
        """UnsupportedError unless backends can leave and join while the target runs."""
        if not self.can_join:
            raise UnsupportedError("cannot change membership")


# --- the claims file --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunSection:
    """`[run]`: how Steelyard starts, reloads and stops the balancer.

    `config` is a Jinja template (path relative to the claims file) that is given `workdir, host, port, admin_port,
    backends[] (id, host, port, weight), off[]`; `{config}`, `{workdir}` and `{port}` are filled in in `start` and
    `reload`. `switches` names the features that the template leaves out when they stand in `off`.
    """

    config: str
    start: tuple[str, ...]
    reload: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimsFile:
    """A whole claims file, checked. `folder` is where it lies, for paths relative to it."""

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


_BALANCER_KEYS = ("name", "version", "url", "protocol", "correlate", "python")
_BACKENDS_KEYS = ("listen", "health_path")
_RUN_KEYS = ("config", "start", "reload", "switches")


def claims_file(path: Path) -> ClaimsFile:
    """Read and check the claims file at `path`. ClaimsError: one line on whatever is wrong with it."""
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
    if url and not URL.match(url):
        raise ValueError(f"[balancer] url {url!r}: expected http://HOST:PORT, such as http://127.0.0.1:8080")
    protocol = _text(balancer, "protocol") or "http"
    _one_of(protocol, "[balancer] protocol", PROTOCOLS)
    listen = _texts(backends, "listen", "[backends] ")
    for address in listen:
        address_of(address)
    if url and not python and not run and not listen:
        raise ValueError('[backends] listen = ["127.0.0.1:9001", ...] must name the addresses your balancer uses')
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
        url=url,
        python=python,
        correlate=correlate,
        listen=listen,
        health_path=_text(backends, "health_path") or "/health",
        run=run,
    )


def features_of(tables: object) -> tuple[Feature, ...]:
    """The features under `[claims]`; ValueError names the table and key that is wrong, or says none is claimed."""
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
        # As JSON, because strict Python would take no table for a dataclass; lax takes true for 1 and "5" for 5.
        return TypeAdapter(cls).validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        told = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"[claims.{name}]{' ' + where if where else ''}: saw {first['input']!r}: {told}") from None


def _run_section(document: Mapping[str, Any]) -> RunSection | None:
    if "run" not in document:
        return None
    run = _table(document, "run", _RUN_KEYS)
    config = _text(run, "config")
    if not config or not run.get("start"):
        raise ValueError("[run] needs config (a template) and start (a command as a list of words)")
    switches = _texts(run, "switches", "[run] ")
    for name in switches:
        _one_of(name, "[run] switches", tuple(FEATURES))
    return RunSection(config, _texts(run, "start", "[run] "), _texts(run, "reload", "[run] "), switches)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; ValueError otherwise. Only loopback addresses are taken."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address {text!r}: expected HOST:PORT such as 127.0.0.1:9001")
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        raise ValueError(f"address {text!r}: mock backends listen on this machine only; use 127.0.0.1:{port}")
    return host, int(port)


# --- small checks, each with its one-line error -----------------------------------------------------------


def nearest(name: str, valid: Iterable[str]) -> str:
    """ "; did you mean x or y?" for a misspelt name, or the list of valid ones when none is near."""
    options = sorted(valid)
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"valid: {', '.join(options)}"


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


def _one_of(value: str, what: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ValueError(f"{what} {value!r} is unknown; {nearest(value, valid)}")


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not value > 0:
            raise ValueError(f"{name} must be above 0, not {value}")
