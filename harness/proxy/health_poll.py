"""A health check over the wire: a backend's health route, and the report of itself that comes with the answer."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from harness.gateway.protocol import Backend, HealthCheckResult, SendHealthCheck
from harness.proxy.upstreams import Upstream


async def health_of(upstream: Upstream, check: SendHealthCheck, path: str) -> HealthCheckResult:
    """Ask `upstream` for its health at `path`. Ok is as expected, whole and in time; never raises for its fault."""
    try:
        async with asyncio.timeout(check.timeout_s), upstream.client.get(upstream.base + path) as response:
            text = await response.read()
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return HealthCheckResult(check.check_id, check.backend_id, ok=False)
    ok = check.expected.met(response.status, text)
    return HealthCheckResult(check.check_id, check.backend_id, ok, _report(check.backend_id, text))


def _report(backend_id: str, text: bytes) -> Backend | None:
    """A backend's report of itself; None where it sent none or another form of it."""
    try:
        said = json.loads(text)
        return Backend(
            id=backend_id,
            address="",
            memory_total_mb=float(said["memory_total_mb"]),
            memory_used_mb=float(said["memory_used_mb"]),
            memory_evictable_mb=float(said["memory_evictable_mb"]),
            queue_depth=int(said["queue_depth"]),
            running=int(said["running"]),
            pending_tokens=int(said["pending_tokens"]),
            loaded_models=tuple(said["models"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
