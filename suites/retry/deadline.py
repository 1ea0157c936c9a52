"""Retries and time: one deadline for all attempts of a request, and no retry of attempts that timed out."""

from __future__ import annotations

from harness.claims.features import Claims, Hedge, Retry
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, within
from harness.scenario.faults import Hang
from harness.scenario.model import Failure, Keys, Kind, Load, Phase, Scenario, Stream, UnsupportedError
from suites.margins import NOTICE_S
from suites.retry.attempts import OTHERS
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
    reached = history.all_requests().reached()
    slow = reached.where(reached["end_s"] - reached["sent_s"] >= USED_UP * deadline_s)
    counts = slow.attempt_counts()
    for name, judged in (
        ("after one attempt", slow.where(counts == 1)),
        ("after several attempts", slow.where(counts > 1)),
    ):
        if not judged:
            continue
        longest_s = float((judged["end_s"] - judged["sent_s"]).max())
        note = f"{name}: the slowest of {len(judged)} was answered after {longest_s:.3f} s"
        at_s, until_s = float(judged["sent_s"].min()), float(judged["end_s"].max())
        yield within(longest_s, 0.0, deadline_s + NOTICE_S, at_s, until_s=until_s, sample=len(judged), note=note)
    retries = history.all_attempts().inference().later()
    if retries:
        begun_s = float((retries["start_s"] - retries.of_request("sent_s")).max())
        note = f"the latest of {len(retries)} retries began after {begun_s:.3f} s"
        at_s = float(retries["start_s"].max())
        yield within(begun_s, 0.0, deadline_s + NOTICE_S, at_s, sample=len(retries), note=note)


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
    timed_out = history.all_attempts().given_up_by_balancer()
    # If the client left first, the balancer had no decision to make.
    judged = timed_out.where(timed_out.of_request("failure") != Failure.TIMEOUT) | timed_out.followed()
    kinds = {"updates": judged.updates()}
    if not claims[Retry].on_timeout:
        kinds["inference"] = judged.inference()
    for name, attempts in kinds.items():
        if not attempts:
            continue
        again = len(attempts.followed())
        note = f"{name}: {again} of {len(attempts)} that timed out reached a backend again"
        at_s = float(attempts["start_s"][0])
        yield held(again == 0, at_s, again, 0, exact=True, sample=len(attempts), note=note)
