"""Hedging: when a second attempt joins a slow one, for which requests, and never for more than a share of them.

The delay is a quantile of what the model's recent requests took. That alone does not bound the hedges: at the exact
p95 one request in twenty is slower, by construction, and "under 5 %" is a coin flip; the token bucket does bound them.
Source: Dean and Barroso, "The Tail at Scale", 2013; gRPC A6 on what ends a race.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from harness.balancer.health.breaker import State
from harness.balancer.health.windows import LatencyWindow, exact_ratio, rank
from harness.scenario.model import Kind

TIMELESS_S = 0.0
"""The time of every entry: these windows are bounded by number, so that a rarely used model keeps its latencies."""


@dataclass(frozen=True, slots=True)
class HedgeSettings:
    """When requests are hedged and how many.

    After the `quantile` of the model's last `window` latencies, once `minimum` are known, and not before
    `floor_delay_s`. At most `share` of the requests; a quiet spell saves up `burst` hedges at most. None while the
    system's load is above `load_threshold` (in the caller's unit). Latencies of the `models` used last are kept.
    ValueError for numbers that make no sense, such as a minimum that has no such quantile (19 is the least for .95).
    """

    quantile: float = 0.95
    share: float = 0.05
    window: int = 1000
    minimum: int = 100
    load_threshold: float = 0.8
    floor_delay_s: float = 0.0
    burst: int = 10
    models: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1 or not 0 <= self.share <= 1:
            raise ValueError(f"quantile {self.quantile} and share {self.share}: expected between 0 and 1")
        if not self.floor_delay_s >= 0 or self.burst < 1 or self.models < 1:
            raise ValueError(
                f"floor_delay_s {self.floor_delay_s}, burst {self.burst} and models {self.models}: expected 0 or more,"
                " and 1 or more"
            )
        if not rank(self.quantile, self.minimum) <= self.minimum <= self.window:
            raise ValueError(
                f"minimum {self.minimum}: expected enough latencies to have a {self.quantile} quantile, and no more"
                f" than the window of {self.window}"
            )


class Hedger:
    """Delays by model, and the budget of hedges; see the module."""

    __slots__ = ("_cap", "_cost", "_gain", "_settings", "_tokens", "_windows")

    def __init__(self, settings: HedgeSettings) -> None:
        self._settings = settings
        # In units of a hedge's cost / its denominator, so that there is no rounding.
        self._gain, self._cost = exact_ratio(settings.share)
        self._cap = settings.burst * self._cost
        self._tokens = 0
        self._windows: OrderedDict[str, LatencyWindow] = OrderedDict()

    def delay_s(self, model: str) -> float | None:
        """Seconds after which a request of `model` is slow; None while too few of its latencies are known.

        The k-th smallest of W with k = ceil(quantile (W + 1)), which the next request exceeds with probability
        1 - quantile at most; with ceil(quantile W) 5.9 % of requests are hedged in place of 5 % at W = 100.
        """
        window = self._windows.get(model)
        delay_s = None if window is None else window.quantile_s(self._settings.quantile, TIMELESS_S)
        return None if delay_s is None else max(delay_s, self._settings.floor_delay_s)

    def record(self, model: str, latency_s: float) -> None:
        """A request's time from its arrival to the commit of an answer, whichever attempt brought it.

        Not the winning attempt's own time: that leaves out the wait before a hedge, so the quantile sinks and up to
        twice as many requests are hedged.
        """
        window = self._windows.get(model)
        if window is None:
            window = LatencyWindow(calls=self._settings.window, minimum_calls=self._settings.minimum)
            self._windows[model] = window
            if len(self._windows) > self._settings.models:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(model)
        window.record(latency_s, TIMELESS_S)

    def forget(self, model: str) -> None:
        """Drop what is known of `model`, as when it was replaced by a new version."""
        self._windows.pop(model, None)

    def fresh(self, now_s: float) -> None:
        """A client's request arrived: the bucket gets `share` of a hedge. It counts requests; time adds nothing."""
        self._tokens = min(self._tokens + self._gain, self._cap)

    def try_take(self) -> bool:
        """Pay for one hedge, right before it is sent; False if the bucket has less than a whole one.

        In any run of n requests there are at most share x n hedges plus what the bucket held at its start, which is
        `burst` at most; and as it starts empty, never more than share of all requests so far.
        """
        if self._tokens < self._cost:
            return False
        self._tokens -= self._cost
        return True

    def give_back(self) -> None:
        """Return what `try_take` took where no hedge was sent after all, in the same step."""
        self._tokens = min(self._tokens + self._cost, self._cap)

    def allowed(
        self,
        *,
        kind: Kind,
        first_byte: bool,
        client_gone: bool,
        primary_breaker: State,
        other_breaker: State,
        system_load: float,
    ) -> bool:
        """Whether a slow request may have a second attempt now, money aside. Pure.

        Only inference, whose repetition does no harm; never after the first byte of an answer or without a client to
        receive it; not while either backend's breaker is in doubt, and not while the system's load is above its
        threshold, where more work for the same answers would tip it over. A load that is no number is taken for high.
        """
        return (
            kind is Kind.INFERENCE
            and not first_byte
            and not client_gone
            and primary_breaker == other_breaker == "closed"
            and system_load <= self._settings.load_threshold
        )
