"""Hedging: a slow inference gets a second attempt elsewhere, the first good answer wins, the loser is cancelled.

The cost of hedging, and when it must be off, is judged in suites.hedge.cost.
"""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims, Hedge, Retry
from harness.evidence.history import History
from harness.evidence.tables import UNSEEN
from harness.property.declare import declare
from harness.property.findings import Findings, held, within
from harness.scenario.model import Ending, Failure, Kind
from suites.hedge.evidence import (
    answers,
    failed,
    given_up,
    good,
    inference_hedges,
    models,
    races,
    shortest_delay_s,
    winners,
)
from suites.hedge.scenarios import CANCELLED_WITHIN_S, GONE_WITHIN_S, OTHERS, stalls

APART_S = 0.01
"""If two good answers come within this time, either may be the first for the balancer."""


@declare("hedge.delay.not-before", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def delay_not_before(history: History, claims: Claims) -> Findings:
    """No request is hedged before its latency reaches the claimed quantile of its model's recent requests.

    Recent requests are the last answers, up to the claimed window, once the claimed minimum is known. Of W answers the
    quantile is the one of rank ceil(quantile (W + 1)). A window that records the winning attempt's time instead of the
    request's leaves out the wait for the hedge and hedges twice as often; the common rank ceil(.95 W) hedges 5.9 % at W
    = 100. The bound is the shortest delay that any count of the answers so far allows. Known violations: by
    construction only.
    """
    hedge, requests, attempts = claims[Hedge], history.requests, history.attempts
    numbers = models(history, claims)
    inference = requests["kind"] == Kind.INFERENCE
    rows = inference_hedges(history)
    found = {
        number: answers(history, inference & (numbers == number))
        for number in np.unique(numbers[attempts["request"][rows]]).tolist()
    }
    for row in rows.tolist():
        request = int(attempts["request"][row])
        sent_s, start_s = float(requests["sent_s"][request]), float(attempts["start_s"][row])
        model = found[int(numbers[request])]
        shortest_s = shortest_delay_s(model, sent_s, start_s, hedge)
        if shortest_s is None:
            known = int(np.searchsorted(model.given_s, start_s, side="right"))
            note = f"request {request} was hedged when {known} answers of its model were known"
            yield held(False, sent_s, known, hedge.minimum, until_s=start_s, note=note)
            continue
        note = f"request {request} was hedged after {start_s - sent_s:.4f} s, due after {shortest_s:.4f} s"
        yield within(start_s - sent_s, shortest_s, float("inf"), sent_s, until_s=start_s, note=note)


@declare("hedge.backend.another", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def backend_another(history: History, claims: Claims) -> Findings:
    """A hedge goes to another backend than the attempt it races.

    The same backend is equally slow the second time, and has more work. A balancer with affinity repeats its choice
    unless backends already tried are excluded; a hedge for the first backend is then either wasted or never sent. Seen
    broken: a widely repeated sketch of a hedging balancer picks again by the same key.
    """
    legs = races(history)
    if not legs:
        return
    backends = history.attempts["backend"]
    same = [request for request, rows in legs.items() if len(set(backends[rows].tolist())) < len(rows)]
    at_s = float(history.requests["sent_s"][same[0] if same else min(legs)])
    note = f"{len(same)} of {len(legs)} hedged requests had two attempts at one backend"
    yield held(not same, at_s, len(same), 0, exact=True, sample=len(legs), note=note)


@declare("hedge.first-good.wins", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def first_good_wins(history: History, claims: Claims) -> Findings:
    """The client of a hedged request gets the first good answer that any of its attempts brings.

    Otherwise the hedge is useless. A request counts only if its other attempt had not answered by then, or answered
    much later. Known violations: go-resty/resty#1197 (cancelling the losers cancels the winner's body too).
    """
    attempts, requests, has_answer = history.attempts, history.requests, good(history)
    for request, rows in races(history).items():
        ended = [row for row in rows if has_answer[row]]
        if not ended:
            continue
        first = min(ended, key=lambda row: float(attempts["end_s"][row]))
        at_s = float(attempts["end_s"][first])
        close = [row for row in ended if row != first and attempts["end_s"][row] < at_s + APART_S]
        if close or (given_up(history)[request] and requests["end_s"][request] < at_s + APART_S):
            continue
        backend = int(attempts["backend"][first])
        answered = bool(requests["failure"][request] == Failure.NONE and requests["status"][request] < 300)
        got = int(requests["answered_by"][request]) if answered else UNSEEN
        received = f"gpu-{got}'s at {requests['end_s'][request]:.3f} s" if answered else "none"
        note = (
            f"request {request}: the first good answer was gpu-{backend}'s at {at_s:.3f} s, its client got {received}"
        )
        yield held(got == backend, at_s, got, backend, note=note)


@declare("hedge.error.goes-on", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def error_goes_on(history: History, claims: Claims) -> Findings:
    """An error of one attempt does not end the request while another attempt may still bring a good answer.

    A failing backend is often the fastest. A request counts if one attempt failed while another was in progress that
    later brought a good answer, or that the balancer cancelled at that moment although the client still waited. Seen
    broken: erpc/erpc#418 (the first result won, an error as well).
    """
    attempts, requests, has_answer, bad = history.attempts, history.requests, good(history), failed(history)
    answered, left = history.answered(), given_up(history)
    for request, rows in races(history).items():
        errors = [row for row in rows if bad[row]]
        if not errors:
            continue
        at_s = min(float(attempts["end_s"][row]) for row in errors)
        in_progress = [row for row in rows if not bad[row] and attempts["end_s"][row] > at_s]
        dropped = attempts["ending"] == Ending.CLIENT_GONE  # later, a timeout may be the reason
        promising = [
            row
            for row in in_progress
            if has_answer[row] or (dropped[row] and attempts["end_s"][row] <= at_s + CANCELLED_WITHIN_S)
        ]
        if not promising or (left[request] and not answered[request]):
            continue
        status = int(requests["status"][request])
        note = (
            f"request {request}: one attempt failed at {at_s:.3f} s while another was in progress,"
            f" its client got {status}"
        )
        yield held(bool(answered[request]), at_s, status, (200, 299), note=note)


@declare("hedge.loser.cancelled", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def loser_cancelled(history: History, claims: Claims) -> Findings:
    """The losing attempt is cancelled: its backend sees the connection close within 100 ms of the winner's answer.

    An attempt that continues costs a full answer: 5 % more load if every hedge does so, and at high load the hedges
    themselves overload a fleet. A loser that answers within these 100 ms does not count. Known violations:
    joshrotenberg/tower-resilience#393 (losers run on as detached tasks).
    """
    attempts, won = history.attempts, winners(history)
    for request, rows in races(history).items():
        if won[request] == UNSEEN:
            continue
        at_s = float(attempts["end_s"][won[request]])
        for row in rows:
            end_s = float(attempts["end_s"][row])
            open_end = np.isnan(end_s)
            if row == won[request] or (not open_end and end_s <= at_s):
                continue
            where = f"request {request}: gpu-{attempts['backend'][row]}, the loser,"
            if open_end:
                yield held(False, at_s, 0, 1, note=f"{where} was never cancelled")
                continue
            cancelled = attempts["ending"][row] == Ending.CLIENT_GONE
            if not cancelled and end_s - at_s <= CANCELLED_WITHIN_S:
                continue
            ended = "was cancelled" if cancelled else "answered"
            note = f"{where} {ended} {(end_s - at_s) * 1000:.1f} ms after the winner"
            yield within(end_s - at_s, 0.0, CANCELLED_WITHIN_S, at_s, until_s=end_s, note=note)


@declare("hedge.settled.never", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def settled_never(history: History, claims: Claims) -> Findings:
    """Nothing is sent for a request whose answer has begun or whose client has left.

    The hedge timer must end with the request. The check covers clients that leave long before their request is due for
    a hedge, and all answers. Known violations: thomhurst/Kevlar#14 (hedges after the caller had cancelled).
    """
    requests, attempts = history.requests, history.attempts
    left = given_up(history) & history.in_stream("impatient")
    begun = (requests["kind"] == Kind.INFERENCE) & history.answered()
    rows = inference_hedges(history)
    for settled, settled_s, reason in (
        (left, requests["end_s"], "clients left"),
        (begun, requests["first_byte_s"], "answered"),
    ):
        if not settled.any():
            continue
        mine = rows[settled[attempts["request"][rows]]]
        late = mine[attempts["start_s"][mine] > settled_s[attempts["request"][mine]] + GONE_WITHIN_S]
        at_s = float(attempts["start_s"][late[0]]) if len(late) else float(np.nanmin(settled_s[settled]))
        count = int(np.count_nonzero(settled))
        note = f"{len(late)} attempts were sent later for {count} requests ({reason})"
        yield held(not len(late), at_s, len(late), 0, sample=count, note=note)
