"""Picking policies for requests without affinity, each selectable by name through `make`.

- `round_robin`: whoever was picked longest ago, so turns are full ones although the list is edited (an index into the
  list isn't safe from that, seen broken: grpc/grpc-java#4462).
- `weighted_round_robin`: nginx's smooth one (commit 52327e0627f4, 2012): every pick adds to each candidate its weight,
  takes the largest sum, and takes the total from it. Weights 5, 1, 1 give a a b a c a a.
- `random`, `weighted_random`: independent draws.
- `least_connections`: fewest own requests in flight, ties at random (seen broken:
  kubernetes-sigs/gateway-api-inference-extension#1204).
- `two_choices`: the less loaded of two, by the composite load.
- `ewma`: the cheaper of two by latency times requests in flight with the new one (Finagle's peak EWMA); see `Ewma`.

The weighted ones read the weights anew at every pick and never pick a weight of 0 (seen broken: traefik/traefik#1294,
traefik/traefik#2986, envoyproxy/envoy#14360). The others take any candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Protocol

from harness.balancer.picking.two_choices import less_loaded_of_two


@dataclass(frozen=True, slots=True)
class Signals:
    """What policies may ask about a backend.

    `in_flight`: own requests there. `load`: composite load at a time in seconds, any unit. `weight`: 1 is normal,
    0 (or less, or not a number) is nothing.
    """

    in_flight: Callable[[str], int]
    load: Callable[[str, float], float]
    weight: Callable[[str], float]


@dataclass(frozen=True, slots=True)
class EwmaSettings:
    """`decay_s`: time in which an old latency or penalty loses 63 % of what sets it apart.

    `first_s`: latency of every backend before any has answered. `penalty_s`: what the first error adds; each further
    one doubles it, up to `most_penalty_s`.
    """

    decay_s: float = 10.0
    first_s: float = 0.1
    penalty_s: float = 1.0
    most_penalty_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("decay_s", "first_s", "penalty_s", "most_penalty_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected above 0")


class Picker(Protocol):
    """One policy."""

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """One of `candidates` (distinct, all eligible); None if there is none, or none with weight."""
        ...

    def settle(self, backend: str, latency_s: float, ok: bool) -> None:
        """Take note of how an attempt at `backend` ended. Not to be called for attempts that were cancelled."""
        ...

    def keep_only(self, backends: frozenset[str]) -> None:
        """Forget everything about backends that are no longer members."""
        ...


class _Forgetful:
    """The part of a policy that learns nothing from answers and remembers no backend."""

    def settle(self, backend: str, latency_s: float, ok: bool) -> None:
        """See Picker."""

    def keep_only(self, backends: frozenset[str]) -> None:
        """See Picker."""


class RoundRobin(_Forgetful):
    """Whoever was picked longest ago, newcomers first."""

    def __init__(self) -> None:
        self._picks = 0
        self._last: dict[str, int] = {}

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See Picker."""
        if not candidates:
            return None
        last = self._last
        chosen = min(candidates, key=lambda backend: last.get(backend, 0))
        self._picks += 1
        last[chosen] = self._picks
        return chosen

    def keep_only(self, backends: frozenset[str]) -> None:
        """See Picker."""
        self._last = {name: pick for name, pick in self._last.items() if name in backends}


class WeightedRoundRobin(_Forgetful):
    """nginx's smooth weighted round robin."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._due: dict[str, float] = {}

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See Picker."""
        due, total, chosen = self._due, 0.0, None
        for backend in candidates:
            weight = _sane_weight(self._weight(backend))
            if not weight:
                continue
            total += weight
            due[backend] = due.get(backend, 0.0) + weight
            if chosen is None or due[backend] > due[chosen]:
                chosen = backend
        if chosen is not None:
            due[chosen] -= total
        return chosen

    def keep_only(self, backends: frozenset[str]) -> None:
        """See Picker."""
        self._due = {name: due for name, due in self._due.items() if name in backends}


class RandomChoice(_Forgetful):
    """All alike."""

    def __init__(self, generator: Random) -> None:
        self._random = generator

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See Picker."""
        return candidates[self._random.randrange(len(candidates))] if candidates else None


class WeightedRandom(_Forgetful):
    """Each in proportion to its weight."""

    def __init__(self, generator: Random, weight: Callable[[str], float]) -> None:
        self._random = generator
        self._weight = weight

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See Picker."""
        weights = {backend: _sane_weight(self._weight(backend)) for backend in candidates}
        eligible = [backend for backend in candidates if weights[backend]]
        if not eligible:
            return None
        sums = list(accumulate(weights[backend] for backend in eligible))
        return self._random.choices(eligible, cum_weights=sums)[0]


