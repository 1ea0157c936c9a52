"""Slow start: a backend that enters rotation gets a growing part of its weight, as its caches are cold.

    factor = max(minimum share, (time since / window) ^ (1 / aggression)), 1 from the end of the window on

divided by the factor of the member that has been in rotation longest: in an entirely new fleet every factor is 1, and
no factor falls when the oldest member reaches the end of its window. The ramp applies to every entry: new, returned,
back from ejection, ready again (seen broken: nginx/kubernetes-ingress#8593). It is part of the weight, so load-based
policies must divide by it too, or an idle newcomer gets all requests (caddyserver/caddy#7966). Source: Envoy's
documentation, "Slow start mode"; there, ages below one second count as one second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class SlowStart:
    """Ramps by backend, `window_s` long, from `minimum_share` (above 0, else a newcomer might get no requests) to 1.

    `aggression`: 1 is linear, above 1 faster at first, below 1 slower at first. ValueError for numbers out of range,
    KeyError for a backend that is no member.
    """

    __slots__ = ("_exponent", "_minimum_share", "_oldest_s", "_since_s", "_window_s")

    def __init__(self, window_s: float, minimum_share: float = 0.1, aggression: float = 1.0) -> None:
        if not 0 < window_s < math.inf or not 0 < aggression < math.inf or not 0 < minimum_share <= 1:
            raise ValueError(
                f"window_s {window_s}, minimum_share {minimum_share} and aggression {aggression}: expected above 0,"
                " above 0 and at most 1, and above 0"
            )
        self._window_s = window_s
        self._minimum_share = minimum_share
        self._exponent = 1 / aggression
        self._since_s: dict[str, float] = {}
        self._oldest_s = math.inf

    def set_backends(self, backends: Iterable[str], now_s: float) -> None:
        """Replace the members: new and returning ones start their ramp now; the others continue."""
        self._since_s = {name: self._since_s.get(name, now_s) for name in backends}
        self._oldest_s = min(self._since_s.values(), default=math.inf)

    def restart(self, backend: str, at_s: float) -> None:
        """A member re-enters rotation at `at_s`, which may be in the future: the end of an ejection is known at its
        start. Other ids are ignored.
        """
        if backend in self._since_s:
            self._since_s[backend] = at_s
            self._oldest_s = min(self._since_s.values())

    def factor(self, backend: str, now_s: float) -> float:
        """Factor of the backend's weight, above 0 and at most 1."""
        return self._ramp(now_s - self._since_s[backend]) / self._ramp(now_s - self._oldest_s)

    def _ramp(self, age_s: float) -> float:
        if age_s >= self._window_s:
            return 1.0
        return max(self._minimum_share, math.pow(max(age_s, 0.0) / self._window_s, self._exponent))
