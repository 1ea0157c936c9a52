"""Claims: what a target promises, with its numbers, as one frozen class per feature.

Invalid settings raise a ValueError of one line. `harness.claims.file` reads claims from a file.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from harness.claims.breaker import Backoff as Backoff
from harness.claims.breaker import Breaker as Breaker
from harness.claims.feature import Feature as Feature
from harness.scenario.model import UnsupportedError
from harness.scenario.validation import one_of, positive

PROTOCOLS = ("http", "openai", "chat", "kserve")
"""Form of requests: any path, OpenAI completions, OpenAI chat completions, KServe open inference protocol v2."""

CARRIER = re.compile(r"^(header:[A-Za-z0-9-]+|json:[A-Za-z0-9_.]+|prompt-prefix:[0-9]+|session|cookie:[\w-]+)$")
MODEL_CARRIERS = ("header:x-model-id", "json:model")
"""Key carriers whose key is the model name."""

SPREAD_POLICIES = (
    "round_robin",
    "weighted_round_robin",
    "random",
    "weighted_random",
    "least_connections",
    "two_choices",
    "ewma",
)
"""Policies for requests without a key. `ewma`: of two backends the lower recent latency × requests in flight."""


@dataclass(frozen=True, slots=True)
class Affinity(Feature):
    """Requests with equal keys go to the same backend.

    `key`: where the key is sent: `header:NAME`, `json:PATH`, `prompt-prefix:N` (characters), `session` (header
    x-session-id) or `cookie:NAME`. `algorithm`: ring, maglev, rendezvous, jump or any. `virtual_nodes`: ring points
    of a backend of weight 1.

    >>> Affinity(key="json:model", algorithm="maglev").key_is_model
    True
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
        positive(self, "virtual_nodes")

    @property
    def key_is_model(self) -> bool:
        """Whether the key is the model name, so that affinity keeps models resident."""
        return self.key in MODEL_CARRIERS


@dataclass(frozen=True, slots=True)
class Spread(Feature):
    """Updates (`POST /v1/updates`, no key) are spread over all backends.

    `policy`: one of `SPREAD_POLICIES`; weighted ones are judged with equal weights. `workers`: processes or threads
    of the balancer with counters of their own; with round robin each may be off by one.

    >>> Spread(policy="least_connections").is_load_aware
    True
    """

    table: ClassVar[str] = "spread"
    policy: str = "round_robin"
    workers: int = 1

    def __post_init__(self) -> None:
        one_of(self.policy, "policy", SPREAD_POLICIES)
        positive(self, "workers")

    @property
    def is_round_robin(self) -> bool:
        """Whether equal backends get equal numbers of requests, within one request, deterministically."""
        return self.policy in ("round_robin", "weighted_round_robin")

    @property
    def is_weighted(self) -> bool:
        """Whether weights, and mechanisms that change them, change the shares."""
        return self.policy.startswith("weighted_")

    @property
    def is_load_aware(self) -> bool:
        """Whether a backend with more requests in flight than the others is picked less often."""
        return self.policy in ("least_connections", "two_choices", "ewma")


@dataclass(frozen=True, slots=True)
class Failover(Feature):
    """After a backend's death, no request sent more than `within_s` later is lost.

    >>> Failover(within_s=2.5)
    Failover(within_s=2.5)
    """

    table: ClassVar[str] = "failover"
    within_s: float = 5.0

    def __post_init__(self) -> None:
        positive(self, "within_s")


@dataclass(frozen=True, slots=True)
class Ejection(Feature):
    """Passive ejection: after `failures` consecutive failed attempts a backend gets no requests for `open_s`.

    `statuses`: answers that count as failures, besides connection failures. At most `cap_share` (above 0, up to 1) of
    the backends are ejected at once, but always at least one may be; None: not claimed.

    >>> Ejection(failures=5, open_s=30.0, cap_share=0.5).most_ejected(backends=5)
    2
    """

    table: ClassVar[str] = "ejection"
    failures: int = 3
    open_s: float = 1.0
    statuses: tuple[int, ...] = ()
    cap_share: float | None = None

    def __post_init__(self) -> None:
        positive(self, "failures", "open_s")
        if self.cap_share is not None and not 0 < self.cap_share <= 1:
            raise ValueError(f"cap_share must be above 0 and at most 1, not {self.cap_share}")

    def most_ejected(self, backends: int) -> int:
        """Largest number of `backends` that may be ejected at once."""
        return backends if self.cap_share is None else max(1, int(self.cap_share * backends + 1e-9))


@dataclass(frozen=True, slots=True)
class HealthChecks(Feature):
    """Active health checks every `interval_s`: out after `unhealthy` failures in a row, in after `healthy` successes.

    >>> HealthChecks(interval_s=1.0, unhealthy=3)
    HealthChecks(interval_s=1.0, timeout_s=1.0, unhealthy=3, healthy=1)
    """

    table: ClassVar[str] = "health_checks"
    interval_s: float = 0.5
    timeout_s: float = 1.0
    unhealthy: int = 2
    healthy: int = 1

    def __post_init__(self) -> None:
        positive(self, "interval_s", "timeout_s", "unhealthy", "healthy")


@dataclass(frozen=True, slots=True)
class BoundedLoad(Feature):
    """No backend has more than ceil(factor × all in flight ÷ backends) requests in flight; others go elsewhere.

    >>> BoundedLoad(factor=1.5)
    BoundedLoad(factor=1.5)
    """

    table: ClassVar[str] = "bounded_load"
    factor: float = 1.25

    def __post_init__(self) -> None:
        positive(self, "factor")


