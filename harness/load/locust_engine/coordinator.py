"""The conductor of a run: one plan for all players, one moment to begin, one file of records in the end.

It sits in Locust's master, or in the only process. Clocks of several machines differ: before a run it asks every player
for its time, several times, takes the quickest answer and supposes that both ways took equally long. The error is at
most half that answer's round trip (`clock_error_s` in the file); the players' times are from their own second 0.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import gevent.event
import numpy as np
from locust.env import Environment
from locust.rpc import Message
from locust.runners import STATE_MISSING, LocalRunner, MasterRunner

from harness.evidence import records
from harness.load.locust_engine.messages import TO_CONDUCTOR, Plan, Receipts, named, twice
from harness.load.wire import NONCE_BITS
from harness.scenario.model import Failure, HarnessError

LEAD_S = 0.3
PINGS = 8
LOST_S = 4.0
"""How long a worker may be missing, beyond Locust's own patience with its heartbeat, before it counts as lost."""

SILENT_S = 60.0
"""How long a worker may say nothing after all it is to say should have been said; a busy machine needs far less."""

STOP_S = 20.0
_LOOK_S = 0.05

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Performance:
    """A run under way; `ended` when its file is written."""

    plan: Plan
    receipts: dict[str, Receipts]
    out: str
    ended: gevent.event.Event = field(default_factory=gevent.event.Event)
    stopping: bool = False
    clock_error_s: float = 0.0
    began_unix_s: float = 0.0
    missing_since_s: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    heard_s: dict[str, float] = field(default_factory=dict)


