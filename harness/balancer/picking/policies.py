"""Picking policies for requests without affinity, each selectable by name through `make`.

- `round_robin`: the least recently picked, so turns stay complete when the list is edited (an index into the list does
  not guarantee that, seen broken: grpc/grpc-java#4462).
- `weighted_round_robin`: nginx's smooth algorithm (commit 52327e0627f4, 2012): every pick adds to each candidate's sum
  its weight, picks the largest sum, and subtracts the total from it. Weights 5, 1, 1 give a a b a c a a.
- `random`, `weighted_random`: independent draws.
- `least_connections`: fewest own requests in flight, ties at random (seen broken:
  kubernetes-sigs/gateway-api-inference-extension#1204).
- `two_choices`: the less loaded of two by composite load.
- `ewma`: the cheaper of two by latency times requests in flight including the new one (Finagle's peak EWMA); see
  `Ewma`.

The weighted policies read the weights at every pick and never pick a weight of 0 (seen broken: traefik/traefik#1294,
traefik/traefik#2986, envoyproxy/envoy#14360). The others pick any candidate.
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
    """Properties of a backend available to policies.

    `in_flight`: own requests there. `load`: composite load at a time in seconds, any unit. `weight`: 1 is normal;
    0, negative and non-finite weights receive nothing.
    """

    in_flight: Callable[[str], int]
    load: Callable[[str, float], float]
    weight: Callable[[str], float]


@dataclass(frozen=True, slots=True)
class EwmaSettings:
    """`decay_s`: time constant; an old latency's distance from the fleet's, and a penalty, lose 63 % in that time.

    `first_s`: latency of every backend before any has answered. `penalty_s`: penalty of the first error; each further
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
        """One of `candidates` (distinct, all eligible); None if there is none, or none with a weight above 0."""
        ...

    def settle(self, backend: str, latency_s: float, ok: bool) -> None:
        """Record the result of an attempt at `backend`. Not to be called for cancelled attempts."""
        ...

    def keep_only(self, backends: frozenset[str]) -> None:
        """Drop the state of all other backends."""
        ...


class _Stateless:
    """Base of policies that use neither results nor membership."""

    def settle(self, backend: str, latency_s: float, ok: bool) -> None:
        """See `Picker.settle`."""

    def keep_only(self, backends: frozenset[str]) -> None:
        """See `Picker.keep_only`."""


class RoundRobin(_Stateless):
    """The least recently picked backend, newcomers first."""

    def __init__(self) -> None:
        self._picks = 0
        self._last: dict[str, int] = {}

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See `Picker.pick`."""
        if not candidates:
            return None
        last = self._last
        chosen = min(candidates, key=lambda backend: last.get(backend, 0))
        self._picks += 1
        last[chosen] = self._picks
        return chosen

    def keep_only(self, backends: frozenset[str]) -> None:
        """See `Picker.keep_only`."""
        self._last = {name: pick for name, pick in self._last.items() if name in backends}


class WeightedRoundRobin(_Stateless):
    """nginx's smooth weighted round robin."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._current: dict[str, float] = {}

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See `Picker.pick`."""
        current, total, chosen = self._current, 0.0, None
        for backend in candidates:
            weight = _valid_weight(self._weight(backend))
            if not weight:
                continue
            total += weight
            current[backend] = current.get(backend, 0.0) + weight
            if chosen is None or current[backend] > current[chosen]:
                chosen = backend
        if chosen is not None:
            current[chosen] -= total
        return chosen

    def keep_only(self, backends: frozenset[str]) -> None:
        """See `Picker.keep_only`."""
        self._current = {name: current for name, current in self._current.items() if name in backends}


class RandomChoice(_Stateless):
    """Uniformly at random."""

    def __init__(self, generator: Random) -> None:
        self._random = generator

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See `Picker.pick`."""
        return candidates[self._random.randrange(len(candidates))] if candidates else None


