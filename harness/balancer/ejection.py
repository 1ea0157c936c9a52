"""Passive ejection: a backend whose attempts fail in a row gets nothing for a while.

Not a circuit breaker: there is no half-open state. When the time is over the backend is back with a clean count.
"""

from __future__ import annotations


class Ejection:
    """Runs of failures and ejection times, by backend. Times are seconds on the caller's clock."""

    def __init__(self, failures: int, open_s: float) -> None:
        if failures < 1 or open_s <= 0:
            raise ValueError(f"failures {failures} and open_s {open_s}: expected 1 or more and above 0")
        self._failures = failures
        self._open_s = open_s
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
        if run >= self._failures:
            self._until_s[backend] = now_s + self._open_s
            self._runs.pop(backend, None)

    def ejected(self, backend: str, now_s: float) -> bool:
        """Whether `backend` gets nothing now."""
        until_s = self._until_s.get(backend)
        return until_s is not None and now_s < until_s

    def keep_only(self, backends: frozenset[str]) -> None:
        """Forget everything about other backends, so that one that returns starts clean."""
        self._runs = {name: run for name, run in self._runs.items() if name in backends}
        self._until_s = {name: until_s for name, until_s in self._until_s.items() if name in backends}
