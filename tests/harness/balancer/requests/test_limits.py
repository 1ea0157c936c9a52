"""Limits: never above rate or cap, tested before debited, urgent requests first, none lost or run twice."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.requests.limits import (
    Admission,
    AdmissionSettings,
    Admitted,
    Bucket,
    BucketSettings,
    Queued,
    Rejected,
)

DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=100)


def worst_excess(passed: list[tuple[float, float]], rate_per_s: float) -> float:
    """Largest amount beyond rate times t that passed in any window of t, over all windows."""
    excess = 0.0
    for first, (start_s, _) in enumerate(passed):
        total = 0.0
        for at_s, amount in passed[first:]:
            total += amount
            excess = max(excess, total - rate_per_s * (at_s - start_s))
    return excess


class TestBuckets:
    def passed(self, bucket: Bucket, asks: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Times and amounts that pass, given (gap in seconds, amount), if early ones are dropped."""
        now_s, passed = 0.0, []
        for gap_s, amount in asks:
            now_s += gap_s
            if bucket.ready_s(amount) <= now_s:
                bucket.take(amount, now_s)
                passed.append((now_s, amount))
        return passed

    def test_a_token_bucket_is_full_at_first_and_refills_at_its_rate(self) -> None:
        bucket = Bucket(BucketSettings(rate_per_s=10.0, burst=5.0))
        assert len(self.passed(bucket, [(0.0, 1.0)] * 20)) == 5
        assert bucket.ready_s(1.0) == pytest.approx(0.1)
        assert bucket.ready_s(5.0) == pytest.approx(0.5)

    def test_a_leaky_bucket_has_no_bursts(self) -> None:
        bucket = Bucket(BucketSettings(rate_per_s=10.0, kind="leaky"))
        passed = self.passed(bucket, [(0.01, 1.0)] * 100)
        assert len(passed) == 10
        assert min(later - earlier for (earlier, _), (later, _) in pairwise(passed)) > 0.0999

    @DETERMINISTIC
    @given(
        asks=st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.05, 0.1, 1.0]), st.floats(0.1, 5.0)), max_size=60),
        rate_per_s=st.sampled_from([0.5, 3.0, 10.0]),
    )
    def test_no_window_lets_through_more_than_burst_and_rate(
        self, asks: list[tuple[float, float]], rate_per_s: float
    ) -> None:
        """J2, with any spacing. A leaky bucket has no burst: its excess is the one request that leaves."""
        token = self.passed(Bucket(BucketSettings(rate_per_s, burst=5.0)), asks)
        assert worst_excess(token, rate_per_s) <= 5.0 + 1e-6
        leaky = self.passed(Bucket(BucketSettings(rate_per_s, kind="leaky")), asks)
        assert worst_excess(leaky, rate_per_s) <= max((amount for _, amount in leaky), default=0.0) + 1e-6

    @pytest.mark.parametrize("kind", ["token", "leaky"])
    def test_refill_does_not_depend_on_how_often_it_is_asked(self, kind: str) -> None:
        """J3: drained, ten a second, polled every 10 ms."""
        bucket = Bucket(BucketSettings(10.0, 1.0, "token" if kind == "token" else "leaky"))
        bucket.take(1.0, 0.0)
        passed = self.passed(bucket, [(0.01, 1.0)] * 1000)
        assert 90 <= len(passed) <= 101  # a poll may come marginally too early, and again 10 ms later

    def test_it_passes_exactly_at_the_time_it_names(self) -> None:
        """Otherwise a timer set to that time would find no request ready and be set to the same time again."""
        for kind in ("token", "leaky"):
            bucket = Bucket(BucketSettings(0.3, 1.0, "token" if kind == "token" else "leaky"))
            now_s = 1000.1
            for _ in range(1000):
                bucket.take(1.0, now_s)
                assert bucket.ready_s(1.0) > now_s
                now_s = bucket.ready_s(1.0)
            assert now_s == pytest.approx(1000.1 + 1000 / 0.3)


def admission(
    requests: BucketSettings | None = None,
    tokens: BucketSettings | None = None,
    concurrency: int | None = None,
    queue: int = 0,
) -> Admission:
    return Admission(AdmissionSettings(requests, tokens, concurrency, queue, retry_after_s=2.0))