class WeightedRandom(_Stateless):
    """At random, in proportion to weights."""

    def __init__(self, generator: Random, weight: Callable[[str], float]) -> None:
        self._random = generator
        self._weight = weight

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See `Picker.pick`."""
        weights = {backend: _valid_weight(self._weight(backend)) for backend in candidates}
        eligible = [backend for backend in candidates if weights[backend]]
        if not eligible:
            return None
        sums = list(accumulate(weights[backend] for backend in eligible))
        return self._random.choices(eligible, cum_weights=sums)[0]


class LeastConnections(_Stateless):
    """Fewest own requests in flight, ties at random."""

    def __init__(self, generator: Random, in_flight: Callable[[str], int]) -> None:
        self._random = generator
        self._in_flight = in_flight

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See `Picker.pick`."""
        if not candidates:
            return None
        counts = [self._in_flight(backend) for backend in candidates]
        fewest = min(counts)
        idle = [backend for backend, count in zip(candidates, counts, strict=True) if count == fewest]
        return idle[self._random.randrange(len(idle))]


class TwoChoices(_Stateless):
    """The less loaded of two by composite load."""

    def __init__(self, generator: Random, load: Callable[[str, float], float]) -> None:
        self._random = generator
        self._load = load

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See `Picker.pick`."""
        return less_loaded_of_two(candidates, lambda backend: self._load(backend, now_s), self._random)


@dataclass(slots=True)
class _Observed:
    latency_s: float
    penalty_s: float = 0.0
    at_s: float = 0.0


class Ewma(_Stateless):
    """The cheaper of two backends drawn at random, by (latency + penalty) times (requests in flight + 1).

    - Costs within about 10 % of each other are a tie.
    - Latency rises to that of a slow answer at once and falls gradually. Without answers it decays towards the fleet's,
      so that a backend is tried again after a slow period.
    - An error never lowers the latency, and adds a penalty that doubles with every further error and decays: failing
      fast does not count as fast (seen broken: linkerd/linkerd2#11669, kubernetes/ingress-nginx#5540).
    - A newcomer has the fleet's latency, and its requests in flight count from the first, so it does not attract all
      traffic.

    Results are dated with the time of the last pick, which is accurate enough for decay.
    """

    FLEET_SHARE = 0.05
    """Weight of one answer in the fleet's latency."""
    SAMPLE_SHARE = 0.3
    """Weight of one answer that is faster than the average in its backend's latency."""

    def __init__(self, generator: Random, in_flight: Callable[[str], int], settings: EwmaSettings) -> None:
        self._random = generator
        self._in_flight = in_flight
        self._settings = settings
        self._fleet_s: float | None = None
        self._observed: dict[str, _Observed] = {}
        self._now_s = 0.0

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        """See `Picker.pick`."""
        self._now_s = max(self._now_s, now_s)
        return less_loaded_of_two(candidates, self._rounded_cost, self._random)

    def cost_s(self, backend: str) -> float:
        """Cost of one more request at `backend`, in seconds, as of the last pick."""
        latency_s, penalty_s = self._decayed(backend)
        return (latency_s + penalty_s) * (self._in_flight(backend) + 1)

    def settle(self, backend: str, latency_s: float, ok: bool) -> None:
        """See `Picker.settle`."""
        if not (math.isfinite(latency_s) and latency_s >= 0):
            return
        known_s, penalty_s = self._decayed(backend)
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
        """See `Picker.keep_only`."""
        self._observed = {name: observed for name, observed in self._observed.items() if name in backends}

    def _rounded_cost(self, backend: str) -> int:
        """The cost rounded to steps of 10 %, so that a marginally more expensive backend is still picked."""
        return round(math.log(max(self.cost_s(backend), 1e-6)) / math.log(1.1))

    def _decayed(self, backend: str) -> tuple[float, float]:
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
    """The policy named `name`, one of `POLICIES`. ValueError for other names."""
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


def _valid_weight(weight: float) -> float:
    return weight if math.isfinite(weight) and weight > 0 else 0.0
