"""Small GPU servers with round figures and helpers for their events, for tests of the model's parts."""

from __future__ import annotations

from typing import Any

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.gpu.events import Event, Job
from mockgpu.gpu.model import GpuServer

MB = 1_000_000


def box(model: Model, *models: Model, **gpu: Any) -> GpuServer:
    """A server of 1,000 MB and 100 slots by default; ``model`` is its default model."""
    settings: dict[str, Any] = {"name": "box", "memory_mb": 1_000, "max_running": 100, "queue_limit": None, **gpu}
    return GpuServer(Setup(Gpu(**settings), model, models))


def free(slope_s: float = 0.0, kv_bytes_per_token: int = 0, **more: Any) -> Model:
    """A model that needs no loading, with 10 prompt tokens or one output token per second."""
    return Model("free", 0, 0.0, 10.0, 1.0, slope_s, kv_bytes_per_token, **more)


def inference(number: int, prompt_tokens: int = 10, output_tokens: int = 2, model: str = "m", **more: Any) -> Job:
    """An inference job, by default for model "m"."""
    return Job(number, model, "inference", prompt_tokens, output_tokens, **more)


def drain(server: GpuServer) -> list[Event]:
    """All remaining events."""
    events: list[Event] = []
    while (at_s := server.next_event_s()) is not None:
        events += server.advance(at_s)
    return events


def times(events: list[Event], kind: type[Event]) -> dict[int, float]:
    """Time of each job's event of a kind."""
    return {event.job_id: event.at_s for event in events if isinstance(event, kind) and hasattr(event, "job_id")}


def heavy(name: str, weights_mb: int = 600, load_s: float = 10.0, kv_bytes_per_token: int = 0) -> Model:
    """A model that needs loading, otherwise as fast as ``free``."""
    return Model(name, weights_mb, load_s, 10.0, 1.0, 0.0, kv_bytes_per_token)