class TestRates:
    def test_beyond_the_burst_it_is_429_with_the_time_to_wait(self) -> None:
        """J8: a retry after the given time succeeds."""
        limits = admission(requests=BucketSettings(2.0, burst=3.0))
        answers = [limits.submit(number, "normal", 0, 10.0) for number in range(5)]
        assert answers == [Admitted()] * 3 + [Rejected(429, 0.5)] * 2
        assert limits.submit(9, "normal", 0, 10.5) == Admitted()

    def test_simultaneous_requests_do_not_all_pass(self) -> None:
        """J4: 50 at once against 100 units of ten each."""
        limits = admission(tokens=BucketSettings(1.0, burst=100.0))
        answers = [limits.submit(number, "normal", 10, 0.0) for number in range(50)]
        assert answers.count(Admitted()) == 10

    def test_all_limits_are_tested_before_any_is_debited(self) -> None:
        limits = admission(requests=BucketSettings(0.001, burst=1.0), tokens=BucketSettings(10.0, burst=50.0))
        assert limits.submit(1, "normal", 60, 0.0) == Rejected(413, None)
        assert limits.submit(2, "normal", 50, 0.0) == Admitted(), (
            "the rejected request took nothing from the request bucket"
        )
        assert limits.submit(3, "normal", 0, 0.0) == Rejected(429, 1000.0)
        limits = admission(requests=BucketSettings(1.0, burst=2.0), tokens=BucketSettings(10.0, burst=50.0))
        limits.submit(1, "normal", 50, 0.0)
        for number in range(20):
            assert limits.submit(10 + number, "normal", 10, 0.0) == Rejected(429, 1.0)
        assert limits.submit(2, "normal", 0, 0.0) == Admitted(), (
            "requests rejected for tokens took nothing from the request bucket"
        )

    def test_each_limit_has_its_own_window(self) -> None:
        """J6: 95 % of the token limit for three windows, with a request limit besides, and no rejection."""
        limits = admission(requests=BucketSettings(100.0, burst=100.0), tokens=BucketSettings(1000.0, burst=1000.0))
        for number in range(285):
            assert limits.submit(number, "normal", 100, number / 9.5) == Admitted()

    def test_a_leaky_bucket_makes_the_next_wait(self) -> None:
        limits = admission(requests=BucketSettings(4.0, kind="leaky"), queue=2)
        assert limits.submit(1, "normal", 0, 0.0) == Admitted()
        assert limits.submit(2, "normal", 0, 0.0) == Queued()
        assert limits.submit(3, "normal", 0, 0.0) == Queued()
        assert limits.submit(4, "normal", 0, 0.0) == Rejected(429, 0.75), "after the requests before it"
        assert limits.next_s(0.0) == 0.25
        assert limits.due(0.2) == []
        assert limits.due(0.25) == [2]
        assert limits.next_s(0.25) == 0.5
        assert limits.due(7.0) == [3], "one by one"
        assert limits.next_s(7.0) is None

    def test_a_leaky_bucket_of_tokens(self) -> None:
        limits = admission(tokens=BucketSettings(100.0, kind="leaky"), queue=5)
        assert limits.submit(1, "normal", 500, 0.0) == Admitted()
        assert limits.submit(2, "normal", 1, 0.0) == Queued()
        assert limits.next_s(0.0) == 5.0


class TestConcurrency:
    def test_the_cap_holds_and_overflow_is_503(self) -> None:
        limits = admission(concurrency=2)
        answers = [limits.submit(number, "normal", 0, 0.0) for number in range(3)]
        assert answers == [Admitted(), Admitted(), Rejected(503, 2.0)]
        assert limits.ended(0, 1.0) == []
        assert limits.submit(3, "normal", 0, 1.0) == Admitted()

    def test_an_end_lets_in_the_next(self) -> None:
        limits = admission(concurrency=1, queue=5)
        limits.submit(1, "normal", 0, 0.0)
        limits.submit(2, "normal", 0, 0.0)
        assert limits.next_s(0.0) is None, "only the end of another request admits it"
        assert limits.ended(1, 1.0) == [2]
        assert limits.ended(1, 1.0) == [] and limits.running == {2}

    def test_an_end_told_twice_or_of_a_stranger_frees_nothing(self) -> None:
        limits = admission(concurrency=1, queue=5)
        for number in (1, 2, 3):
            limits.submit(number, "normal", 0, 0.0)
        assert limits.ended(99, 0.0) == []
        assert limits.ended(1, 0.0) == [2]
        assert limits.ended(1, 0.0) == []
        assert limits.waiting == (3,)

    def test_a_client_that_goes_keeps_its_place_until_its_attempt_has_ended(self) -> None:
        limits = admission(concurrency=1, queue=5)
        limits.submit(1, "normal", 0, 0.0)
        limits.submit(2, "normal", 0, 0.0)
        assert limits.gone(1, 1.0) == []
        assert limits.ended(1, 2.0) == [2]

    def test_what_waited_debits_when_it_goes(self) -> None:
        """Otherwise four waiting requests would start together with a whole burst of new ones."""
        limits = admission(requests=BucketSettings(1.0, burst=3.0), concurrency=1, queue=5)
        for number in range(4):
            limits.submit(number, "normal", 0, 0.0)
        assert limits.waiting == (1, 2, 3)
        assert limits.ended(0, 0.0) == [1]
        assert limits.ended(1, 0.0) == [2]
        assert limits.ended(2, 0.0) == []
        assert limits.next_s(0.0) == 1.0
        assert limits.due(1.0) == [3]


