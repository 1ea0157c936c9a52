"""Passive ejection: a backend whose attempts fail in a row gets nothing for a while.

Not a circuit breaker: there is no half-open state. When the time is over the backend is back with a clean count.

A cap bounds the share of the members that are out at once, as failures that hit everybody are rarely the backends' own
(seen broken: istio/istio#20135). It is the cap of passive ejection alone and never keeps in rotation what fails its
health checks (envoyproxy/envoy#12076). At least one may always be out: Envoy documents the same for its
`max_ejection_percent`, yet in a measured pool of four its default of 10 % ejected nothing at all.
"""

from __future__ import annotations

from harness.balancer.health.windows import exact_ratio


class PassiveEjection:
    """Runs of failures and ejection times, by backend. Times are seconds on the caller's clock.

    `cap_share`: of the members that `keep_only` named, no more than this share (rounded down, but at least one) is out
    at once; 1 for no cap. A backend that would exceed it stays in with its run of failures, which a success ends as
    ever; the first further failure that finds a place free puts it out. So a place that becomes free is given on fresh
    evidence, and looking never changes anything. ValueError for numbers that make no sense.
    """

    def __init__(self, failures: int, open_s: float, cap_share: float = 1.0) -> None:
        if failures < 1 or open_s <= 0:
            raise ValueError(f"failures {failures} and open_s {open_s}: expected 1 or more and above 0")
        if not 0 < cap_share <= 1:
            raise ValueError(f"cap_share {cap_share}: expected above 0 and at most 1")
        self._failures = failures
        self._open_s = open_s
        self._cap_share = cap_share
        self._members = 0
        self._runs: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def settle(self, backend: str, ok: bool, now_s: float) -> None:
        """Take note of how an attempt ended. Failures that arrive while ejected do not lengthen the ejection."""
        if self.ejected(backend, now_s):
            return
        if ok:
            self._runs.pop(backend, None)
            return
        run = self._runs.get(backend, 0) + 1
        self._runs[backend] = run
        if run >= self._failures and self._place_free(now_s):
            self._until_s[backend] = now_s + self._open_s
            self._runs.pop(backend, None)

    def ejected(self, backend: str, now_s: float) -> bool:
        """Whether `backend` gets nothing now."""
        until_s = self._until_s.get(backend)
        return until_s is not None and now_s < until_s

    def until_s(self, backend: str, now_s: float) -> float | None:
        """When the ejection of `backend` ends; None if it is not ejected now."""
        return self._until_s[backend] if self.ejected(backend, now_s) else None

    def keep_only(self, backends: frozenset[str]) -> None:
        """Forget everything about other backends, so that one that returns starts clean.

        Where fewer members lower the cap below the number that is out, those whose time is over first are back now.
        """
        self._members = len(backends)
        self._runs = {name: run for name, run in self._runs.items() if name in backends}
        left = sorted((until_s, name) for name, until_s in self._until_s.items() if name in backends)
        if self._cap_share < 1:
            left = left[-self._places() :]
        self._until_s = {name: until_s for until_s, name in left}

    def _places(self) -> int:
        numerator, denominator = exact_ratio(self._cap_share)
        return max(1, self._members * numerator // denominator)

    def _place_free(self, now_s: float) -> bool:
        if self._cap_share == 1:
            return True
        return sum(now_s < until_s for until_s in self._until_s.values()) < self._places()
