"""The way in where limits are on: who may begin, who waits, whose place is free again, and the queue's one timer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from harness.balancer.core.exchange import Exchange
from harness.balancer.requests.limits import Admission, AdmissionSettings, Admitted, Queued, Rejected
from harness.gateway.protocol import Action, Reply, Request, SetTimer
from harness.scenario.fast_dataclass import fast_dataclass


@fast_dataclass
class AdmissionDecision:
    """What becomes of a request: it begins now (`admitted`) or later, unless it is the one that is `rejected`.

    A newcomer of higher urgency may take the place of one that waits, which is turned away then.
    """

    admitted: bool
    actions: list[Action]
    rejected: int | None = None


class AdmissionGate:
    """Admission for the gateway. `set_timer` makes the action that sets the queue's timer; `timer_fired` is its end.

    `ready` are those that may begin now, in order; the gateway takes them from there.
    """

    def __init__(self, settings: AdmissionSettings, set_timer: Callable[[float], SetTimer]) -> None:
        self._admission = Admission(settings)
        self._set_timer = set_timer
        self._timer_id = 0
        self._lingering: dict[int, int] = {}
        """Attempts still underway, by requests whose clients need nothing more."""
        self.ready: deque[int] = deque()

    @property
    def idle(self) -> bool:
        """Whether no place is held for a request that is gone."""
        return not self._lingering

    def ask(self, request: Request, now_s: float) -> AdmissionDecision:
        """A request is here. Those that time admits come before it."""
        actions = self._let_in(self._admission.due(now_s), now_s)
        answer = self._admission.ask(request.id, request.urgency, request.prompt_tokens, now_s)
        match answer:
            case Admitted():
                return AdmissionDecision(True, actions)
            case Rejected(status, retry_after_s):
                refusal = Reply(request.id, status, "over the limit", retry_after_s)
                return AdmissionDecision(False, [*actions, refusal], request.id)
            case Queued(shed, refused):
                if shed is not None and refused is not None:
                    actions.append(Reply(shed, refused.status, "displaced by urgency", refused.retry_after_s))
                return AdmissionDecision(False, actions + self._await_next(now_s), shed)

    def timer_fired(self, now_s: float) -> list[Action]:
        """Time alone admits the next one."""
        self._timer_id = 0
        return self._let_in(self._admission.due(now_s), now_s)

    def gone(self, exchange: Exchange, now_s: float) -> list[Action]:
        """A client needs nothing more: its place is free once no backend is at work on it any more."""
        request_id = exchange.request.id
        if not exchange.begun:
            return self._let_in(self._admission.gone(request_id, now_s), now_s)
        if exchange.underway:
            self._lingering[request_id] = exchange.underway
            return []
        return self._let_in(self._admission.ended(request_id, now_s), now_s)

    def attempt_ended(self, request_id: int, now_s: float) -> list[Action]:
        """An attempt ended for a request that is gone."""
        if request_id not in self._lingering:
            return []
        self._lingering[request_id] -= 1
        if self._lingering[request_id]:
            return []
        del self._lingering[request_id]
        return self._let_in(self._admission.ended(request_id, now_s), now_s)

    def _let_in(self, request_ids: list[int], now_s: float) -> list[Action]:
        """These may go; they begin once what is being handled is done."""
        self.ready.extend(request_ids)
        return self._await_next(now_s)

    def _await_next(self, now_s: float) -> list[Action]:
        """Move the queue's timer to when time alone admits the next request."""
        due_s = self._admission.next_s(now_s)
        if due_s is None:
            return []
        if self._timer_id:
            return [SetTimer(self._timer_id, due_s)]
        action = self._set_timer(due_s)
        self._timer_id = action.timer_id
        return [action]
