"""Session affinity: sessions stay with the backend that caches their state, unless it is overloaded.

- A session's **home** is the backend of its first request: the first eligible one in ring order that is not overloaded.
  It remains the home when others join.
- A backend is **overloaded** from the time its load reaches the cap until it is below `return_share` of the cap. The
  cap is `load_factor` times the mean load of the eligible backends, but at least `least_cap`, so that sessions keep
  their caches in a nearly idle fleet. The gap is a hysteresis that prevents flapping near the threshold.
- Sessions of an overloaded home are **moved** to the next backend in ring order that is not overloaded. Each stays
  there for at least `stay_s`, and returns when its home is no longer overloaded. If all are overloaded, no session
  moves.
- A home that is not eligible is replaced: the backend that the session falls back to becomes its home, as its cache is
  there now (seen broken: traefik/traefik#2192, traefik/traefik#7767).
- A session is dropped `expiry_s` after its last request, when the table is full (the least recently used first), and
  when its backend left or lost its cache (seen broken: smg-project/smg#2213).

Only eligible backends count in the comparison of loads (seen broken: vllm-project/router#254).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AffinitySettings:
    """See the module. `least_cap`: in the unit of the loads. `sessions`: maximum number of sessions kept."""

    load_factor: float = 1.5
    least_cap: float = 4.0
    return_share: float = 0.75
    stay_s: float = 5.0
    expiry_s: float = 600.0
    sessions: int = 10_000

    def __post_init__(self) -> None:
        if not (self.load_factor >= 1 and self.least_cap >= 0 and 0 < self.return_share <= 1):
            raise ValueError(
                f"load_factor {self.load_factor}, least_cap {self.least_cap} and return_share {self.return_share}:"
                " expected 1 or more, 0 or more, and above 0 up to 1"
            )
        if not (self.stay_s >= 0 and self.expiry_s > 0 and self.sessions >= 1):
            raise ValueError(
                f"stay_s {self.stay_s}, expiry_s {self.expiry_s} and sessions {self.sessions}:"
                " expected 0 or more, above 0, and 1 or more"
            )


@dataclass(slots=True)
class _Session:
    home: str
    used_s: float
    away: str | None = None
    moved_s: float = 0.0


class SessionAffinity:
    """Assigns sessions to backends. Times are seconds on the caller's clock."""

    def __init__(self, settings: AffinitySettings) -> None:
        self._settings = settings
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """Least recently used first."""
        self._overloaded: set[str] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def choose(
        self,
        session: str,
        in_ring_order: Iterable[str],
        eligible: Callable[[str], bool],
        load: Callable[[str], float],
        mean_load: float,
        now_s: float,
    ) -> str | None:
        """The backend of a request of `session`; None if no backend is eligible.

        `in_ring_order`: all backends from the session's position on, read only if the session must be placed or moved.
        `load` and `mean_load`: in the same unit (such as requests in flight), without the new request; the mean is over
        the eligible backends.
        """
        self._expire(now_s)
        cap = max(self._settings.least_cap, self._settings.load_factor * mean_load)

        def has_room(backend: str) -> bool:
            return eligible(backend) and not self._is_overloaded(backend, load(backend), cap)

        known = self._sessions.get(session)
        if known is None or not self._drop_ineligible(known, eligible):
            self._sessions.pop(session, None)
            return self._place(session, in_ring_order, eligible, has_room, load, now_s)
        self._sessions.move_to_end(session)
        known.used_s = now_s
        self._move(known, in_ring_order, has_room, now_s)
        return known.away or known.home

    def forget(self, backend: str) -> None:
        """Drop `backend`, which left or lost its cache, from all sessions."""
        self._overloaded.discard(backend)
        for session, known in list(self._sessions.items()):
            if known.away == backend:
                known.away = None
            if known.home != backend:
                continue
            if known.away is None:
                del self._sessions[session]
            else:
                known.home, known.away = known.away, None

    def _drop_ineligible(self, known: _Session, eligible: Callable[[str], bool]) -> bool:
        """Drop the session's backends that are not eligible; returns whether it still has one."""
        if known.away is not None and not eligible(known.away):
            known.away = None
        if eligible(known.home):
            return True
        if known.away is None:
            return False
        known.home, known.away = known.away, None
        return True

    def _move(
        self, known: _Session, in_ring_order: Iterable[str], has_room: Callable[[str], bool], now_s: float
    ) -> None:
        home_has_room = has_room(known.home)
        if known.away is None:
            if home_has_room:
                return
        elif home_has_room and now_s - known.moved_s >= self._settings.stay_s:
            known.away = None
            return
        elif has_room(known.away):
            return
        elif home_has_room:
            known.away = None
            return
        other = next((backend for backend in in_ring_order if has_room(backend)), None)
        if other is not None:
            known.away, known.moved_s = other, now_s

    def _place(
        self,
        session: str,
        in_ring_order: Iterable[str],
        eligible: Callable[[str], bool],
        has_room: Callable[[str], bool],
        load: Callable[[str], float],
        now_s: float,
    ) -> str | None:
        full: list[str] = []
        for backend in in_ring_order:
            if not eligible(backend):
                continue
            if has_room(backend):
                break
            full.append(backend)
        else:
            if not full:
                return None
            backend = min(full, key=load)
        self._sessions[session] = _Session(backend, now_s)
        if len(self._sessions) > self._settings.sessions:
            self._sessions.popitem(last=False)
        return backend

    def _is_overloaded(self, backend: str, load: float, cap: float) -> bool:
        limit = self._settings.return_share * cap if backend in self._overloaded else cap
        if load < limit:
            self._overloaded.discard(backend)
            return False
        self._overloaded.add(backend)  # also if the load is not a number
        return True

    def _expire(self, now_s: float) -> None:
        while self._sessions:
            session = next(iter(self._sessions))
            if now_s - self._sessions[session].used_s < self._settings.expiry_s:
                return
            del self._sessions[session]
