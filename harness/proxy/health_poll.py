"""Health checks over HTTP: polls a backend's health route and parses its load report."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from harness.gateway.protocol import Backend, HealthCheckResult, SendHealthCheck
from harness.proxy.upstreams import Upstream


async def poll_health(upstream: Upstream, check: SendHealthCheck, path: str) -> HealthCheckResult:
    """Poll `upstream` at `path`. Ok: the expected answer, complete and in time. Errors of the backend never raise."""
    try:
        async with asyncio.timeout(check.timeout_s), upstream.client.get(upstream.base + path) as response:
            text = await response.read()
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return HealthCheckResult(check.check_id, check.backend_id, ok=False)
    ok = check.expected.met(response.status, text)
    return HealthCheckResult(check.check_id, check.backend_id, ok, _report(check.backend_id, text))


def _report(backend_id: str, text: bytes) -> Backend | None:
    """A backend's load report; None if it is missing or has another form."""
    try:
        report = json.loads(text)
        return Backend(
            id=backend_id,
            address="",
            memory_total_mb=float(report["memory_total_mb"]),
            memory_used_mb=float(report["memory_used_mb"]),
            memory_evictable_mb=float(report["memory_evictable_mb"]),
            queue_depth=int(report["queue_depth"]),
            running=int(report["running"]),
            pending_tokens=int(report["pending_tokens"]),
            loaded_models=tuple(report["models"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
