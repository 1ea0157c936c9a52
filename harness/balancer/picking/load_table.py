"""Load of each backend: this balancer's own requests in flight, counted here, and the backend's load reports.

The **own** part is exact: one increment per send and one decrement per ticket, however the request ends. It never
expires, and health checks do not change it (seen broken: vllm-project/router#215, vllm-project/router#197,
BerriAI/litellm#40401).

The **foreign** part is a backend's load from other clients: its report minus the own requests in flight when the report
was requested. Between reports the load is the foreign part plus the current own part, so requests sent since the report
count at once (seen broken: vllm-project/router#177) and requests covered by the report do not count twice (a review
note on vllm-project/router#178). If the order of a send and a report is unknown, the backend counts as busier.

A missing, stale or invalid report does not mean idle: backends whose load read 0 because it was unavailable attracted
all requests (sgl-project/sglang#15473, vllm-project/router#174, sgl-project/sglang#32070). The foreign part of such a
backend counts as the **worst** of the others' last reports rather than their mean, because a server that cannot answer
a health check is usually overloaded; own requests count as usual. Without any report this is least connections.
`silent` lists these backends, so that the missing reports can be displayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """`tokens_per_request`: number of pending tokens equivalent to one request.

    A report is stale from `stale_s` after it was requested; one with more than `most_requests` or `most_tokens` is
    invalid.
    """

    tokens_per_request: float = 1000.0
    stale_s: float = 3.0
    most_requests: float = 1e6
    most_tokens: float = 1e9

    def __post_init__(self) -> None:
        for name in ("tokens_per_request", "stale_s", "most_requests", "most_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected above 0")


@dataclass(slots=True)
class _BackendLoad:
    member: bool = True
    own: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Tokens and send time of own requests in flight, by ticket."""
    own_tokens: int = 0
    foreign_requests: float = 0.0
    foreign_tokens: float = 0.0
    reported_s: float = -math.inf


class LoadTable:
    """Loads by backend. Times are seconds on the caller's clock, loads are in requests."""

    def __init__(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._backends: dict[str, _BackendLoad] = {}
        self._backend_of: dict[int, str] = {}
        self._tickets = count(1)
        self._last_report_s = -math.inf
        self._worst_foreign: tuple[float, float] | None = None

    @property
    def total_in_flight(self) -> int:
        """Own requests in flight at all backends, including backends that left."""
        return len(self._backend_of)

    @property
    def backends(self) -> frozenset[str]:
        """All backends with state: the members, and departed backends with requests in flight."""
        return frozenset(self._backends)

    def set_backends(self, backends: Iterable[str]) -> None:
        """Replace the list of members; remaining members keep their state.

        The state of a departed backend is dropped once no own request is in flight there. A returning one has no
        report.
        """
        wanted = frozenset(backends)
        self._worst_foreign = None
        for name in [name for name, entry in self._backends.items() if name not in wanted]:
            self._backends[name].member = False
            self._backends[name].reported_s = -math.inf
            self._drop_if_idle(name)
        for name in wanted:
            entry = self._backends.setdefault(name, _BackendLoad())
            if not entry.member:
                entry.member, entry.foreign_requests, entry.foreign_tokens = True, 0.0, 0.0

    def sent(self, backend: str, tokens: int, now_s: float) -> int:
        """Count a request of `tokens` sent to a member now. Returns its ticket for `ended`."""
        entry = self._backends[backend]
        ticket = next(self._tickets)
        entry.own[ticket] = (tokens, now_s)
        entry.own_tokens += tokens
        self._backend_of[ticket] = backend
        return ticket

    def ended(self, ticket: int) -> bool:
        """Count the request of `ticket` as ended, with any result. False, without effect, if it ended before."""
        backend = self._backend_of.pop(ticket, None)
        if backend is None:
            return False
        entry = self._backends[backend]
        entry.own_tokens -= entry.own.pop(ticket)[0]
        if not entry.member:
            self._drop_if_idle(backend)
        return True

    def in_flight(self, backend: str) -> int:
        """Own requests in flight at `backend`."""
        entry = self._backends.get(backend)
        return 0 if entry is None else len(entry.own)

    def report(self, backend: str, queue_depth: float, pending_tokens: float, running: float, at_s: float) -> bool:
        """Record a backend's load report: requests queued, tokens pending and requests running.

        `at_s`: when the report was requested. False, without effect, if the report is invalid, older than the last one,
        or of a backend that is no member.
        """
        entry = self._backends.get(backend)
        if entry is None or not entry.member or not math.isfinite(at_s) or at_s < entry.reported_s:
            return False
        most = self._settings
        if not (_valid(queue_depth, most.most_requests) and _valid(running, most.most_requests)):
            return False
        if not _valid(pending_tokens, most.most_tokens):
            return False
        covered = [tokens for tokens, sent_s in entry.own.values() if sent_s < at_s]
        entry.foreign_requests = max(0.0, queue_depth + running - len(covered))
        entry.foreign_tokens = max(0.0, pending_tokens - sum(covered))
        entry.reported_s = at_s
        self._last_report_s = max(self._last_report_s, at_s)
        self._worst_foreign = None
        return True

    def composite(self, backend: str, health: float, now_s: float) -> float:
        """Pending work at `backend` including one more request, divided by its `health` (above 0; 1 is full health).

        In requests; infinite for a health that is not above 0 and for a backend that is no member. The extra request
        makes an idle backend of low health compare worse than an idle one of full health.
        """
        entry = self._backends.get(backend)
        if entry is None or not entry.member or not health > 0:
            return math.inf
        requests, tokens = entry.foreign_requests, entry.foreign_tokens
        if not self._has_fresh_report(entry, now_s):
            worst_requests, worst_tokens = self._worst()
            requests, tokens = max(requests, worst_requests), max(tokens, worst_tokens)
        requests += len(entry.own)
        tokens += entry.own_tokens
        return (requests + tokens / self._settings.tokens_per_request + 1.0) / health

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Members without a fresh, valid report, sorted."""
        members = ((name, entry) for name, entry in self._backends.items() if entry.member)
        return tuple(sorted(name for name, entry in members if not self._has_fresh_report(entry, now_s)))

    def _worst(self) -> tuple[float, float]:
        """Maximum foreign requests and tokens of reports fresh at the last report; computed once per report."""
        if self._worst_foreign is None:
            fresh = [entry for entry in self._backends.values() if self._has_fresh_report(entry, self._last_report_s)]
            self._worst_foreign = (
                max((entry.foreign_requests for entry in fresh), default=0.0),
                max((entry.foreign_tokens for entry in fresh), default=0.0),
            )
        return self._worst_foreign

    def _has_fresh_report(self, entry: _BackendLoad, now_s: float) -> bool:
        return now_s - entry.reported_s < self._settings.stale_s

    def _drop_if_idle(self, backend: str) -> None:
        entry = self._backends[backend]
        if not entry.member and not entry.own:
            del self._backends[backend]


def _valid(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
