"""Features of a running balancer that need a settings file: limits, and expected health check answers."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from harness.live.process.http import HttpResponse
from tests.harness.live.balancers import balancing, plain_backends
from tests.harness.live.helpers import until

BURST = 5
OVER = 20
DELAY_S = 2.0


def settings_file(folder: Path, text: str) -> tuple[str, str]:
    """Options that pass `text` to a balancer as its settings file."""
    path = folder / "settings.toml"
    path.write_text(text)
    return "--settings", str(path)


def retry_after_s(answer: HttpResponse) -> int:
    return int(answer.headers["retry-after"])


def test_a_burst_over_the_rate_is_refused_with_429_and_a_time(tmp_path: Path) -> None:
    limits = settings_file(tmp_path, f"[limits.requests]\nrate_per_s = 0.01\nburst = {BURST}\n")
    with plain_backends(tmp_path, 1) as (backend,), balancing(tmp_path, [backend.url], *limits) as balancer:
        answers = [balancer.call("POST", body=b"{}", x_request_id=f"r{number}") for number in range(BURST + OVER)]
        assert [answer.status for answer in answers] == [200] * BURST + [429] * OVER
        waits_s = [retry_after_s(answer) for answer in answers[BURST:]]
        assert waits_s == sorted(waits_s, reverse=True) and 0 < waits_s[-1] <= waits_s[0] <= 100
        assert json.loads(answers[-1].body) == {"error": {"message": "over the limit"}}
        reached = {request_id for request_id, what, _ in backend.events() if what == "asked"}
        assert reached == {f"r{number}" for number in range(BURST)}


@pytest.mark.slow
def test_what_finds_no_place_is_refused_with_503_while_the_others_are_at_work(tmp_path: Path) -> None:
    """All rejections arrive before the admitted request's answer: no rejection waits."""
    limits = settings_file(tmp_path, "[limits]\nconcurrency = 1\nqueue = 0\nretry_after_s = 3.0\n")
    admitted: list[HttpResponse] = []
    with (
        plain_backends(tmp_path, 1, delay_s=DELAY_S) as (backend,),
        balancing(tmp_path, [backend.url], *limits) as balancer,
    ):
        first = threading.Thread(target=lambda: admitted.append(balancer.call(x_request_id="first")))
        first.start()
        backend.when("first", "asked")
        refused = [balancer.call(x_request_id=f"r{number}") for number in range(OVER)]
        at_work = not admitted
        first.join()
        assert [(answer.status, retry_after_s(answer)) for answer in refused] == [(503, 3)] * OVER
        assert at_work and admitted[0].status == 200
        assert balancer.call().status == 200, "the slot is free again"


def test_who_waits_in_the_queue_is_answered_at_its_deadline(tmp_path: Path) -> None:
    """At this rate it would be admitted after 100 s."""
    text = '[limits]\nqueue = 5\n[limits.requests]\nkind = "leaky"\nrate_per_s = 0.01\n[retry]\ndeadline_s = 0.3\n'
    with (
        plain_backends(tmp_path, 1) as (backend,),
        balancing(tmp_path, [backend.url], *settings_file(tmp_path, text)) as balancer,
    ):
        first, second = balancer.call(x_request_id="first"), balancer.call(x_request_id="second")
        assert (first.status, second.status) == (200, 504)
        assert json.loads(second.body) == {"error": {"message": "no time left in the queue"}}
        assert {request_id for request_id, _, _ in backend.events()} == {"first"}


# --- health checks --------------------------------------------------------------------------------------------


def checking(folder: Path, tables: str) -> tuple[str, str]:
    return settings_file(folder, f"[health_checks]\ninterval_s = 0.05\nunhealthy = 1\n{tables}\n")


@pytest.mark.parametrize("expected", ['body_part = "id"', "statuses = [200, 204]"])
def test_an_answer_as_expected_opens_the_gate(tmp_path: Path, expected: str) -> None:
    tables = checking(tmp_path, f"[health_checks.rotation]\ngated = true\n[health_checks.expected]\n{expected}")
    with plain_backends(tmp_path, 1) as (backend,), balancing(tmp_path, [backend.url], *tables) as balancer:
        until(lambda: balancer.call().status == 200)


@pytest.mark.parametrize("expected", ['body_part = "SERVING"', "ready_field = true", "statuses = [204]"])
def test_another_answer_is_a_failure(tmp_path: Path, expected: str) -> None:
    tables = checking(tmp_path, f"[health_checks.expected]\n{expected}")
    with plain_backends(tmp_path, 1) as (backend,), balancing(tmp_path, [backend.url], *tables) as balancer:
        until(lambda: balancer.call().status == 503)
        assert [row["state"] for row in balancer.ask("GET", "/backends")[1]] == ["not ready"]
