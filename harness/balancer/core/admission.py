"""Admission control: admit, queue or reject requests; release their slots; own the queue's single timer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from harness.balancer.core.exchange import Exchange
from harness.balancer.requests.limits import Admission, AdmissionSettings, Admitted, Queued, Rejected
from harness.gateway.protocol import Action, Reply, Request, SetTimer
from harness.scenario.fast_dataclass import fast_dataclass


@fast_dataclass
class AdmissionDecision:
    """Decision on a new request. It starts now if `admitted`, else it is queued, unless its id is `rejected`.

    `rejected` may also be the id of a queued request that was displaced by the new one, which has a higher urgency.
    `actions`: to be carried out before the request starts.
    """

    admitted: bool
    actions: list[Action]
    rejected: int | None = None


class AdmissionGate:
    """Admission control of the gateway.

    `set_timer` returns the action that sets the queue's timer to a time in seconds; when it fires, the gateway calls
    `timer_fired`. `ready`: ids of queued requests that were admitted, in order; the gateway removes and starts them.
    """

    def __init__(self, settings: AdmissionSettings, set_timer: Callable[[float], SetTimer]) -> None:
        self._admission = Admission(settings)
        self._set_timer = set_timer
        self._timer_id = 0
        self._unfinished: dict[int, int] = {}
        """Number of attempts in flight of each request that is complete for its client; these hold the slot."""
        self.ready: deque[int] = deque()

    @property
    def idle(self) -> bool:
        """Whether no slot is held by a request that is complete for its client."""
        return not self._unfinished

    def submit(self, request: Request, now_s: float) -> AdmissionDecision:
        """Decide on a new request, after admitting the queued requests that are due."""
        actions = self._admit_waiting(self._admission.due(now_s), now_s)
        result = self._admission.submit(request.id, request.urgency, request.prompt_tokens, now_s)
        match result:
            case Admitted():
                return AdmissionDecision(True, actions)
            case Rejected(status, retry_after_s):
                reply = Reply(request.id, status, "over the limit", retry_after_s)
                return AdmissionDecision(False, [*actions, reply], request.id)
            case Queued(shed, refused):
                if shed is not None and refused is not None:
                    actions.append(Reply(shed, refused.status, "displaced by urgency", refused.retry_after_s))
                return AdmissionDecision(False, actions + self._update_timer(now_s), shed)

    def timer_fired(self, now_s: float) -> list[Action]:
        """The queue's timer fired: admit the queued requests that are due."""
        self._timer_id = 0
        return self._admit_waiting(self._admission.due(now_s), now_s)

    def client_done(self, exchange: Exchange, now_s: float) -> list[Action]:
        """A request is complete for its client: release its slot once none of its attempts is in flight."""
        request_id = exchange.request.id
        if not exchange.admitted:
            return self._admit_waiting(self._admission.gone(request_id, now_s), now_s)
        if exchange.in_flight:
            self._unfinished[request_id] = exchange.in_flight
            return []
        return self._admit_waiting(self._admission.ended(request_id, now_s), now_s)

    def attempt_ended(self, request_id: int, now_s: float) -> list[Action]:
        """An attempt ended; release the slot if it was the last one of a request that is complete for its client."""
        if request_id not in self._unfinished:
            return []
        self._unfinished[request_id] -= 1
        if self._unfinished[request_id]:
            return []
        del self._unfinished[request_id]
        return self._admit_waiting(self._admission.ended(request_id, now_s), now_s)

    def _admit_waiting(self, request_ids: list[int], now_s: float) -> list[Action]:
        """Move requests to `ready`; the gateway starts them after the current event."""
        self.ready.extend(request_ids)
        return self._update_timer(now_s)

    def _update_timer(self, now_s: float) -> list[Action]:
        """Set the queue's timer to the time at which the rate limits admit the next request, if that is known."""
        due_s = self._admission.next_s(now_s)
        if due_s is None:
            return []
        if self._timer_id:
            return [SetTimer(self._timer_id, due_s)]
        action = self._set_timer(due_s)
        self._timer_id = action.timer_id
        return [action]