@dataclass(frozen=True, slots=True)
class Retry(Feature):
    """A failed attempt is retried, up to `attempts` in all, on another backend first.

    `statuses`: answers that are retried, besides connection failures; timeouts only with `on_timeout`. Retries at a
    backend in any `budget_window_s` are at most `budget_share` of the first attempts of that time plus `budget_floor`;
    None: no budget is claimed. `deadline_s` limits all attempts of a request together.

    >>> Retry(attempts=3, statuses=(502, 503), budget_share=0.2).budget_floor
    10
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
        positive(self, "attempts", "budget_window_s")


@dataclass(frozen=True, slots=True)
class Hedge(Feature):
    """A slow inference gets a second attempt on another backend; at most a `share` of the requests is hedged.

    The delay is the `quantile` of the model's last `window` latencies, available after `minimum` of them. At most
    `burst` unused hedges accumulate. Nothing is hedged with more than `load_threshold` requests in flight per backend
    on average. None: not claimed; then only a load that any balancer must treat as overload counts.

    >>> Hedge(quantile=0.99, share=0.02).minimum
    40
    """

    table: ClassVar[str] = "hedge"
    quantile: float = 0.95
    share: float = 0.05
    window: int = 200
    minimum: int = 40
    burst: int | None = None
    load_threshold: float | None = None

    def __post_init__(self) -> None:
        positive(self, "quantile", "share", "window", "minimum")
        for name in ("burst", "load_threshold"):
            if getattr(self, name) is not None:
                positive(self, name)


@dataclass(frozen=True, slots=True)
class HealthShare(Feature):
    """Updates are distributed in proportion to a health score, where no policy of Spread is on.

    Score = errors × (1 − error rate) + latency × min(1, baseline p99 ÷ p99) + memory × (free + evictable) ÷ total +
    connections × (1 up to `free_connections` active ones, then falling to 0 over the next `connection_span`), over
    `window_s`. With fewer than `minimum_calls` calls, or without a report, a term counts in full. `baseline_p99_s`
    None: the fleet's median.

    >>> HealthShare(errors=0.7, latency=0.3, memory=0.0, connections=0.0).window_s
    10.0
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
        positive(self, "window_s", "minimum_calls", "connection_span")


@dataclass(frozen=True, slots=True)
class Limits(Feature):
    """Excess requests are rejected at once with 429 or 503. Off in all other properties, which need every answer.

    In any time t at most `burst` + `rate_per_s` × t requests are admitted (None: no rate is claimed). At most
    `concurrency` admitted requests are in flight (None: any number); up to `queue` more wait. `by_urgency`: the queue
    is ordered by x-urgency (critical, high, normal); a more urgent arrival displaces one of the least urgent.

    >>> Limits(rate_per_s=None, concurrency=64, queue=128, by_urgency=True).burst
    10
    """

    table: ClassVar[str] = "limits"
    rate_per_s: float | None = 100.0
    burst: int = 10
    concurrency: int | None = None
    queue: int = 0
    by_urgency: bool = False

    def __post_init__(self) -> None:
        positive(self, "burst")
        for name in ("rate_per_s", "concurrency"):
            if getattr(self, name) is not None:
                positive(self, name)
        if self.queue < 0:
            raise ValueError(f"queue must be 0 or more, not {self.queue}")
        if self.rate_per_s is None and self.concurrency is None:
            raise ValueError("neither rate_per_s nor concurrency: expected one at least")


_ALL = (Affinity, BoundedLoad, Breaker, Ejection, Failover, HealthChecks, HealthShare, Hedge, Limits, Retry, Spread)
FEATURES: dict[str, type[Feature]] = {cls.table: cls for cls in _ALL}
"""Every feature by its table name."""

AnyFeature = TypeVar("AnyFeature", bound=Feature)


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims of a target, and the limits of its fleet.

    `fixed_backends`: the number of backends if it cannot be chosen. `can_join`: backends can leave and join at run
    time. `protocol`: "http" (any path passes), "openai", "chat" or "kserve" (only that route passes).

    >>> claims = Claims((Affinity(), Retry(attempts=3)), fixed_backends=4)
    >>> Retry in claims, claims[Retry].attempts, claims.names, claims.fleet(8)
    (True, 3, ('affinity', 'retry'), 4)
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

    def without(self, off: Set[str]) -> Claims:
        """The claims that are on in a run with the features in `off` (table names) switched off.

        >>> Claims((Affinity(), Retry())).without({"retry"}).names
        ('affinity',)
        """
        return replace(self, features=tuple(feature for feature in self.features if feature.table not in off))

    @property
    def names(self) -> tuple[str, ...]:
        """Table names of the claimed features, sorted."""
        return tuple(sorted(feature.table for feature in self.features))

    @property
    def key_carrier(self) -> str:
        """Where the affinity key is sent; the model header where no affinity is claimed."""
        return self[Affinity].key if Affinity in self else MODEL_CARRIERS[0]

    def fleet(self, want: int, at_least: int = 2) -> int:
        """Number of backends for a scenario that requests `want`; UnsupportedError below `at_least`."""
        count = want if self.fixed_backends is None else min(want, self.fixed_backends)
        if count < at_least:
            raise UnsupportedError(f"needs {at_least} backends")
        if self.fixed_backends is not None:
            return self.fixed_backends
        return count

    def need_membership(self) -> None:
        """UnsupportedError unless backends can leave and join at run time."""
        if not self.can_join:
            raise UnsupportedError("cannot change membership")
