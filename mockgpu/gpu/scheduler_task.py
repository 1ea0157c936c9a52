"""Jobs inside a GPU server, and its alarm clock; ``mockgpu.gpu.model`` and its parts share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from mockgpu.gpu.events import Job
from mockgpu.gpu.kv_cache import HeldBlocks
from mockgpu.gpu.setup import Model

WAITING, PREFILL, TRANSIT, DECODE, GONE = range(5)
"""Stages of a task. TRANSIT: between a prefill and a decode slot, waiting or being moved."""


class Resident:
    """A model in memory or an adapter in a slot, and how many jobs run on it or wait for a slot to do so."""

    __slots__ = ("name", "size", "users")

    def __init__(self, name: str, size: int, users: int) -> None:
        self.name = name
        self.size = size
        self.users = users


class SchedulerTask:
    """A job inside a server. ``resident`` is None while it waits for a load, and if it needs no model."""

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
    """An inference whose end is not known when it starts, for others of its batch or the KV cache delay it.

    Output tokens are counted from 1. ``done`` of them were out when the last milestone was reached;
    ``milestone`` is the next token at which something is to be done: the first, one that needs another KV
    block, or the last. ``done_before`` were out when it last started, and came at ``past_s``; token ``n`` comes
    when the clock of its batch shows ``base_steps`` + slowness * (n - ``done_before``).
    """

    __slots__ = (
        "adapter",
        "alarm",
        "base_steps",
        "beyond_prefill",
        "cached_tokens",
        "done",
        "done_before",
        "entry",
        "hold",
        "in_batch",
        "milestone",
        "past_s",
        "started",
    )

    def __init__(self, job: Job, order: int, submitted_s: float, spec: Model) -> None:
        super().__init__(job, order, submitted_s, spec)
        self.adapter: Resident | None = None
        self.alarm: ScheduledAction | None = None
        self.base_steps = 0.0
        self.beyond_prefill = False
        self.cached_tokens = 0
        self.done = 0
        self.done_before = 0
        self.entry = 0
        self.hold: HeldBlocks | None = None
        self.in_batch = False
        self.milestone = 0
        self.past_s: list[float] = []
        self.started = False


@final
class ScheduledAction:
    """Something that will be done at a time: ``action(at_s, subject)``, unless ``cancel`` comes first."""

    __slots__ = ("action", "at_s", "subject")

    def __init__(self, at_s: float, action: Callable[[float, Any], None], subject: Any) -> None:
        self.at_s = at_s
        self.action: Callable[[float, Any], None] | None = action
        self.subject = subject

    def cancel(self) -> None:
        """Make sure that it is not done (any more)."""
        self.action = None


CallAt = Callable[[float, Callable[[float, Any], None], Any], ScheduledAction]
"""``call_at(at_s, action, subject)`` sets an alarm; those of one time go off in the order they were set."""
