"""Metrics of a balancer: by outcome, by backend, and in the Prometheus format."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.gateway.protocol import MemberReport
from harness.proxy.metrics import MOST_REASONS, Meters
from harness.proxy.upstreams import BackendAddress, Upstreams
from tests.harness.live.balancers import balancing, plain_backends
from tests.harness.live.helpers import HOST, PATIENCE_S, until

Samples = dict[tuple[str, ...], float]


def samples(meters: Meters) -> Samples:
    text, content_type = meters.exposition("")
    assert content_type.startswith("text/plain; version=")
    families = text_string_to_metric_families(text.decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def meters_of(conditions: Callable[[str], MemberReport | None] = lambda _: None) -> Meters:
    return Meters(Upstreams(), conditions)


def test_ends_of_requests() -> None:
    meters = meters_of()
    meters.answered(200, 0.02)
    meters.answered(404, 0.02)
    meters.own_answer(502, "attempt at a: refused", 0.3, tried=2)
    meters.own_answer(503, "no backend is ready", 0.0, tried=0)
    meters.own_answer(503, "displaced by urgency", 0.0, tried=0)
    meters.own_answer(429, "whatever", 0.0, tried=0)
    meters.left(1.0, broken=False)
    meters.left(1.0, broken=True)
    found = samples(meters)
    ends = {key[1:]: value for key, value in found.items() if key[0] == "steelyard_requests_total"}
    assert ends == {
        ("answered", "2xx"): 1,
        ("answered", "4xx"): 1,
        ("failed", "5xx"): 1,
        ("rejected", "5xx"): 1,
        ("shed", "5xx"): 1,
        ("shed", "4xx"): 1,
        ("client_gone", "none"): 1,
        ("broken", "none"): 1,
    }
    assert found["steelyard_rejected_requests_total", "no backend is ready"] == 1
    assert found["steelyard_shed_requests_total", "displaced by urgency"] == 1
    assert found["steelyard_shed_requests_total", "whatever"] == 1
    assert found["steelyard_request_duration_seconds_count",] == 8
    assert found["steelyard_request_duration_seconds_bucket", "0.025"] == 5
    assert found["steelyard_request_duration_seconds_bucket", "+Inf"] == 8


def test_so_many_reasons_are_told_apart() -> None:
    meters = meters_of()
    for number in range(MOST_REASONS + 5):
        meters.own_answer(503, f"reason {number}", 0.0, tried=0)
    reasons = {key[1]: value for key, value in samples(meters).items() if key[0] == "steelyard_rejected_requests_total"}
    assert len(reasons) == MOST_REASONS + 1
    assert reasons["other"] == 5


def test_further_attempts() -> None:
    meters = meters_of()
    meters.another_attempt(hedge=True)
    meters.another_attempt(hedge=False)
    meters.another_attempt(hedge=False)
    found = samples(meters)
    assert (found["steelyard_hedges_total",], found["steelyard_retries_total",]) == (1, 2)


def test_figures_by_backend_come_and_go_with_it() -> None:
    async def case() -> None:
        known = {"a": MemberReport(ready=True, breaker="half-open", score=0.25), "b": MemberReport(ready=False)}
        upstreams = Upstreams()
        meters = Meters(upstreams, known.get)
        for port, name in enumerate("abc", start=1):
            upstreams.join(BackendAddress(name, "h", port, weight=port))
        a, c = upstreams.get("a"), upstreams.get("c")
        assert a is not None and c is not None
        c.draining = True
        for _ in range(3):
            upstreams.sent(a)
        upstreams.ended(a, "2xx")
        upstreams.ended(a, "timeout")
        found = samples(meters)
        assert found["steelyard_picks_total", "a"] == 3
        assert found["steelyard_backend_in_flight", "a"] == 1
        assert found["steelyard_attempts_total", "a", "2xx"] == found["steelyard_attempts_total", "a", "timeout"] == 1
        states = [found["steelyard_breaker_state", "a", state] for state in ("closed", "open", "half-open")]
        assert states == [0, 0, 1]
        assert found["steelyard_backend_health_score", "a"] == 0.25
        assert [found["steelyard_backend_ready", name] for name in "ab"] == [1, 0]
        assert ("steelyard_backend_ready", "c") not in found and found["steelyard_backend_draining", "c"] == 1
        assert ("steelyard_backend_health_score", "b") not in found
        assert [found["steelyard_backend_weight", name] for name in "abc"] == [1, 2, 3]
        upstreams.leave("a")
        found = samples(meters)
        assert not [key for key in found if "a" in key[1:]]
        assert found["steelyard_backends_remembered",] == 3, "something is in flight there"
        upstreams.ended(a, "2xx")
        assert samples(meters)["steelyard_backends_remembered",] == 2
        await upstreams.close()

    asyncio.run(case())


def test_two_balancers_share_nothing_and_the_global_registry_is_left_alone() -> None:
    before = prometheus_client.generate_latest(prometheus_client.REGISTRY).count(b"steelyard")
    one, other = meters_of(), meters_of()
    one.another_attempt(hedge=True)
    one.gauge("steelyard_extra", "More.", lambda: 7.0)
    assert samples(other)["steelyard_hedges_total",] == 0
    assert samples(one)["steelyard_extra",] == 7
    assert ("steelyard_extra",) not in samples(other)
    assert before == 0 == prometheus_client.generate_latest(prometheus_client.REGISTRY).count(b"steelyard")


def test_openmetrics_for_who_asks_for_it() -> None:
    text, content_type = meters_of().exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


# --- a running balancer -----------------------------------------------------------------------------------


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that refuses connections: bound, but not listening."""
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        yield holder.getsockname()[1]