class TestQueue:
    def full(self, queue: int = 3) -> Admission:
        limits = admission(concurrency=1, queue=queue)
        limits.submit(0, "normal", 0, 0.0)
        return limits

    def test_the_urgent_go_first_and_within_an_urgency_the_oldest(self) -> None:
        limits = self.full(queue=10)
        for number, urgency in enumerate(["normal", "high", "critical", "odd", "high", "critical"], start=1):
            assert limits.submit(number, urgency, 0, 0.0) == Queued()
        assert limits.waiting == (3, 6, 2, 5, 1, 4)
        order = []
        running = [0]
        while running:
            running = limits.ended(running[0], 0.0)
            order += running
        assert order == [3, 6, 2, 5, 1, 4]

    def test_when_full_the_youngest_of_the_least_urgent_makes_room(self) -> None:
        limits = self.full()
        for number, urgency in ((1, "normal"), (2, "normal"), (3, "high")):
            limits.submit(number, urgency, 0, 0.0)
        assert limits.submit(4, "normal", 0, 0.0) == Rejected(503, 2.0), "normal is shed first"
        assert limits.submit(5, "high", 0, 0.0) == Queued(shed=2, refused=Rejected(503, 2.0))
        assert limits.submit(6, "critical", 0, 0.0) == Queued(shed=1, refused=Rejected(503, 2.0))
        assert limits.submit(7, "high", 0, 0.0) == Rejected(503, 2.0)
        assert limits.submit(8, "critical", 0, 0.0) == Queued(shed=5, refused=Rejected(503, 2.0))
        assert limits.submit(9, "critical", 0, 0.0) == Queued(shed=3, refused=Rejected(503, 2.0))
        assert limits.submit(10, "critical", 0, 0.0) == Rejected(503, 2.0), "critical is shed last"
        assert limits.waiting == (6, 8, 9)

    def test_who_is_gone_is_never_executed(self) -> None:
        limits = self.full()
        limits.submit(1, "normal", 0, 0.0)
        limits.submit(2, "normal", 0, 0.0)
        assert limits.gone(1, 0.5) == []
        assert limits.ended(0, 1.0) == [2]
        assert limits.ended(2, 2.0) == []

    def test_a_large_request_is_not_overtaken_but_its_going_frees_the_next(self) -> None:
        limits = admission(tokens=BucketSettings(10.0, burst=100.0), concurrency=1, queue=5)
        limits.submit(0, "normal", 50, 0.0)
        limits.submit(1, "normal", 40, 0.0)
        limits.submit(2, "normal", 20, 0.0)
        limits.submit(3, "normal", 5, 0.0)
        assert limits.ended(0, 0.0) == [1]
        assert limits.ended(1, 0.0) == []
        assert limits.next_s(0.0) == 1.0
        assert limits.submit(4, "normal", 5, 0.0) == Queued(), "it would fit, but others arrived first"
        assert limits.gone(2, 0.5) == [3]

    def test_nobody_is_policed_in_favour_of_the_less_urgent(self) -> None:
        limits = admission(requests=BucketSettings(1.0, burst=2.0), concurrency=1, queue=5)
        for number in range(3):
            limits.submit(number, "normal", 0, 0.0)
        limits.ended(0, 0.0)
        assert limits.ended(1, 0.0) == [] and limits.waiting == (2,)
        assert limits.submit(3, "normal", 0, 0.0) == Rejected(429, 1.0)
        assert limits.submit(4, "critical", 0, 0.0) == Queued()
        assert limits.due(1.0) == [4]

    def test_a_request_is_asked_for_once(self) -> None:
        limits = self.full()
        limits.submit(1, "normal", 0, 0.0)
        for number in (0, 1):
            with pytest.raises(ValueError, match="has not ended"):
                limits.submit(number, "normal", 0, 0.0)
        with pytest.raises(ValueError, match="expected 0 or more"):
            limits.submit(2, "normal", -1, 0.0)


@pytest.mark.parametrize(
    ("settings_class", "wrong"),
    [
        (BucketSettings, {"rate_per_s": 0.0}),
        (BucketSettings, {"rate_per_s": math.nan}),
        (BucketSettings, {"rate_per_s": 1.0, "burst": 0.0}),
        (BucketSettings, {"rate_per_s": 1.0, "kind": "funnel"}),
        (AdmissionSettings, {"concurrency": 0}),
        (AdmissionSettings, {"queue": -1}),
        (AdmissionSettings, {"retry_after_s": 0.0}),
    ],
)
def test_settings_that_make_no_sense(settings_class: type, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        settings_class(**wrong)
