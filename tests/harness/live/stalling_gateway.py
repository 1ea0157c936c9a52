"""A gateway that blocks its own process, for a test that such a balancer is not excused by the machine."""

from __future__ import annotations

import time
from random import Random

from harness.gateway.protocol import Action, Event, Reply
from tests.mutants.limiters import Limiting

STALL_S, EVERY = 0.05, 3


class Stalls(Limiting):
    """Limits as claimed, but all its work stops for `STALL_S` at every third rejection, on a real clock."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._rejections = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        actions = super().handle(event, now_s)
        for action in actions:
            if isinstance(action, Reply):
                self._rejections += 1
                if self._rejections % EVERY == 0:
                    time.sleep(STALL_S)
        return actions
