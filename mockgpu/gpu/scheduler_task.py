"""Tasks (jobs in a GPU server) and timers, shared by ``mockgpu.gpu.model`` and its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from mockgpu.gpu.events import Job
from mockgpu.gpu.kv_cache import HeldBlocks
from mockgpu.gpu.setup import Model

WAITING, PREFILL, TRANSIT, DECODE, GONE = range(5)
"""Stages of a task. TRANSIT: between a prefill and a decode slot, waiting or in transfer."""


class Resident:
    """A model in memory or an adapter in a slot; ``users`` counts the jobs that run on it or wait for a slot."""

    __slots__ = ("name", "size", "users")

    def __init__(self, name: str, size: int, users: int) -> None:
        self.name = name
        self.size = size
        self.users = users


class SchedulerTask:
    """A job in the server. ``resident`` is None while it waits for a load, and if it needs no model."""

    __slots__ = ("cold", "finish_s", "job", "order", "resident", "spec", "stage", "submitted_s")

    def __init__(self, job: Job, order: int, submitted_s: float, spec: Model | None) -> None:
        self.job = job
        self.order = order
        self.submitted_s = submitted_s
        self.spec = spec
        self.cold = False
        self.resident: Resident | None = None
        self.stage = WAITING
        self.finish_s = 0.0


class SteppedTask(SchedulerTask):
    """An inference whose duration depends on other jobs of its batch and on the KV cache.

    Output tokens are numbered from 1. ``done`` of them were produced when the last milestone was reached;
    ``milestone`` is the next token that needs handling: the first, one that needs another KV block, or the last.
    ``done_before`` were produced before the last start, at ``token_times_s``; token ``n`` is due when the clock of its
    batch shows ``base_steps`` + slowness * (n - ``done_before``).
    """

    __slots__ = (
        "adapter",
        "base_steps",
        "cached_tokens",
        "done",
        "done_before",
        "entry",
        "held",
        "in_batch",
        "left_prefill_slot",
        "milestone",
        "started",
        "timer",
        "token_times_s",
    )

    def __init__(self, job: Job, order: int, submitted_s: float, spec: Model) -> None:
        super().__init__(job, order, submitted_s, spec)
        self.adapter: Resident | None = None
        self.timer: ScheduledAction | None = None
        self.base_steps = 0.0
        self.left_prefill_slot = False
        self.cached_tokens = 0
        self.done = 0
        self.done_before = 0
        self.entry = 0
        self.held: HeldBlocks | None = None
        self.in_batch = False
        self.milestone = 0
        self.token_times_s: list[float] = []
        self.started = False


@final
class ScheduledAction:
    """A timer: ``action(at_s, subject)`` is called at ``at_s`` unless it is cancelled before."""

    __slots__ = ("action", "at_s", "subject")

    def __init__(self, at_s: float, action: Callable[[float, Any], None], subject: Any) -> None:
        self.at_s = at_s
        self.action: Callable[[float, Any], None] | None = action
        self.subject = subject

    def cancel(self) -> None:
        """Cancel the action; does nothing after it has run."""
        self.action = None


CallAt = Callable[[float, Callable[[float, Any], None], Any], ScheduledAction]
"""``call_at(at_s, action, subject)`` sets a timer; timers of equal time fire in the order they were set."""
