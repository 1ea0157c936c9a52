"""Hedging: a second attempt for a slow inference request, limited to a share of all requests.

The delay is a quantile of the latencies of the model's recent requests. The quantile alone does not bound the number of
hedges: at the exact p95 one request in twenty is slower by construction, so staying under 5 % would be chance; a token
bucket bounds it. Source: Dean and Barroso, "The Tail at Scale", 2013; gRPC A6 for the end of a race.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from harness.balancer.health.breaker import State
from harness.balancer.health.windows import LatencyWindow, exact_ratio, rank
from harness.scenario.model import Kind

TIMELESS_S = 0.0
"""Time of every entry: the windows are bounded by number only, so a rarely used model keeps its latencies."""


@dataclass(frozen=True, slots=True)
class HedgeSettings:
    """Delay and budget of hedges.

    A request is hedged after the `quantile` of the model's last `window` latencies, once `minimum` are known, and not
    before `floor_delay_s`. At most `share` of the requests are hedged; at most `burst` unused hedges accumulate. No
    hedges while more than `load_threshold` requests are in flight per backend. Latencies of the `models` most recently
    used are kept. ValueError for numbers out of range, such as a `minimum` too small for the quantile (19 is the least
    for .95). Default quantile and share: Dean and Barroso.
    """

    quantile: float = 0.95
    share: float = 0.05
    window: int = 1000
    minimum: int = 100
    load_threshold: float = 32.0
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
    """Hedging delay per model, and the budget of hedges; see the module."""

    __slots__ = ("_cap", "_cost", "_gain", "_settings", "_tokens", "_windows")

    def __init__(self, settings: HedgeSettings) -> None:
        self._settings = settings
        # Integers in units of 1 / denominator of the share, so there is no rounding.
        self._gain, self._cost = exact_ratio(settings.share)
        self._cap = settings.burst * self._cost
        self._tokens = 0
        self._windows: OrderedDict[str, LatencyWindow] = OrderedDict()

    def delay_s(self, model: str) -> float | None:
        """Seconds after which a request of `model` counts as slow; None while too few of its latencies are known.

        The k-th smallest of W latencies with k = ceil(quantile (W + 1)), which the next request exceeds with
        probability 1 - quantile at most; with k = ceil(quantile W), 5.9 % of requests would be hedged instead of 5 % at
        W = 100.
        """
        window = self._windows.get(model)
        delay_s = None if window is None else window.quantile_s(self._settings.quantile, TIMELESS_S)
        return None if delay_s is None else max(delay_s, self._settings.floor_delay_s)

    def record(self, model: str, latency_s: float) -> None:
        """Record a request's time from its arrival to the commit of an answer, by whichever attempt.

        The winning attempt's own time would omit the wait before a hedge, so the quantile would sink and up to twice as
        many requests would be hedged.
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
        """Drop the latencies of `model`, for example when it is replaced by a new version."""
        self._windows.pop(model, None)

    def request_arrived(self, now_s: float) -> None:
        """Count a client's request: the bucket gains `share` of a hedge. Time alone adds nothing."""
        self._tokens = min(self._tokens + self._gain, self._cap)

    def try_take(self) -> bool:
        """Take one hedge from the bucket right before it is sent; False if the bucket holds less than one.

        Any n consecutive requests have at most share x n hedges plus the bucket's content before them, at most `burst`;
        as the bucket starts empty, hedges never exceed `share` of all requests so far.
        """
        if self._tokens < self._cost:
            return False
        self._tokens -= self._cost
        return True

    def give_back(self) -> None:
        """Return a hedge taken by `try_take` in the same step if none was sent."""
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
        """Whether a slow request may be hedged now, regardless of the budget. Pure.

        Only inference, which is safe to repeat; never after the first byte of an answer or after its client left; not
        unless both backends' breakers are closed; and not while the system's load is above its threshold, where extra
        work for the same answers would overload it. A load that is not a number counts as high.
        """
        return (
            kind is Kind.INFERENCE
            and not first_byte
            and not client_gone
            and primary_breaker == other_breaker == "closed"
            and system_load <= self._settings.load_threshold
        )
