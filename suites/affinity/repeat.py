"""Repeated requests with the same key while the fleet does not change."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import SEVERAL, History
from harness.evidence.tables import UNSEEN
from harness.property.declare import declare
from harness.property.findings import Findings, undecided
from suites.affinity.evidence import key_count
from suites.scenarios import DISTURBING, KEY_MOVERS, steady, too_few_reached


@declare("affinity.repeat.same-backend", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=steady)
def repeat_same_backend(history: History, claims: Claims) -> Findings:
    """Requests with the same key go to the same backend while the fleet does not change.

    Every key is sent four times. Known violations: a balancer that loses its key (nginx and HAProxy fall back to round
    robin when the header is absent), workers of one balancer that hash differently.
    """
    owners = history.owners("traffic")
    observed = int(np.count_nonzero(owners != UNSEEN))
    if not observed:
        return
    if reason := too_few_reached(history, "traffic"):
        yield undecided(reason)
        return
    strayed = int(np.count_nonzero(owners == SEVERAL))
    note = f"{strayed} of {observed} keys went to more than one backend"
    yield key_count(history, claims, strayed, 0, observed, note)
