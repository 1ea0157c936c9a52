"""A gateway that blocks its own process, for a test that such a balancer is not excused by the machine."""

from __future__ import annotations

import time
from random import Random

from harness.gateway.protocol import Action, Event
from tests.mutants.limiters import Limiting

STALL_S, EVERY_S = 0.05, 0.1


class Stalls(Limiting):
    """Limits as claimed, but all its work stops for `STALL_S` every `EVERY_S`, on a real clock."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._stalled_s = 0.0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if now_s - self._stalled_s > EVERY_S:
            time.sleep(STALL_S)
            self._stalled_s = now_s
        return super().handle(event, now_s)
