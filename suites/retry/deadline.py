"""Retries and time: one deadline for all attempts of a request, and no retry of attempts that timed out."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims, Hedge, Retry
from harness.evidence.history import History
from harness.evidence.tables import UNSEEN
from harness.property.declare import declare
from harness.property.findings import Findings, held, within
from harness.scenario.faults import Hang
from harness.scenario.model import Failure, Keys, Kind, Load, Phase, Scenario, Stream, UnsupportedError
from suites.retry.attempts import OTHERS
from suites.retry.evidence import counts, followers, given_up, inference, updates
from suites.scenarios import key_carrier

BEGIN_S = 0.1
SENDING_S = 0.5
RATE_PER_S = 80.0
UPDATES_PER_S = 30.0
FREE_AFTER = 0.6
"""Share of the deadline after which the first backend drops its requests; a retry then has less than half of it left.
"""

PATIENCE = 2.0
"""Clients wait for twice the deadline, so that they see whether the balancer keeps it."""

NOTICE_S = 0.05
"""Time that a request and its answer may take between client and balancer; the balancer's clock runs in between."""

USED_UP = 0.9
"""A request tests a deadline if it took at least this share of it."""


def _deadline_s(claims: Claims) -> float:
    """The claimed deadline in seconds; UnsupportedError if none is claimed."""
    deadline_s = claims[Retry].deadline_s
    if deadline_s is None:
        raise UnsupportedError("no deadline is claimed")
    return deadline_s


def time_runs_out(claims: Claims) -> Scenario:
    """All backends hang; after .6 of the deadline the first drops its requests, and retries find the next hanging."""
    deadline_s = _deadline_s(claims)
    backends = claims.fleet(2)
    patience_s = PATIENCE * deadline_s
    freed_s = BEGIN_S + FREE_AFTER * deadline_s
    traffic = Stream(
        "traffic", BEGIN_S, RATE_PER_S, int(RATE_PER_S * SENDING_S), Keys(60, "sweep"), timeout_s=patience_s
    )
    streams = [traffic]
    if claims.protocol == "http":
        count = int(UPDATES_PER_S * SENDING_S)
        streams.append(Stream("updates", BEGIN_S, UPDATES_PER_S, count, kind=Kind.UPDATE, timeout_s=patience_s))
    hangs = [Hang(f"gpu-{number}", 0.0) for number in range(1, backends)]
    return Scenario(
        name="time-runs-out",
        backends=backends,
        load=Load(tuple(streams), key_carrier(claims)),
        timeline=(Hang("gpu-0", 0.0, for_s=freed_s), *hangs),
        phases=(Phase("all hang", 0.0, freed_s), Phase("one is free", freed_s, BEGIN_S + SENDING_S + deadline_s)),
        intervals_s=(deadline_s,),
    )


@declare("retry.deadline.holds", needs=(Retry,), without=(Hedge,), off=OTHERS, scenario=time_runs_out)
def deadline_holds(history: History, claims: Claims) -> Findings:
    """One deadline covers all attempts of a request: it is answered by then, and no attempt begins later.

    A separate timeout for each attempt multiplies with the number of attempts, and the backoffs add to it; an answer
    after the client has lost interest is wasted work. Known violations: line/armeria#627, linkerd/linkerd#494,
    googleapis/java-bigtable-hbase#1858.
    """
    deadline_s = _deadline_s(claims)
    requests, attempts = history.requests, history.attempts
    took_s = requests["end_s"] - requests["sent_s"]
    attempt_counts = counts(history)
    judged = (attempt_counts > 0) & (took_s >= USED_UP * deadline_s)
    for name, mask in (("after one attempt", attempt_counts == 1), ("after several attempts", attempt_counts > 1)):
        rows = np.flatnonzero(judged & mask)
        if not len(rows):
            continue
        longest = rows[int(took_s[rows].argmax())]
        note = f"{name}: the slowest of {len(rows)} was answered after {took_s[longest]:.3f} s"
        at_s, until_s = float(requests["sent_s"][rows].min()), float(requests["end_s"][rows].max())
        observed_s, high_s = float(took_s[longest]), deadline_s + NOTICE_S
        yield within(observed_s, 0.0, high_s, at_s, until_s=until_s, sample=len(rows), note=note)
    again = followers(history)
    again = again[inference(history) & (again != UNSEEN)]
    if len(again):
        begun_s = attempts["start_s"][again] - requests["sent_s"][attempts["request"][again]]
        note = f"the latest of {len(again)} retries began after {begun_s.max():.3f} s"
        at_s = float(attempts["start_s"][again].max())
        yield within(float(begun_s.max()), 0.0, deadline_s + NOTICE_S, at_s, sample=len(again), note=note)


@declare(
    "retry.timeout.only-claimed",
    needs=(Retry,),
    without=(Hedge,),
    off=OTHERS,
    scenario=time_runs_out,
)
def timeout_only_claimed(history: History, claims: Claims) -> Findings:
    """An attempt that timed out is not retried unless that is claimed, and an update never is.

    The backend may still be working on it: a retry elsewhere doubles the load of a fleet that is already too slow, and
    carries an update out twice. Known violations: rancher/rancher#35424.
    """
    following = followers(history)
    patient = history.requests["failure"] != Failure.TIMEOUT
    # If the client left first, the balancer had no decision to make.
    judged = given_up(history) & (patient[history.attempts["request"]] | (following != UNSEEN))
    kinds = {"updates": updates(history)}
    if not claims[Retry].on_timeout:
        kinds["inference"] = inference(history)
    for name, mask in kinds.items():
        rows = np.flatnonzero(judged & mask)
        if not len(rows):
            continue
        again = int(np.count_nonzero(following[rows] != UNSEEN))
        note = f"{name}: {again} of {len(rows)} that timed out reached a backend again"
        at_s = float(history.attempts["start_s"][rows[0]])
        yield held(again == 0, at_s, again, 0, exact=True, sample=len(rows), note=note)
