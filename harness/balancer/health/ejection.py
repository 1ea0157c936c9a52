"""Passive ejection: a backend whose attempts fail in a row gets no requests for a fixed time.

Unlike a circuit breaker it has no half-open state: after that time the backend is back with a count of 0.

A cap bounds the share of members ejected at once, as failures of all backends rarely have their cause in the backends
(seen broken: istio/istio#20135). The cap applies to passive ejection only; it never keeps a backend in rotation that
fails its health checks (envoyproxy/envoy#12076). One ejection is always allowed: Envoy documents the same for its
`max_ejection_percent`, yet in a measured pool of four its default of 10 % ejected no backend.
"""

from __future__ import annotations

from harness.balancer.health.windows import exact_ratio


class PassiveEjection:
    """Consecutive failures and ejection times, by backend. Times are seconds on the caller's clock.

    `cap_share`: maximum share of the members (set by `keep_only`; rounded down, but at least one) that is ejected at
    once; 1 for no cap. A backend that would exceed it stays in rotation and keeps its count of failures, which a
    success resets as usual; it is ejected at its next failure while the cap allows it. So each ejection is based on new
    evidence, and queries change no state. ValueError for numbers out of range.
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
        """Record the result of an attempt. Results that arrive while ejected are ignored."""
        if self.ejected(backend, now_s):
            return
        if ok:
            self._runs.pop(backend, None)
            return
        run = self._runs.get(backend, 0) + 1
        self._runs[backend] = run
        if run >= self._failures and self._slot_free(now_s):
            self._until_s[backend] = now_s + self._open_s
            self._runs.pop(backend, None)

    def ejected(self, backend: str, now_s: float) -> bool:
        """Whether `backend` is ejected now."""
        until_s = self._until_s.get(backend)
        return until_s is not None and now_s < until_s

    def until_s(self, backend: str, now_s: float) -> float | None:
        """End of the ejection of `backend`; None if it is not ejected now."""
        return self._until_s[backend] if self.ejected(backend, now_s) else None

    def keep_only(self, backends: frozenset[str]) -> None:
        """Replace the members and drop the state of all other backends, so that one that returns starts clean.

        If fewer members lower the cap below the number ejected, the ejections that would end first end now.
        """
        self._members = len(backends)
        self._runs = {name: run for name, run in self._runs.items() if name in backends}
        left = sorted((until_s, name) for name, until_s in self._until_s.items() if name in backends)
        if self._cap_share < 1:
            left = left[-self._ejection_slots() :]
        self._until_s = {name: until_s for until_s, name in left}

    def _ejection_slots(self) -> int:
        numerator, denominator = exact_ratio(self._cap_share)
        return max(1, self._members * numerator // denominator)

    def _slot_free(self, now_s: float) -> bool:
        if self._cap_share == 1:
            return True
        return sum(now_s < until_s for until_s in self._until_s.values()) < self._ejection_slots()
