"""Decision of a probe for given results of an exchange."""

from __future__ import annotations

import pytest

from harness.live.faults import probes
from harness.live.faults.probes import is_effective
from harness.scenario.faults import Latency
from harness.scenario.link import ProbeResult


@pytest.mark.parametrize(
    ("latency_s", "jitter_s", "took_s", "due"),
    [
        (0.3, 0.0, 0.299, True),
        (0.3, 0.0, 0.25, False),
        (0.3, 0.2, 0.11, True),  # as little as the jitter leaves, so that the first look tells
        (0.3, 0.2, 0.09, False),
        (0.15, 0.15, 0.1, False),  # the jitter may leave nothing, which would tell nothing
        (0.15, 0.15, 0.16, True),
        (9.0, 1.0, 0.6, True),  # longer than a probe looks
    ],
)
def test_latency_shows_by_the_wait_that_is_left_at_least(
    latency_s: float, jitter_s: float, took_s: float, due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchange(listener: object, body_bytes: int = 0, look_s: float = 1.0) -> ProbeResult:
        return ProbeResult(accepted=True, length=1, first_s=min(took_s, look_s))

    monkeypatch.setattr(probes, "exchange", exchange)
    assert is_effective(Latency("gpu-0", 0.0, latency_s, None, jitter_s), ("127.0.0.1", 1)) is due
