"""Traffic of a backend after its recovery."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Breaker, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, sampled
from suites.breaker.evidence import calls_of, own_keys, tripped
from suites.breaker.scenarios import FAULTY, MASKS, OTHERS, one_fails


@declare("breaker.recovery.full-share", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=one_fails)
def recovers_to_full_share(history: History, claims: Claims) -> Findings:
    """A recovered backend gets all of its traffic back after the claimed number of good probes.

    With affinity, all requests of its keys go to it again. Without affinity, its share is tested against the fair
    share; 40 % less or more is a violation. Requests count from the time by which the longest open time and the probes
    must be over. Known violations: probe permits consumed by checking candidates, so that a backend is never probed
    again; Netflix/Hystrix#1781 (stays open after recovery under load).
    """
    breaker, calls = claims[Breaker], calls_of(history, FAULTY)
    phase = history.scenario.phase("after")
    if tripped(history, calls, breaker) is None:
        return
    own = own_keys(history, FAULTY, history.scenario.phase("before").end_s)
    number = history.scenario.backend_ids.index(FAULTY)
    sent = history.all_requests().sent_between(phase.start_s, np.inf)
    if Affinity not in claims:
        fair = 1.0 / history.scenario.backends
        hits = (sent.first_backends() == number).tolist()
        yield sampled(
            hits, conform=(fair, fair), violate=(0.6 * fair, 1.4 * fair), at_s=phase.start_s, until_s=phase.end_s
        )
        return
    owned = sent.with_keys(own)
    if not len(owned):
        return
    strayed, sample = len(owned) - len(owned.first_on(FAULTY)), len(owned)
    note = f"{strayed} of {sample} requests of {FAULTY}'s keys went elsewhere after it had recovered"
    yield held(strayed == 0, phase.start_s, strayed, 0, until_s=phase.end_s, sample=sample, note=note)
