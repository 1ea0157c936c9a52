"""Production defaults: as documented, and long enough for streamed completions."""

from __future__ import annotations

from pathlib import Path

from harness.balancer.settings import EjectionSettings, Settings

PAGE = (Path(__file__).parents[3] / "docs" / "balancer.md").read_text(encoding="utf-8")
DEFAULTS = Settings()


def row(mechanism: str) -> str:
    """The default of a mechanism as documented."""
    return next(line.split(" | ")[1] for line in PAGE.splitlines() if line.startswith(f"| {mechanism} |"))


def test_the_documented_defaults_are_the_defaults() -> None:
    checks, breaker, retry, hedge, health = (
        DEFAULTS.health_checks,
        DEFAULTS.breaker,
        DEFAULTS.retry,
        DEFAULTS.hedge,
        DEFAULTS.health_share,
    )
    assert checks and breaker and retry and hedge and health and DEFAULTS.bounded_load
    assert DEFAULTS.attempt_timeout_s == retry.deadline_s
    assert row("one attempt, and a request with its retries") == f"cut after {retry.deadline_s:g} s"
    assert checks.interval_s == 1.0
    assert row("health checks") == (
        f"every second, timeout {checks.timeout_s:g} s; out after {checks.unhealthy} failures,"
        f" in after {checks.healthy} successes"
    )
    assert breaker.backoff.multiplier == 2.0 and breaker.error_rate
    assert row("breaker") == (
        f"opens after {breaker.failures} failures in a row, or {breaker.error_rate:.0%} of at least"
        f" {breaker.minimum_calls} calls in {breaker.window_s:g} s; for {breaker.open_s:g} s, doubled up to"
        f" {breaker.backoff.max_s:g} s, ± {breaker.backoff.jitter:.0%}; {breaker.successes} good probes close it"
    ).replace("%", " %")
    assert row("retries") == (
        f"{retry.attempts} attempts; {retry.budget_share:.0%} of the requests of {retry.budget_window_s:g} s, and"
        f" {retry.budget_floor} more; waits of {retry.base_s * 1000:g} to {retry.max_backoff_s * 1000:g} ms"
    ).replace("%", " %")
    assert row("hedging") == (
        f"at the {hedge.quantile:.0%} quantile of a model's last {hedge.window} latencies;"
        f" {hedge.share:.0%} of the requests"
    ).replace("%", " %")
    assert row("bounded load") == f"{DEFAULTS.bounded_load:g} times the average"
    assert row("health score") == f"calls of {health.window_s:g} s, {health.minimum_calls} at least"
    ejection = EjectionSettings()
    assert row("ejection (off)") == (
        f"after {ejection.failures} failures in a row, for {ejection.open_s:g} s, {ejection.cap_share:.0%} of the fleet"
    ).replace("%", " %")


def test_limits_ejection_slow_start_and_slow_breakers_are_off() -> None:
    assert (DEFAULTS.limits, DEFAULTS.ejection, DEFAULTS.slow_start) == (None, None, None)
    assert DEFAULTS.breaker is not None and DEFAULTS.breaker.slow_p99_s is None
