"""The complete reference balancer: one state machine without I/O that composes the mechanisms of this package.

Inference goes to the owner of its model on the hash ring (bounded loads), updates are distributed by policy. Backends
that are not ready, ejected or behind an open breaker are skipped. A failed attempt may be retried, a slow one hedged;
the first good answer wins. Each mechanism can be switched off. When nothing is in flight, no table holds a request; a
drain timer may still be set, which then has no effect.
"""

from __future__ import annotations

from random import Random

from harness.balancer.core.admission import AdmissionGate
from harness.balancer.core.exchange import ERROR_STATUS, RETRY_AFTER_S, Attempt, Exchange
from harness.balancer.members import Members
from harness.balancer.requests import retry
from harness.balancer.requests.hedging import Hedger
from harness.balancer.settings import Settings
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    Backend,
    BackendDrained,
    Cancel,
    CancelTimer,
    ClientGone,
    Commit,
    Event,
    Exit,
    FirstByte,
    HealthCheckResult,
    MembershipChanged,
    Reply,
    Request,
    RequestArrived,
    ResponseHead,
    Send,
    SetTimer,
    ShutdownAsked,
    TimerFired,
)
from harness.scenario.model import Kind

INFERENCE = Kind.INFERENCE


class ReferenceGateway:
    """The reference balancer; see the module. Timers of health checks have positive ids, other timers negative ones."""

    def __init__(self, settings: Settings, generator: Random) -> None:
        self._settings = settings
        self._random = generator
        self._members = Members(settings, generator)
        self.condition = self._members.condition
        self._hedger = None if settings.hedge is None else Hedger(settings.hedge)
        self._budget: retry.RetryBudget | None = None
        if (again := settings.retry) is not None:
            self._budget = retry.RetryBudget(again.budget_share, again.budget_floor, again.budget_window_s)
        self._admission_gate: AdmissionGate | None = None
        if settings.limits is not None:
            self._admission_gate = AdmissionGate(settings.limits, lambda at_s: self._set_timer("admission", 0, at_s))
        self._exchanges: dict[int, Exchange] = {}
        self._attempts: dict[int, Attempt] = {}
        self._timers: dict[int, tuple[str, int]] = {}
        self._next_attempt = 0
        self._next_timer = 0
        self._stopping = False
        self._exited = False

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no table holds a request."""
        waiting = self._budget is not None and self._budget.waiting
        unfinished = self._admission_gate is not None and not self._admission_gate.idle
        return not (self._exchanges or self._attempts or unfinished or waiting) and self._members.idle

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """See harness.gateway.protocol.Gateway."""
        actions = self._handled(event, now_s)
        while (
            self._admission_gate is not None and self._admission_gate.ready
        ):  # what begins may end at once and make admitted
            request_id = self._admission_gate.ready.popleft()
            if request_id in self._exchanges:
                actions += self._begin(request_id, now_s)
        if self._stopping and not self._exited and not self._exchanges and not self._attempts:
            self._exited = True
            actions.append(Exit())
        return actions

    def _handled(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case RequestArrived():
                return self._arrived(event.request, now_s)
            case ResponseHead():
                return self._head(event.attempt_id, event.status, event.retry_after_s, now_s)
            case AttemptEnded():
                return self._ended(event.attempt_id, event.error, now_s)
            case FirstByte():
                return self._first_byte(event.attempt_id, now_s)
            case ClientGone(request_id):
                return self._gone(request_id, now_s)
            case HealthCheckResult(check_id, name, ok, report):
                self._members.health_check_result(check_id, name, ok, report, now_s)
                return []
            case MembershipChanged(backends):
                return self._membership(backends, now_s)
            case TimerFired(timer_id):
                return self._timer(timer_id, now_s)
            case ShutdownAsked():
                self._stopping = True
                return []

    # --- membership and time ------------------------------------------------------------------------------

    def _membership(self, backends: tuple[Backend, ...], now_s: float) -> list[Action]:
        actions, drained = self._members.set_backends(backends, now_s)
        actions += [BackendDrained(name) for name in drained]
        due_s = self._members.next_drain_s()
        return actions if due_s is None else [*actions, self._set_timer("drain", 0, due_s)]

    def _timer(self, timer_id: int, now_s: float) -> list[Action]:
        if timer_id > 0:
            return self._members.timer_fired(timer_id, now_s)
        purpose, request_id = self._timers.pop(timer_id, ("", 0))
        exchange = self._exchanges.get(request_id)
        match purpose:
            case "retry" if exchange is not None:
                return self._retry_due(exchange, now_s)
            case "hedge" if exchange is not None:
                return self._hedge_due(exchange, now_s)
            case "drain":
                return self._drains_due(now_s)
            case "deadline" if exchange is not None:
                exchange.timers.pop("deadline", None)
                return self._reply(exchange, ERROR_STATUS["timeout"], "no time left in the queue", now_s)
            case "admission" if self._admission_gate is not None:
                return self._admission_gate.timer_fired(now_s)
            case _:
                return []

    def _drains_due(self, now_s: float) -> list[Action]:
        expired = self._members.expired(now_s)
        actions: list[Action] = [Cancel(item.id) for item in self._attempts.values() if item.sent.backend in expired]
        next_s = self._members.next_drain_s()
        return actions if next_s is None else [*actions, self._set_timer("drain", 0, next_s)]

    def _set_timer(self, purpose: str, request_id: int, at_s: float) -> SetTimer:
        self._next_timer -= 1
        self._timers[self._next_timer] = (purpose, request_id)
        return SetTimer(self._next_timer, at_s)

    def _wait(self, exchange: Exchange, purpose: str, at_s: float) -> SetTimer:
        action = self._set_timer(purpose, exchange.request.id, at_s)
        exchange.timers[purpose] = action.timer_id
        return action

    # --- requests -----------------------------------------------------------------------------------------

    def _arrived(self, request: Request, now_s: float) -> list[Action]:
        if self._stopping:
            return [Reply(request.id, 503, "shutting down", RETRY_AFTER_S)]
        self._exchanges[request.id] = Exchange(request, now_s)
        if self._admission_gate is None:
            return self._begin(request.id, now_s)
        decision = self._admission_gate.submit(request, now_s)
        actions = decision.actions
        if decision.rejected is not None:
            actions += self._drop_timers(self._exchanges.pop(decision.rejected))
        if decision.admitted:
            return actions + self._begin(request.id, now_s)
        queued = self._exchanges.get(request.id)
        if queued is not None and self._settings.retry is not None:
            actions.append(self._wait(queued, "deadline", now_s + self._settings.retry.deadline_s))
        return actions

    def _begin(self, request_id: int, now_s: float) -> list[Action]:
        exchange = self._exchanges[request_id]
        exchange.admitted = True
        actions: list[Action] = self._drop_timers(exchange)  # the queue's deadline
        if self._budget is not None:
            self._budget.request_arrived(now_s)
        if self._hedger is not None:
            self._hedger.request_arrived(now_s)
        actions += self._attempt(exchange, now_s)
        delay_s = None if self._hedger is None else self._hedger.delay_s(exchange.request.model)
        if delay_s is not None and exchange.attempts and exchange.request.kind is INFERENCE:
            actions.append(self._wait(exchange, "hedge", now_s + delay_s))
        return actions

    def _gone(self, request_id: int, now_s: float) -> list[Action]:
        exchange = self._exchanges.get(request_id)
        if exchange is None:
            return []
        actions: list[Action] = [Cancel(attempt_id) for attempt_id in exchange.attempts]
        return actions + self._forget(exchange, now_s)

    def _forget(self, exchange: Exchange, now_s: float) -> list[Action]:
        """Drop a request that is complete for its client, with its timers and pending retry. Its attempts go on."""
        exchange.answered = True
        del self._exchanges[exchange.request.id]
        actions: list[Action] = self._drop_timers(exchange)
        if exchange.retry_waits and self._budget is not None:
            exchange.retry_waits = False
            self._budget.give_back(now_s)
        if self._admission_gate is not None:
            actions += self._admission_gate.client_done(exchange, now_s)
        return actions

    def _drop_timers(self, exchange: Exchange) -> list[Action]:
        if not exchange.timers:
            return []
        timers = list(exchange.timers.values())
        exchange.timers.clear()
        return [CancelTimer(timer_id) for timer_id in timers if self._timers.pop(timer_id, None)]

    def _reply(self, exchange: Exchange, status: int, reason: str, now_s: float) -> list[Action]:
        retry_after_s = RETRY_AFTER_S if status == 503 else None
        return [Reply(exchange.request.id, status, reason, retry_after_s), *self._forget(exchange, now_s)]

    # --- attempts -----------------------------------------------------------------------------------------

    def _attempt(self, exchange: Exchange, now_s: float, hedge: bool = False, to: str | None = None) -> list[Action]:
        """Send one attempt to the preferred backend that was not tried yet; reply 503 if no backend is eligible."""
        request = exchange.request
        backend = to or self._members.pick(request, exchange.tried, now_s)
        if backend is None:
            return self._reply(exchange, 503, "no backend is ready", now_s)
        limit_s = self._settings.attempt_timeout_s
        if self._settings.retry is not None:
            limit_s = min(limit_s, retry.remaining_s(self._settings.retry, now_s - exchange.arrived_s))
        if limit_s <= 0:
            return self._reply(exchange, ERROR_STATUS["timeout"], "no time left for an attempt", now_s)
        self._next_attempt += 1
        attempt = Attempt(
            self._next_attempt,
            request.id,
            self._members.begin(backend, request.prompt_tokens, now_s),
            hedge,
            limit_s < self._settings.attempt_timeout_s,
        )
        self._attempts[attempt.id] = exchange.attempts[attempt.id] = attempt
        exchange.in_flight += 1
        exchange.tried |= {backend}
        exchange.sent += not hedge
        return [Send(attempt.id, request.id, backend, limit_s)]

    def _head(self, attempt_id: int, status: int, retry_after_s: float | None, now_s: float) -> list[Action]:
        attempt = self._attempts.get(attempt_id)
        exchange = None if attempt is None else self._exchanges.get(attempt.request_id)
        if attempt is None or exchange is None or attempt_id not in exchange.attempts or exchange.answered:
            return []
        attempt.status, attempt.retry_after_s = status, retry_after_s
        if status < 500 and not self._retryable(exchange, attempt, None, now_s):
            return [] if self._settings.commit_at == "first_byte" else self._commit(exchange, attempt, now_s)
        if len(exchange.attempts) > 1:  # the other attempt may still bring a good answer
            del exchange.attempts[attempt_id]
            return [Cancel(attempt_id)]
        if self._retryable(exchange, attempt, None, now_s) and self._granted(now_s):
            del exchange.attempts[attempt_id]
            return [Cancel(attempt_id), *self._retry_later(exchange, attempt, now_s)]
        return self._commit(exchange, attempt, now_s)

    def _first_byte(self, attempt_id: int, now_s: float) -> list[Action]:
        attempt = self._attempts.get(attempt_id)
        exchange = None if attempt is None else self._exchanges.get(attempt.request_id)
        if attempt is None or exchange is None or attempt_id not in exchange.attempts or exchange.answered:
            return []
        return self._commit(exchange, attempt, now_s)

    def _commit(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        """Commit this attempt's answer and cancel the other attempts."""
        attempt.committed = exchange.answered = True
        if self._hedger is not None and attempt.status < 400 and exchange.request.kind is INFERENCE:
            # Time since arrival, not the winning attempt's own: the latter would cause more and more hedges.
            self._hedger.record(exchange.request.model, now_s - exchange.arrived_s)
        actions: list[Action] = [Commit(exchange.request.id, attempt.id)]
        if len(exchange.attempts) > 1:
            actions += [Cancel(loser) for loser in exchange.attempts if loser != attempt.id]
            exchange.attempts = {attempt.id: attempt}
        return actions + self._drop_timers(exchange)

    def _ended(self, attempt_id: int, error: str | None, now_s: float) -> list[Action]:
        attempt = self._attempts.pop(attempt_id, None)
        if attempt is None:
            return []
        drained = self._members.end(attempt.sent, attempt.settled(error), now_s)
        actions: list[Action] = [BackendDrained(attempt.sent.backend)] if drained else []
        exchange = self._exchanges.get(attempt.request_id)
        if exchange is None:
            admitted = (
                [] if self._admission_gate is None else self._admission_gate.attempt_ended(attempt.request_id, now_s)
            )
            return actions + admitted
        exchange.in_flight -= 1
        if exchange.attempts.pop(attempt_id, None) is None:
            return actions
        if attempt.committed:
            return actions + self._forget(exchange, now_s)
        if exchange.attempts:  # the other attempt goes on
            return actions
        if error is not None and self._retryable(exchange, attempt, error, now_s) and self._granted(now_s):
            return actions + self._retry_later(exchange, attempt, now_s)
        reported_error = error or "aborted"
        return actions + self._reply(
            exchange, ERROR_STATUS[reported_error], f"attempt at {attempt.sent.backend}: {reported_error}", now_s
        )

    # --- retries and hedges -------------------------------------------------------------------------------

    def _retryable(self, exchange: Exchange, attempt: Attempt, error: str | None, now_s: float) -> bool:
        settings = self._settings.retry
        if settings is None or (error is None and attempt.status not in settings.statuses):
            return False
        return retry.may_retry(
            settings,
            attempt=exchange.sent,
            error=error,
            status=attempt.status,
            kind=exchange.request.kind,
            sent=error != "refused",
            first_byte=attempt.committed,
            payload_bytes=exchange.request.payload_bytes,
            elapsed_s=now_s - exchange.arrived_s,
        )

    def _granted(self, now_s: float) -> bool:
        return self._budget is not None and self._budget.try_take(now_s)

    def _retry_later(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        """Schedule a granted retry after its backoff; reply if the deadline would pass before."""
        settings = self._settings.retry
        assert settings is not None and self._budget is not None
        wait_s = retry.backoff_s(settings, exchange.sent, self._random, attempt.retry_after_s)
        if not retry.fits_deadline(settings, now_s - exchange.arrived_s, wait_s):
            self._budget.give_back(now_s)
            status = attempt.status or ERROR_STATUS["timeout"]
            return self._reply(exchange, status, "no time left for another attempt", now_s)
        exchange.retry_waits = True
        return [*self._drop_timers(exchange), self._wait(exchange, "retry", now_s + wait_s)]

    def _retry_due(self, exchange: Exchange, now_s: float) -> list[Action]:
        exchange.timers.pop("retry", None)
        exchange.retry_waits = False
        assert self._budget is not None
        actions = self._attempt(exchange, now_s)
        if exchange.attempts:
            self._budget.sent(now_s)
        else:
            self._budget.give_back(now_s)
        return actions

    def _hedge_due(self, exchange: Exchange, now_s: float) -> list[Action]:
        """The request is slow: hedge it on another backend if the rules and the hedge budget allow it."""
        exchange.timers.pop("hedge", None)
        primary = next(iter(exchange.attempts.values()), None)
        if self._hedger is None or primary is None or primary.status or len(exchange.attempts) > 1:
            return []
        other = self._members.pick(exchange.request, exchange.tried, now_s)
        if other is None or other in exchange.tried:
            return []
        allowed = self._hedger.allowed(
            kind=exchange.request.kind,
            first_byte=False,
            client_gone=False,
            primary_breaker=self._members.breaker_state(primary.sent.backend, now_s),
            other_breaker=self._members.breaker_state(other, now_s),
            system_load=self._members.load,
        )
        if not allowed or not self._hedger.try_take():
            return []
        return self._attempt(exchange, now_s, hedge=True, to=other)
