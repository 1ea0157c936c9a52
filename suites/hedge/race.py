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
from harness.scenario.model import Ending, Failure
from suites.hedge.evidence import answers, hedges, models, races, shortest_delay_s, winners
from suites.hedge.scenarios import CANCELLED_WITHIN_S, OTHERS, stalls
from suites.margins import APART_S, GONE_WITHIN_S, margin_s, margins_s


@declare("hedge.delay.not-before", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def delay_not_before(history: History, claims: Claims) -> Findings:
    """No request is hedged before its latency reaches the claimed quantile of its model's recent requests.

    Recent requests are the last answers, up to the claimed window, once the claimed minimum is known. Of W answers the
    quantile is the one of rank ceil(quantile (W + 1)). A window that records the winning attempt's time instead of the
    request's leaves out the wait for the hedge and hedges twice as often; the common rank ceil(.95 W) hedges 5.9 % at W
    = 100. The bound is the shortest delay that any count of the answers so far allows. Known violations: by
    construction only.
    """
    hedge, sent = claims[Hedge], hedges(history)
    asked = history.all_requests().inference()
    numbers, hedged = models(asked["key"], claims), models(sent.of_request("key"), claims).tolist()
    found = {number: answers(history, asked.where(numbers == number)) for number in set(hedged)}
    times_s = zip(sent.of_request("sent_s").tolist(), sent["start_s"].tolist(), strict=True)
    for request, number, (sent_s, start_s) in zip(sent["request"].tolist(), hedged, times_s, strict=True):
        model = found[number]
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
    hedged = races(history)
    if not hedged:
        return
    same = [request for request, legs in hedged.items() if len(np.unique(legs["backend"])) < len(legs)]
    at_s = float(history.requests["sent_s"][same[0] if same else min(hedged)])
    note = f"{len(same)} of {len(hedged)} hedged requests had two attempts at one backend"
    yield held(not same, at_s, len(same), 0, exact=True, sample=len(hedged), note=note)


@declare("hedge.first-good.wins", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def first_good_wins(history: History, claims: Claims) -> Findings:
    """The client of a hedged request gets the first good answer that any of its attempts brings.

    Otherwise the hedge is useless. A request counts only if its other attempt had not answered by then, or answered
    much later. Known violations: go-resty/resty#1197 (cancelling the losers cancels the winner's body too).
    """
    for number, legs in races(history).items():
        good, request = legs.good(), history.requests[number]
        if not good:
            continue
        first = int(good["end_s"].argmin())
        backend, at_s = int(good["backend"][first]), float(good["end_s"][first])
        until_s = at_s + margin_s(history, APART_S, at_s)
        close = len(good.where(good["end_s"] < until_s)) > 1
        left = request["failure"] == Failure.TIMEOUT and request["end_s"] < until_s
        if close or left:
            continue
        answered = bool(request["failure"] == Failure.NONE and request["status"] < 300)
        got = int(request["answered_by"]) if answered else UNSEEN
        received = f"gpu-{got}'s at {request['end_s']:.3f} s" if answered else "none"
        note = f"request {number}: the first good answer was gpu-{backend}'s at {at_s:.3f} s, its client got {received}"
        yield held(got == backend, at_s, got, backend, note=note)


@declare("hedge.error.goes-on", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def error_goes_on(history: History, claims: Claims) -> Findings:
    """An error of one attempt does not end the request while another attempt may still bring a good answer.

    A failing backend is often the fastest. A request counts if one attempt failed while another was in progress that
    later brought a good answer, or that the balancer cancelled at that moment although the client still waited. Seen
    broken: erpc/erpc#418 (the first result won, an error as well).
    """
    for number, legs in races(history).items():
        errors = legs.failed()
        if not errors:
            continue
        at_s = float(errors["end_s"].min())
        in_progress = legs - errors
        in_progress = in_progress.where(in_progress["end_s"] > at_s)
        dropped = in_progress.cancelled()  # later, a timeout may be the reason
        promising = in_progress.good() | dropped.where(dropped["end_s"] <= at_s + CANCELLED_WITHIN_S)
        if not promising or promising.requests().given_up_by_client():
            continue
        status = int(history.requests["status"][number])
        answered = bool(promising.requests().answered())
        note = (
            f"request {number}: one attempt failed at {at_s:.3f} s while another was in progress,"
            f" its client got {status}"
        )
        yield held(answered, at_s, status, (200, 299), note=note)


@declare("hedge.loser.cancelled", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def loser_cancelled(history: History, claims: Claims) -> Findings:
    """The losing attempt is cancelled: its backend sees the connection close within 100 ms of the winner's answer.

    An attempt that continues costs a full answer: 5 % more load if every hedge does so, and at high load the hedges
    themselves overload a fleet. A loser that answers within these 100 ms does not count. Known violations:
    joshrotenberg/tower-resilience#393 (losers run on as detached tasks).
    """
    won = winners(history)
    for request, legs in races(history).items():
        if won[request] == UNSEEN:
            continue
        at_s = float(history.attempts["end_s"][won[request]])
        losers = legs.where(legs.rows != won[request])
        for loser in losers.where(~(losers["end_s"] <= at_s)):
            end_s = float(loser["end_s"])
            where = f"request {request}: gpu-{loser['backend']}, the loser,"
            if np.isnan(end_s):
                yield held(False, at_s, 0, 1, note=f"{where} was never cancelled")
                continue
            cancelled = loser["ending"] == Ending.CLIENT_GONE
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
    left = history.requests_in("impatient").given_up_by_client()
    begun = history.all_requests().inference().answered()
    for settled, column, reason in ((left, "end_s", "clients left"), (begun, "first_byte_s", "answered")):
        if not settled:
            continue
        mine = settled.attempts() & hedges(history)
        settled_s = mine.of_request(column)
        late = mine.where(mine["start_s"] > settled_s + margins_s(history, GONE_WITHIN_S, settled_s))
        at_s = float(late["start_s"][0]) if late else float(np.nanmin(settled[column]))
        note = f"{len(late)} attempts were sent later for {len(settled)} requests ({reason})"
        yield held(not late, at_s, len(late), 0, sample=len(settled), note=note)
