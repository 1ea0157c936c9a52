"""Mutants of passive ejection, each with one fault."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.health import ejection
from harness.balancer.settings import EjectionSettings
from harness.claims.features import Ejection
from tests.mutants.nothing import NOTHING_ON

GOOD = EjectionSettings(failures=5, open_s=1.0, cap_share=0.5)


class Ejecting(ReferenceGateway):
    """No fault: the reference with passive ejection only."""

    claims: tuple[Ejection, ...] = (Ejection(failures=5, open_s=1.0, statuses=(500,), cap_share=0.5),)
    ejection = GOOD

    def __init__(self, random: Random) -> None:
        super().__init__(replace(NOTHING_ON, ejection=self.ejection), random)


class NoCap(Ejecting):
    """Ejects every failing backend, up to all but the last."""

    kills = ("ejection.cap.never-more",)
    ejection = replace(GOOD, cap_share=1.0)


class HalfTheTime(Ejecting):
    """Returns a backend after half of the claimed time."""

    kills = ("ejection.out.gets-nothing",)
    ejection = replace(GOOD, open_s=0.5)


class _RoundsDown(ejection.PassiveEjection):
    def _ejection_slots(self) -> int:
        return int(0.1 * self._members)


class CapOfNobody(Ejecting):
    """Rounds a tenth of four backends down to zero, and so never ejects."""

    kills = ("ejection.out.gets-nothing",)
    vacuous = ("ejection.cap.never-more",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members._ejection = _RoundsDown(GOOD.failures, GOOD.open_s, GOOD.cap_share)