class LeastConnections(_Forgetful):
    """Fewest own requests in flight, ties at random."""

    def __init__(self, generator: Random, in_flight: Callable[[str], int]) -> None:
        self._random = generator
        self._in_flight = in_flight

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See Picker."""
        if not candidates:
            return None
        counts = [self._in_flight(backend) for backend in candidates]
        fewest = min(counts)
        idle = [backend for backend, count in zip(candidates, counts, strict=True) if count == fewest]
        return idle[self._random.randrange(len(idle))]


class TwoChoices(_Forgetful):
    """The less loaded of two by the composite load."""

    def __init__(self, generator: Random, load: Callable[[str, float], float]) -> None:
        self._random = generator
        self._load = load

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See Picker."""
        return less_loaded_of_two(candidates, lambda backend: self._load(backend, now_s), self._random)


@dataclass(slots=True)
class _Observed:
    latency_s: float
    penalty_s: float = 0.0
    at_s: float = 0.0


class Ewma(_Forgetful):
    """The cheaper of two backends drawn at random, by (latency + penalty) times (requests in flight + 1).

    - Costs within about 10 % of each other are a tie.
    - Latency rises to a slow answer at once and falls bit by bit. While nothing is heard it drifts towards the fleet's,
      so that a backend is tried again after a bad spell.
    - An error never lowers the latency, and adds a penalty that doubles with every further one and wears off: who fails
      fast is not fast (seen broken: linkerd/linkerd2#11669, kubernetes/ingress-nginx#5540).
    - A newcomer has the fleet's latency, and its requests in flight count from the first: it is one among equals and
      not a hole that takes everything.

    Times are those of the last pick, near enough for what only wears off.
    """

    FLEET_SHARE = 0.05
    """What one answer counts in the fleet's latency."""
    SAMPLE_SHARE = 0.3
    """What one answer that is faster than the average counts in a backend's."""

    def __init__(self, generator: Random, in_flight: Callable[[str], int], settings: EwmaSettings) -> None:
        self._random = generator
        self._in_flight = in_flight
        self._settings = settings
        self._fleet_s: float | None = None
        self._observed: dict[str, _Observed] = {}
        self._now_s = 0.0

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See Picker."""
        self._now_s = max(self._now_s, now_s)
        return less_loaded_of_two(candidates, self._rough_cost, self._random)

    def cost_s(self, backend: str) -> float:
        """What one more request at `backend` would cost, in seconds of the last pick."""
        latency_s, penalty_s = self._as_of_now(backend)
        return (latency_s + penalty_s) * (self._in_flight(backend) + 1)

    def settle(self, backend: str, latency_s: float, ok: bool) -> None:
        """See Picker."""
        if not (math.isfinite(latency_s) and latency_s >= 0):
            return
        known_s, penalty_s = self._as_of_now(backend)
        if ok:
            fleet_s = latency_s if self._fleet_s is None else self._fleet_s
            self._fleet_s = fleet_s + self.FLEET_SHARE * (latency_s - fleet_s)
            if backend not in self._observed:
                known_s = latency_s
        else:
            penalty_s = min(self._settings.most_penalty_s, max(self._settings.penalty_s, 2 * penalty_s))
        if latency_s > known_s:
            known_s = latency_s
        elif ok:
            known_s += self.SAMPLE_SHARE * (latency_s - known_s)
        self._observed[backend] = _Observed(known_s, penalty_s, self._now_s)

    def keep_only(self, backends: frozenset[str]) -> None:
        """See Picker."""
        self._observed = {name: observed for name, observed in self._observed.items() if name in backends}

    def _rough_cost(self, backend: str) -> int:
        """The cost in steps of 10 %, so that one that is dearer by a hair is not passed over for ever."""
        return round(math.log(max(self.cost_s(backend), 1e-6)) / math.log(1.1))

    def _as_of_now(self, backend: str) -> tuple[float, float]:
        fleet_s = self._settings.first_s if self._fleet_s is None else self._fleet_s
        observed = self._observed.get(backend)
        if observed is None:
            return fleet_s, 0.0
        left = math.exp((observed.at_s - self._now_s) / self._settings.decay_s)
        return fleet_s + left * (observed.latency_s - fleet_s), left * observed.penalty_s


POLICIES = (
    "round_robin",
    "weighted_round_robin",
    "random",
    "weighted_random",
    "least_connections",
    "two_choices",
    "ewma",
)


def make(name: str, generator: Random, signals: Signals, ewma: EwmaSettings | None = None) -> Picker:
    """The policy of that name, one of `POLICIES`. ValueError for another name."""
    match name:
        case "round_robin":
            return RoundRobin()
        case "weighted_round_robin":
            return WeightedRoundRobin(signals.weight)
        case "random":
            return RandomChoice(generator)
        case "weighted_random":
            return WeightedRandom(generator, signals.weight)
        case "least_connections":
            return LeastConnections(generator, signals.in_flight)
        case "two_choices":
            return TwoChoices(generator, signals.load)
        case "ewma":
            return Ewma(generator, signals.in_flight, ewma or EwmaSettings())
        case _:
            raise ValueError(f"policy {name!r}: expected one of {', '.join(POLICIES)}")


def _sane_weight(weight: float) -> float:
    return weight if math.isfinite(weight) and weight > 0 else 0.0