class Coordinator:
    """Takes the messages of `TO_CONDUCTOR`. `finished` is true from the natural end of a run until it is asked for."""

    def __init__(self, environment: Environment, runner: LocalRunner | MasterRunner) -> None:
        self.environment = environment
        self.runner = runner
        self.finished = False
        # Workers outlive a master; what they still have to say of a run of another one must not count.
        self._runs = itertools.count(secrets.randbits(NONCE_BITS))
        self._now: Performance | None = None
        self._pings: dict[str, tuple[float, float, float]] = {}
        for kind in TO_CONDUCTOR:
            runner.register_message(named(kind), partial(self._heard, kind))

    def players(self) -> list[str]:
        """Ids of the players that are there: Locust's workers, or this process itself."""
        runner = self.runner
        if not isinstance(runner, MasterRunner):
            return [runner.client_id]
        return [client.id for client in runner.clients.all if client.state != STATE_MISSING]

    @property
    def chats(self) -> int:
        """How many chats the run under way has."""
        return self._now.plan.chats if self._now is not None else 0

    @property
    def size(self) -> int:
        """How many players a run has: the one under way, else one that began now."""
        now = self._now
        return len(now.receipts if now is not None and not now.ended.is_set() else self.players())

    def begin(self, plan: Plan, out: str) -> None:
        """Start a run for all players that are there. `out` is the file to write, "" for none.

        HarnessError if it cannot be written: the end of a long run is too late to find out.
        """
        if out and (Path(out).is_dir() or not os.access(Path(out).parent, os.W_OK)):
            raise HarnessError(f"--records {out}: cannot be written; expected a file in a folder that can")
        self.finished = False
        players = self.players()
        plan = replace(plan, run=next(self._runs), nonce=secrets.randbits(NONCE_BITS), workers=len(players))
        self._now = Performance(plan, {player: Receipts() for player in players}, out)
        gevent.spawn(self._conduct, self._now)

    def stop(self) -> None:
        """End a run before its time, and wait until what it has made is written."""
        now = self._now
        if now is not None and not now.ended.is_set():
            now.stopping = True
            for player in now.receipts:
                self._say(player, "stop", run=now.plan.run)
            now.ended.wait(STOP_S)
        self.finished = False

    def refuse(self, told: str) -> None:
        """End a run that cannot begin, and say why."""
        self._fail(told)
        self.finished = True

    def _conduct(self, now: Performance) -> None:
        try:
            offsets = self._offsets(now)
            for worker, player in enumerate(now.receipts):
                self._say(player, "plan", **replace(now.plan, worker=worker).as_data())
            self._await(now, lambda player: not now.receipts[player].ready)
            self._complain(now, "before the load began; nothing was sent")
            start_s = monotonic() + LEAD_S + 4 * now.clock_error_s
            for player in now.receipts:
                # A stop before there was a plan was for a run that the player did not know.
                kind = "stop" if now.stopping else "go"
                self._say(player, kind, run=now.plan.run, start_s=start_s + offsets[player])
            now.began_unix_s = time.time() + start_s - monotonic()
            # Locust divides by the time since then, so it must be the load's own beginning.
            gevent.sleep(max(start_s - monotonic() - _LOOK_S, 0.0))
            self.environment.stats.clear_all()
            ends_s = start_s + max(receipts.lasts_s for receipts in now.receipts.values())
            self._await(now, lambda player: not now.receipts[player].complete, ends_s)
            self._write(now)
            if not now.stopping:
                left = "what came before is in the file, the run as a whole proves nothing"
                self._complain(now, f"and with them the records of {_lost(now)}; {left}")
        except Exception as error:
            self._fail(str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}")
        finally:
            for player in now.receipts:
                self._say(player, "stop", run=now.plan.run)
                self._say(player, "thanks", run=now.plan.run)
            self.finished = not now.stopping
            now.ended.set()

    def _offsets(self, now: Performance) -> dict[str, float]:
        """How far each player's clock is ahead of ours, in seconds."""
        if not isinstance(self.runner, MasterRunner):
            return dict.fromkeys(now.receipts, 0.0)
        best: dict[str, tuple[float, float]] = {}
        for _ in range(PINGS):
            self._pings = {}
            for player in now.receipts:
                self._say(player, "clock", asked_s=monotonic())
            self._await(now, lambda player: player not in self._pings)
            for player, (asked_s, told_s, heard_s) in self._pings.items():
                trip_s = heard_s - asked_s
                best[player] = min(best.get(player, (float("inf"), 0.0)), (trip_s, told_s - (asked_s + heard_s) / 2))
        now.clock_error_s = max((trip_s / 2 for trip_s, _ in best.values()), default=0.0)
        return {player: best[player][1] if player in best else 0.0 for player in now.receipts}

    def _await(self, now: Performance, owes: Callable[[str], bool], due_s: float | None = None) -> None:
        """Return once no player owes a word any more but those that are lost.

        Lost is also who says nothing at all for `SILENT_S`, counted from `due_s` at the earliest; without `due_s` from
        when another player owes nothing any more.
        """
        while owing := [player for player in now.receipts if player not in now.lost and owes(player)]:
            self._look_for_lost(now)
            if due_s is None and len(owing) + len(now.lost) < len(now.receipts):
                due_s = monotonic()
            for player in owing:
                if due_s is not None and monotonic() - max(due_s, now.heard_s.get(player, due_s)) > SILENT_S:
                    now.lost.add(player)
                    _logger.error("Worker %s has not said a word for %g s; it is given up", player, SILENT_S)
            gevent.sleep(_LOOK_S)

    def _look_for_lost(self, now: Performance) -> None:
        runner = self.runner
        if not isinstance(runner, MasterRunner):
            return
        for player in now.receipts.keys() - now.lost:
            client = runner.clients.get(player)
            if now.receipts[player].complete:  # it has handed over everything and may go
                continue
            if client is None:
                now.lost.add(player)
                _logger.error("Worker %s has left in the middle of the run; the others go on without it", player)
            elif client.state != STATE_MISSING:
                if now.missing_since_s.pop(player, None) is not None:
                    _logger.warning("Worker %s answers again", player)
            elif player not in now.missing_since_s:
                now.missing_since_s[player] = monotonic()
                _logger.error("Worker %s does not answer any more; the others go on without it", player)
            elif monotonic() - now.missing_since_s[player] > LOST_S:
                now.lost.add(player)

    def _heard(self, kind: str, environment: Environment, msg: Message) -> None:
        now, data = self._now, msg.data
        player = data["player"]
        if now is not None:
            now.heard_s[player] = monotonic()
        if kind == "clock_told":
            self._pings[player] = (data["asked_s"], data["told_s"], monotonic())
            return
        if now is None or data["run"] != now.plan.run or player not in now.receipts:
            return
        receipts = now.receipts[player]
        if kind == "ready":
            receipts.ready, receipts.error = True, data["error"]
            receipts.requests, receipts.lasts_s = data["requests"], data["lasts_s"]
        elif kind == "records":
            receipts.put(data["batch"], data["rows"], data["backends"])
            self._say(player, "ack", run=now.plan.run, batch=data["batch"], rows=receipts.rows)
        else:
            receipts.told(data["batches"], data["rows"])
            receipts.error, receipts.lateness_s, receipts.leaving = data["error"], data["lateness_s"], data["leaving"]
            if receipts.complete:
                self._say(player, "thanks", run=now.plan.run)

    def _complain(self, now: Performance, lost_is: str) -> None:
        """HarnessError if something went wrong with a player. `lost_is`: what it means that one was lost."""
        told = sorted({receipts.error for receipts in now.receipts.values() if receipts.error})
        if now.lost:
            told.append(f"{len(now.lost)} of {len(now.receipts)} workers were lost {lost_is}")
        if told:
            raise HarnessError("; ".join(told))

    def _write(self, now: Performance) -> None:
        numbers: dict[str, int] = {}
        rows = np.concatenate([receipts.all_rows(numbers) for receipts in now.receipts.values()])
        about = {
            **now.plan.as_data(),
            "backends": list(numbers),
            "began_unix_s": now.began_unix_s,
            "clock_error_s": now.clock_error_s,
            "lost": None if _unknown(now) else _missing(now),
            "leaving": sorted(number for receipts in now.receipts.values() for number in receipts.leaving),
            "players": [
                {"rows": receipts.rows, "lateness_s": receipts.lateness_s} for receipts in now.receipts.values()
            ],
        }
        for name in ("worker", "load"):
            del about[name]
        late = max((receipts.lateness_s.get("p99", 0.0) for receipts in now.receipts.values()), default=0.0)
        unsent = int((rows["failure"] == Failure.NOT_SENT).sum())
        told = f"{len(rows)} records from {len(now.receipts)} players, {_lost(now)} lost, {unsent} not sent"
        told += f"; p99 of lateness {late * 1e3:.2f} ms"
        if now.out:
            records.write_requests(Path(now.out), rows, about)
            told += f"; written to {now.out}"
        _logger.info("%s", told)
        if doubled := twice(rows):
            self._fail(doubled)

    def _fail(self, told: str) -> None:
        """Say what went wrong where users of Locust look: the log, the page's list of exceptions, the exit code."""
        _logger.error("Steelyard: %s", told)
        self.environment.process_exit_code = 1
        self.runner.log_exception("steelyard", told, told)

    def _say(self, player: str, kind: str, **data: Any) -> None:
        self.runner.send_message(named(kind), data, player)


def _missing(now: Performance) -> int:
    """How many records the players that are lost still owed, as far as is known."""
    return sum(now.receipts[player].missing for player in now.lost)


def _unknown(now: Performance) -> bool:
    """Whether nobody can say that: what chats would have asked is not known before."""
    return bool(now.lost) and now.plan.chats > 0


def _lost(now: Performance) -> str:
    if _unknown(now):
        return "an unknown number of requests"
    return f"{_missing(now)} or more requests" if now.lost else "none"