def test_retries_and_an_open_breaker_show(tmp_path: Path, dead_port: int) -> None:
    with (
        plain_backends(tmp_path, 1) as backends,
        balancing(
            tmp_path, [f"good={backends[0].url}", f"dead=http://{HOST}:{dead_port}"], "--without", "health-checks"
        ) as balancer,
    ):
        turn = iter(range(10_000))

        def opened() -> bool:
            assert balancer.call(x_model_id=f"m-{next(turn)}").status == 200
            return balancer.metrics()["steelyard_breaker_state", "dead", "open"] == 1

        until(opened)
        found = balancer.metrics()
        rows = {row["id"]: row for row in balancer.ask("GET", "/backends")[1]}
        assert found["steelyard_retries_total",] == found["steelyard_attempts_total", "dead", "refused"] >= 5
        assert found["steelyard_attempts_total", "good", "2xx"] == found["steelyard_requests_total", "answered", "2xx"]
        assert found["steelyard_breaker_state", "good", "closed"] == 1
        assert (rows["dead"]["breaker"], rows["dead"]["state"]) == ("open", "not ready")
        assert found["process_open_fds",] > 5 and found["process_resident_memory_bytes",] > 1e7
        assert found["steelyard_tasks",] >= 2
        answered = found["steelyard_requests_total", "answered", "2xx"]
        assert found["steelyard_time_to_first_byte_seconds_count",] == answered
        # Another address under the same name is a new server without history.
        balancer.ask("PUT", "/backends", [{"id": "dead", "url": backends[0].url}])
        assert balancer.ask("GET", "/backends/dead")[1]["breaker"] == "closed"


def test_a_hedge_shows(tmp_path: Path) -> None:
    """The hedge delay is a quantile of the model's latencies, which are close to 0 for short requests."""
    (tmp_path / "eager.toml").write_text("[hedge]\nwindow = 20\nminimum = 20\nshare = 1.0\n")
    with (
        plain_backends(tmp_path, 2) as backends,
        balancing(tmp_path, [item.url for item in backends], "--settings", str(tmp_path / "eager.toml")) as balancer,
    ):
        for _ in range(30):
            assert balancer.call().status == 200
        before = balancer.metrics()["steelyard_hedges_total",]
        with socket.create_connection((HOST, balancer.port), timeout=PATIENCE_S) as client:
            for item in backends:
                item.pause()
            client.sendall(b"GET /short HTTP/1.1\r\nHost: x\r\nx-request-id: slow\r\n\r\n")
            until(lambda: balancer.metrics()["steelyard_hedges_total",] > before)
            for item in backends:
                item.go_on()
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert balancer.metrics()["steelyard_retries_total",] == 0


def test_in_flight_shows_while_it_lasts(tmp_path: Path) -> None:
    with plain_backends(tmp_path, 1) as backends, balancing(tmp_path, [f"a={backends[0].url}"]) as balancer:
        with socket.create_connection((HOST, balancer.port), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /stream?chunks=1000&gap_s=0.05 HTTP/1.1\r\nHost: x\r\nx-request-id: long\r\n\r\n")
            backends[0].when("long", "asked")
            found = balancer.metrics()
            assert found["steelyard_backend_in_flight", "a"] == found["steelyard_requests_in_flight",] == 1
            assert found["steelyard_client_connections",] == 1
        for name in ("steelyard_requests_in_flight", "steelyard_client_connections"):
            balancer.await_metric((name,), 0)
        balancer.await_metric(("steelyard_backend_in_flight", "a"), 0)
        assert balancer.metrics()["steelyard_attempts_total", "a", "aborted"] == 1
