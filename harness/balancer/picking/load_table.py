"""What is known of each backend's load: our own requests in flight, counted here, and what it reports of itself.

The **own** part is exact: one increment per send and one decrement per ticket, on every way out. It never expires, and
health checks never touch it (seen broken: vllm-project/router#215, vllm-project/router#197, BerriAI/litellm#40401).

The **foreign** part is what a backend does for others: its report less what of ours was in flight when it was asked.
Between reports the load is foreign part plus own part of now, so that what was sent since the report counts at once
(seen broken: vllm-project/router#177) and what the report covers already doesn't count twice (a review note on
vllm-project/router#178). In doubt about a moment, a backend counts as busier.

A signal that is missing, stale or garbage is not idleness: backends whose load read 0 because it could not be read drew
all requests (sgl-project/sglang#15473, vllm-project/router#174, sgl-project/sglang#32070). Here the foreign part of
such a backend counts as the **worst** that the others reported last, and not as their mean, because a server that can't
answer a health check is more often overloaded than not; own requests count as ever. Without any report this is least
connections. `silent` names these backends, so that the loss can be shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """`tokens_per_request`: pending tokens that weigh as much as one request.

    A report is `stale` from `stale_s` after it was asked for; one with more than `most_requests` or `most_tokens` is
    garbage.
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
class _Known:
    member: bool = True
    own: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Tokens and time of sending of our own requests in flight, by ticket."""
    own_tokens: int = 0
    foreign_requests: float = 0.0
    foreign_tokens: float = 0.0
    reported_s: float = -math.inf


class LoadTable:
    """Loads by backend. Times are seconds on the caller's clock, loads are requests."""

    def __init__(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._known: dict[str, _Known] = {}
        self._backend_of: dict[int, str] = {}
        self._tickets = count(1)
        self._last_report_s = -math.inf
        self._worst_known: tuple[float, float] | None = None

    @property
    def total_in_flight(self) -> int:
        """Own requests in flight, over all backends, those that left included."""
        return len(self._backend_of)

    @property
    def backends(self) -> frozenset[str]:
        """All backends of which there is state: the members, and those that left with requests in flight."""
        return frozenset(self._known)

    def set_backends(self, backends: Iterable[str]) -> None:
        """Make `backends` the members; the state of those that stay is kept.

        One that left is forgotten once nothing of ours is in flight there. One that returns has no report yet.
        """
        wanted = frozenset(backends)
        self._worst_known = None
        for name in [name for name, known in self._known.items() if name not in wanted]:
            self._known[name].member = False
            self._known[name].reported_s = -math.inf
            self._drop_if_done(name)
        for name in wanted:
            known = self._known.setdefault(name, _Known())
            if not known.member:
                known.member, known.foreign_requests, known.foreign_tokens = True, 0.0, 0.0

    def sent(self, backend: str, tokens: int, now_s: float) -> int:
        """Count a request with `tokens` of work, sent to a member just now; the ticket is for `ended`."""
        known = self._known[backend]
        ticket = next(self._tickets)
        known.own[ticket] = (tokens, now_s)
        known.own_tokens += tokens
        self._backend_of[ticket] = backend
        return ticket

    def ended(self, ticket: int) -> bool:
        """The request of `ticket` is over, however it ended. False, and nothing counted, if it was over before."""
        backend = self._backend_of.pop(ticket, None)
        if backend is None:
            return False
        known = self._known[backend]
        known.own_tokens -= known.own.pop(ticket)[0]
        if not known.member:
            self._drop_if_done(backend)
        return True

    def in_flight(self, backend: str) -> int:
        """Own requests in flight at `backend`."""
        known = self._known.get(backend)
        return 0 if known is None else len(known.own)

    def report(self, backend: str, queue_depth: float, pending_tokens: float, running: float, at_s: float) -> bool:
        """Take a backend's own account of requests queued, tokens pending and requests running.

        `at_s` is when the backend was asked. False, and nothing changed, if the report is garbage, older than the last
        one, or of a backend that is no member.
        """
        known = self._known.get(backend)
        if known is None or not known.member or not math.isfinite(at_s) or at_s < known.reported_s:
            return False
        most = self._settings
        if not (_sane(queue_depth, most.most_requests) and _sane(running, most.most_requests)):
            return False
        if not _sane(pending_tokens, most.most_tokens):
            return False
        covered = [tokens for tokens, sent_s in known.own.values() if sent_s < at_s]
        known.foreign_requests = max(0.0, queue_depth + running - len(covered))
        known.foreign_tokens = max(0.0, pending_tokens - sum(covered))
        known.reported_s = at_s
        self._last_report_s = max(self._last_report_s, at_s)
        self._worst_known = None
        return True

    def composite(self, backend: str, health: float, now_s: float) -> float:
        """Work that would be pending at `backend` with one more request, over its `health` (above 0, 1 is full).

        In requests; infinite for a health of 0 or none, and for a backend that is no member. One more, because an idle
        backend of little health is not as good as an idle one of full health.
        """
        known = self._known.get(backend)
        if known is None or not known.member or not health > 0:
            return math.inf
        requests, tokens = known.foreign_requests, known.foreign_tokens
        if not self._heard(known, now_s):
            worst_requests, worst_tokens = self._worst()
            requests, tokens = max(requests, worst_requests), max(tokens, worst_tokens)
        requests += len(known.own)
        tokens += known.own_tokens
        return (requests + tokens / self._settings.tokens_per_request + 1.0) / health

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Members without a fresh, sane report, sorted."""
        members = ((name, known) for name, known in self._known.items() if known.member)
        return tuple(sorted(name for name, known in members if not self._heard(known, now_s)))

    def _worst(self) -> tuple[float, float]:
        """The most foreign requests and tokens that were fresh at the last report; found once for each report."""
        if self._worst_known is None:
            fresh = [known for known in self._known.values() if self._heard(known, self._last_report_s)]
            self._worst_known = (
                max((known.foreign_requests for known in fresh), default=0.0),
                max((known.foreign_tokens for known in fresh), default=0.0),
            )
        return self._worst_known

    def _heard(self, known: _Known, now_s: float) -> bool:
        return now_s - known.reported_s < self._settings.stale_s

    def _drop_if_done(self, backend: str) -> None:
        known = self._known[backend]
        if not known.member and not known.own:
            del self._known[backend]


def _sane(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
