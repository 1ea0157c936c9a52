"""The distribution of keys over a fleet that does not change."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.stats import ALPHA, remap_band
from suites.scenarios import DISTURBING, KEY_MOVERS, leave_and_return, too_few_reached


@declare(
    "affinity.balance.within-band", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=leave_and_return
)
def balance_within_band(history: History, claims: Claims) -> Findings:
    """The balancer distributes keys over the backends as evenly as the claimed algorithm does.

    The number of keys of each backend lies in its band, at a total false-alarm rate of 1e-4: beta-binomial for the
    claimed virtual nodes of a ring, binomial for the other algorithms. With 1,000 keys this distinguishes 150 points
    per backend from a few points, not from 50, because the spread of shares falls only with the square root of the
    points. Known violations: graphite-project/carbon#485, istio/istio#52871 (very uneven rings); HAProxy's djb2 without
    avalanche used two to four of eight backends.
    """
    owners = history.owners("before")
    owners = owners[owners >= 0]
    keys, backends = len(owners), history.scenario.backends
    if not keys:
        return
    if reason := too_few_reached(history, "before"):
        yield undecided(reason)
        return
    affinity, mean = claims[Affinity], keys / backends
    low, high = remap_band(keys, backends, affinity.algorithm, affinity.virtual_nodes, ALPHA / backends)
    for number, count in enumerate(np.bincount(owners, minlength=backends)[:backends].tolist()):
        yield held(
            low <= count <= high,
            at_s=0.0,
            until_s=history.scenario.end_s,
            observed=count / mean,
            bound=(low / mean, high / mean),
            sample=keys,
            alpha=ALPHA / backends,
            note=f"gpu-{number} got {count} of {keys} keys, {count / mean:.2f} of the mean",
        )
