"""What a target says it does, with its numbers: one frozen class per feature.

A claim that makes no sense is a ValueError of one line; harness.claims.file reads claims from a file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from harness.scenario.model import UnsupportedError

PROTOCOLS = ("http", "openai", "chat", "kserve")
"""How requests are put: any path, OpenAI's completions, its chat completions, KServe's open inference protocol v2."""

CARRIER = re.compile(r"^(header:[A-Za-z0-9-]+|json:[A-Za-z0-9_.]+|prompt-prefix:[0-9]+|session|cookie:[\w-]+)$")
MODEL_CARRIERS = ("header:x-model-id", "json:model")
"""Keys that are the model itself."""

SPREAD_POLICIES = (
    "round_robin",
    "weighted_round_robin",
    "random",
    "weighted_random",
    "least_connections",
    "two_choices",
    "ewma",
)
"""Ways to pick a backend for what has no key. `ewma`: the cheaper of two by recent latency times requests in flight."""


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
        one_of(self.algorithm, "algorithm", ("ring", "maglev", "rendezvous", "jump", "any"))
        _positive(self, "virtual_nodes")

    @property
    def names_model(self) -> bool:
        """Whether the key is the model itself, so that affinity keeps models resident."""
        return self.key in MODEL_CARRIERS


@dataclass(frozen=True, slots=True)
class Spread(Feature):
    """Updates (`POST /v1/updates`, no key) are spread over all backends.

    `policy`: one of `SPREAD_POLICIES`; the weighted ones are judged where all weights are equal. `workers`: processes
    or threads of the balancer that count on their own; with a policy that takes turns each may be off by one.
    """

    table: ClassVar[str] = "spread"
    policy: str = "round_robin"
    workers: int = 1

    def __post_init__(self) -> None:
        one_of(self.policy, "policy", SPREAD_POLICIES)
        _positive(self, "workers")

    @property
    def takes_turns(self) -> bool:
        """Whether equal backends get the same to one request, and not by chance."""
        return self.policy in ("round_robin", "weighted_round_robin")

    @property
    def weighs(self) -> bool:
        """Whether weights, and what changes them, change the shares."""
        return self.policy.startswith("weighted_")

    @property
    def minds_load(self) -> bool:
        """Whether a backend with more in flight than the others is picked less."""
        return self.policy in ("least_connections", "two_choices", "ewma")


@dataclass(frozen=True, slots=True)
class Failover(Feature):
    """After a backend died, no request sent more than `within_s` later is lost."""

    table: ClassVar[str] = "failover"
    within_s: float = 5.0

    def __post_init__(self) -> None:
        _positive(self, "within_s")


@dataclass(frozen=True, slots=True)
class Ejection(Feature):
    """Passive ejection: after `failures` failed attempts in a row a backend gets nothing for `open_s`.

    `statuses`: answers that count as failures, besides connections that fail. Of the backends at most `cap_share`
    (above 0, up to 1) are out at once, but one always may be; None: not claimed.
    """

    table: ClassVar[str] = "ejection"
    failures: int = 3
    open_s: float = 1.0
    statuses: tuple[int, ...] = ()
    cap_share: float | None = None

    def __post_init__(self) -> None:
        _positive(self, "failures", "open_s")
        if self.cap_share is not None and not 0 < self.cap_share <= 1:
            raise ValueError(f"cap_share must be above 0 and at most 1, not {self.cap_share}")

    def most_out(self, backends: int) -> int:
        """Most of so many backends that may be out at once."""
        return backends if self.cap_share is None else max(1, int(self.cap_share * backends + 1e-9))


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
class BoundedLoad(Feature):
    """No backend has more than ceil(factor × all in flight ÷ backends) requests in flight; the rest spill over."""

    table: ClassVar[str] = "bounded_load"
    factor: float = 1.25

    def __post_init__(self) -> None:
        _positive(self, "factor")


@dataclass(frozen=True, slots=True)
class Retry(Feature):
    """A failed attempt may be followed by others, `attempts` in all, on another backend first.

    `statuses`: answers that are tried again, besides connection failures; time limits only with `on_timeout`. Retries
    that a backend sees in any `budget_window_s` are at most `budget_share` of the fresh requests of that time plus
    `budget_floor`; None: no budget is claimed. `deadline_s` bounds all attempts of a request together.
    """

    table: ClassVar[str] = "retry"
    attempts: int = 2
    statuses: tuple[int, ...] = ()
    on_timeout: bool = False
    budget_share: float | None = None
    budget_floor: int = 10
    budget_window_s: float = 1.0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        _positive(self, "attempts", "budget_window_s")


@dataclass(frozen=True, slots=True)
class Hedge(Feature):
    """A slow inference is joined by a second attempt on another backend; at most `share` of the requests.

    The delay is the `quantile` of the model's recent latencies, known after `minimum` of them; `window` are kept.
    A quiet spell saves up `burst` hedges at most. Nothing is hedged with more than `load_threshold` requests inside for
    each backend, on average. None: neither is claimed, and overload is what any balancer must take for one.
    """

    table: ClassVar[str] = "hedge"
    quantile: float = 0.95
    share: float = 0.05
    window: int = 200
    minimum: int = 40
    burst: int | None = None
    load_threshold: float | None = None

    def __post_init__(self) -> None:
        _positive(self, "quantile", "share", "window", "minimum")
        for name in ("burst", "load_threshold"):
            if getattr(self, name) is not None:
                _positive(self, name)


@dataclass(frozen=True, slots=True)
class HealthShare(Feature):
    """Updates are shared out in proportion to a health score, where no policy of Spread is on.

    Score = errors × (1 − error rate) + latency × min(1, baseline p99 ÷ p99) + memory × (free + evictable) ÷ total +
    connections × (1 up to `free_connections` active ones, then falling to 0 over the next `connection_span`), over
    `window_s`; with fewer than `minimum_calls` calls, or without a report, a part counts as whole. `baseline_p99_s`
    None: the fleet's median.
    """

    table: ClassVar[str] = "health_share"
    errors: float = 0.4
    latency: float = 0.3
    memory: float = 0.2
    connections: float = 0.1
    window_s: float = 10.0
    minimum_calls: int = 20
    baseline_p99_s: float | None = None
    free_connections: int = 100
    connection_span: int = 500

    def __post_init__(self) -> None:
        _positive(self, "window_s", "minimum_calls", "connection_span")


@dataclass(frozen=True, slots=True)
class Limits(Feature):
    """What is too much is refused with 429 or 503, at once. Off in all other properties, which cannot be judged else.

    In any time t at most `burst` + `rate_per_s` × t requests are let in (None: no rate is claimed). At most
    `concurrency` are let in and not ended (None: any number), and up to `queue` more wait for that. `by_urgency`: those
    that wait go by x-urgency (critical, high, normal), and one of a higher takes the place of one of the lowest.
    """

    table: ClassVar[str] = "limits"
    rate_per_s: float | None = 100.0
    burst: int = 10
    concurrency: int | None = None
    queue: int = 0
    by_urgency: bool = False

    def __post_init__(self) -> None:
        _positive(self, "burst")
        for name in ("rate_per_s", "concurrency"):
            if getattr(self, name) is not None:
                _positive(self, name)
        if self.queue < 0:
            raise ValueError(f"queue must be 0 or more, not {self.queue}")
        if self.rate_per_s is None and self.concurrency is None:
            raise ValueError("neither rate_per_s nor concurrency: expected one at least")


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
    """A circuit breaker per backend: opens for `open_s`, then lets through `probes` at a time.

    It opens after `failures` in a row, at `error_rate` over `window_s` from `minimum_calls` calls on, or when the
    window's p99 exceeds `slow_p99_s`; None: not by that. `successes` good probes close it.
    """

    table: ClassVar[str] = "breaker"
    failures: int | None = 5
    error_rate: float | None = None
    minimum_calls: int = 20
    window_s: float = 10.0
    slow_p99_s: float | None = None
    open_s: float = 2.0
    probes: int = 1
    successes: int = 1
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        _positive(self, "open_s", "probes", "successes", "minimum_calls", "window_s")
        for name in ("failures", "error_rate", "slow_p99_s"):
            if getattr(self, name) is not None:
                _positive(self, name)

    @property
    def shortest_open_s(self) -> float:
        """The shortest that a first open time can be."""
        return min(self.open_s, self.backoff.max_s) * (1 - self.backoff.jitter)


FEATURES: dict[str, type[Feature]] = {
    cls.table: cls
    for cls in (
        Affinity,
        BoundedLoad,
        Breaker,
        Ejection,
        Failover,
        HealthChecks,
        HealthShare,
        Hedge,
        Limits,
        Retry,
        Spread,
    )
}

AnyFeature = TypeVar("AnyFeature", bound=Feature)


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims of a target, and the fleet that it can be given.

    `fixed_backends`: the number of backends if it can't be chosen. `can_join`: whether backends can leave and join
    while it runs. `protocol`: "http" (any path passes), "openai", "chat" or "kserve" (only that route does).
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

    @property
    def key_carrier(self) -> str:
        """Where the affinity key travels; the header of the model where no affinity is claimed."""
        return self[Affinity].key if Affinity in self else MODEL_CARRIERS[0]

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


# --- small checks, each with its one-line error -----------------------------------------------------------


def nearest(name: str, valid: Iterable[str]) -> str:
    """ "; did you mean x or y?" for a misspelt name, or the list of valid ones when none is near."""
    options = sorted(valid)
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"valid: {', '.join(options)}"


def one_of(value: str, what: str, valid: tuple[str, ...]) -> None:
    """ValueError with the nearest valid names unless `value` is one of them."""
    if value not in valid:
        raise ValueError(f"{what} {value!r} is unknown; {nearest(value, valid)}")


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not value > 0:
            raise ValueError(f"{name} must be above 0, not {value}")
