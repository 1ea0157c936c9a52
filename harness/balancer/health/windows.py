"""Sliding windows over finished calls: number of bad calls, and exact quantiles of latencies.

A window is bounded by age, by number of calls, or by both. `now_s` is the caller's monotonic clock; a call expires at
`at_s + span_s`. A lifetime counter instead of a window delays a breaker by thousands of calls
(travis-ci/jupiter-brain#12); the latency of the last health check is no substitute for a quantile.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from fractions import Fraction
from functools import lru_cache


@lru_cache(maxsize=256)
def exact_ratio(number: float) -> tuple[int, int]:
    """Numerator and denominator of the decimal form of `number`: .05 is 1/20, not the nearest binary fraction.

    Makes comparisons of counts with shares, and ranks, exact for counts of any size.
    """
    return Fraction(repr(float(number))).as_integer_ratio()


def rank(quantile: float, calls: int) -> int:
    """Rank (from 1, smallest first) of the `quantile` among `calls` latencies: ceil(quantile (calls + 1)).

    The next call exceeds the k-th smallest of W exchangeable ones with probability (W + 1 - k) / (W + 1), whatever
    their distribution; this is the smallest k that keeps it at or below 1 - quantile. The common ceil(quantile W) does
    not: with 100 calls, 5.9 % of calls exceed it instead of 5 %. Larger than `calls` if there are too few (fewer than
    19 for .95). Source: order statistics of exchangeable variables, David and Nagaraja, "Order Statistics", 2003.
    """
    numerator, denominator = exact_ratio(quantile)
    return -(-numerator * (calls + 1) // denominator)


def _check_bounds(span_s: float | None, calls: int | None, minimum_calls: int) -> None:
    if span_s is None and calls is None:
        raise ValueError("a window needs a bound: span_s, calls or both")
    if (span_s is not None and not span_s > 0) or (calls is not None and calls < 1):
        raise ValueError(f"span_s {span_s} and calls {calls}: expected above 0 and 1 or more")
    if minimum_calls < 1 or (calls is not None and minimum_calls > calls):
        raise ValueError(f"minimum_calls {minimum_calls}: expected 1 or more, and no more than calls ({calls})")


class OutcomeWindow:
    """Number of bad calls (failed or slow, as the caller defines) among the recent ones. Operations are O(1) amortised.

    ValueError for a window without a bound or with a minimum that it cannot hold.
    """

    __slots__ = ("_bad", "_calls", "_entries", "_minimum_calls", "_oldest_expires_s", "_span_s")

    def __init__(self, *, span_s: float | None = None, calls: int | None = None, minimum_calls: int = 1) -> None:
        _check_bounds(span_s, calls, minimum_calls)
        self._span_s = math.inf if span_s is None else span_s
        self._calls = calls
        self._minimum_calls = minimum_calls
        self._entries: deque[tuple[float, bool]] = deque()
        self._oldest_expires_s = math.inf  # when the oldest call expires
        self._bad = 0

    def record(self, bad: bool, now_s: float) -> None:
        """Record a call that ended at `now_s`."""
        if now_s >= self._oldest_expires_s:
            self._expire(now_s)
        entries = self._entries
        if len(entries) == self._calls:
            self._drop()
        if not entries:
            self._oldest_expires_s = now_s + self._span_s
        entries.append((now_s, bad))
        self._bad += bad

    def calls(self, now_s: float) -> int:
        """Number of calls in the window."""
        if now_s >= self._oldest_expires_s:
            self._expire(now_s)
        return len(self._entries)

    def bad(self, now_s: float) -> int:
        """Number of bad calls in the window."""
        if now_s >= self._oldest_expires_s:
            self._expire(now_s)
        return self._bad

    def rate(self, now_s: float) -> float | None:
        """Share of bad calls, 0 to 1; None while there are fewer than `minimum_calls`."""
        if now_s >= self._oldest_expires_s:
            self._expire(now_s)
        calls = len(self._entries)
        return self._bad / calls if calls >= self._minimum_calls else None

    def clear(self) -> None:
        """Remove all calls."""
        self._entries.clear()
        self._oldest_expires_s = math.inf
        self._bad = 0

    def _expire(self, now_s: float) -> None:
        while now_s >= self._oldest_expires_s:
            self._drop()

    def _drop(self) -> None:
        self._bad -= self._entries.popleft()[1]
        self._oldest_expires_s = self._entries[0][0] + self._span_s if self._entries else math.inf


class LatencyWindow:
    """Latencies of the recent calls, with exact quantiles.

    Kept sorted: recording costs two binary searches and two moves of a list of floats (about 1 us for 1,000 calls, 3 us
    for 10,000; bound `calls` accordingly), a quantile O(1). ValueError for a window without a bound, or with a minimum
    that it cannot hold, and for a latency that is negative or not a number.
    """

    __slots__ = ("_calls", "_entries", "_minimum_calls", "_oldest_expires_s", "_sorted", "_span_s")

    def __init__(self, *, span_s: float | None = None, calls: int | None = None, minimum_calls: int = 1) -> None:
        _check_bounds(span_s, calls, minimum_calls)
        self._span_s = math.inf if span_s is None else span_s
        self._calls = calls
        self._minimum_calls = minimum_calls
        self._entries: deque[tuple[float, float]] = deque()
        self._oldest_expires_s = math.inf  # when the oldest call expires
        self._sorted: list[float] = []

    def record(self, latency_s: float, now_s: float) -> None:
        """Record a call that ended at `now_s` after `latency_s`."""
        if not latency_s >= 0:
            raise ValueError(f"latency {latency_s} s: expected 0 or more")
        if now_s >= self._oldest_expires_s:
            self._expire(now_s)
        entries = self._entries
        if len(entries) == self._calls:
            self._drop()
        if not entries:
            self._oldest_expires_s = now_s + self._span_s
        entries.append((now_s, latency_s))
        insort(self._sorted, latency_s)

    def calls(self, now_s: float) -> int:
        """Number of calls in the window."""
        if now_s >= self._oldest_expires_s:
            self._expire(now_s)
        return len(self._sorted)

    def quantile_s(self, quantile: float, now_s: float) -> float | None:
        """The latency of rank ceil(quantile (W + 1)) among the W in the window, in seconds; at most the largest.

        None while there are fewer than `minimum_calls`. Callers that need the rank itself to exist check `rank` first.
        """
        if now_s >= self._oldest_expires_s:
            self._expire(now_s)
        calls = len(self._sorted)
        if calls < self._minimum_calls:
            return None
        return self._sorted[min(rank(quantile, calls), calls) - 1]

    def clear(self) -> None:
        """Remove all calls."""
        self._entries.clear()
        self._sorted.clear()
        self._oldest_expires_s = math.inf

    def _expire(self, now_s: float) -> None:
        while now_s >= self._oldest_expires_s:
            self._drop()

    def _drop(self) -> None:
        latency_s = self._entries.popleft()[1]
        del self._sorted[bisect_left(self._sorted, latency_s)]
        self._oldest_expires_s = self._entries[0][0] + self._span_s if self._entries else math.inf
