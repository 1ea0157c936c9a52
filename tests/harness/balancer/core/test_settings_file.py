"""The settings file: keys and tables, and one-line errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.balancer.core.settings_file import settings_from
from harness.balancer.health.readiness import RotationSettings
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.settings import CheckSettings, EjectionSettings, Settings, SlowStartSettings
from harness.gateway.expected_answer import STATUS_200, ExpectedAnswer
from harness.scenario.model import ClaimsError

BASE = Settings()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def test_a_file_changes_what_it_names(file: Path) -> None:
    file.write_text(
        "attempt_timeout_s = 60\nhedge = false\n[breaker]\nopen_s = 5.0\n[retry]\nstatuses = [503]\n"
        "[ejection]\nfailures = 7\n"
    )
    changed = settings_from(file, BASE)
    assert BASE.breaker is not None and BASE.retry is not None
    assert changed == replace(
        BASE,
        attempt_timeout_s=60.0,
        hedge=None,
        breaker=replace(BASE.breaker, open_s=5.0),
        retry=replace(BASE.retry, statuses=frozenset({503})),
        ejection=EjectionSettings(failures=7),
    )
    assert isinstance(changed.attempt_timeout_s, float)


def test_the_example_of_the_documentation() -> None:
    """A table switches on a mechanism that is off by default."""
    made = settings_from(Path(__file__).parents[4] / "docs" / "examples" / "balancer.toml", BASE)
    assert made.limits is not None and made.ejection is not None and made.slow_start is not None
    assert made.breaker is not None and made.breaker.slow_p99_s is not None
    assert (BASE.limits, BASE.ejection, BASE.slow_start) == (None, None, None)


def test_a_file_gives_limits(file: Path) -> None:
    file.write_text("[limits]\nconcurrency = 3\n[limits.requests]\nrate_per_s = 5\n")
    assert settings_from(file, BASE).limits == AdmissionSettings(BucketSettings(5.0), concurrency=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("braker = false", "braker is unknown; did you mean breaker"),
        ("[breaker]\nopens = 1", "breaker.opens is unknown; did you mean open_s"),
        ("[breaker]\nopen_s = 'long'", "breaker.open_s: saw 'long', expected a number"),
        ("[breaker]\nopen_s = -1", "breaker: open_s -1.0: expected above 0"),
        ("breaker = 7", "breaker: saw 7, expected a table"),
        ("attempt_timeout_s = false", "attempt_timeout_s: saw false, expected a number"),
        ("virtual_nodes = true", "virtual_nodes: saw true, expected a whole number"),
        ("virtual_nodes = 0", "virtual_nodes: saw 0, expected a whole number of at least 1"),
        ("attempt_timeout_s = 0", "attempt_timeout_s: saw 0.0, expected a number above 0"),
        ("drain_deadline_s = 0", "drain_deadline_s: saw 0.0, expected a number above 0"),
        ("drain_deadline_s = inf", "drain_deadline_s: saw inf, expected a finite number above 0"),
        ("[limits.requests]\nburst = 5", "limits.requests.rate_per_s is missing"),
        ("[limits.tokens]\nrate_per_s = 0", "limits.tokens: rate_per_s 0.0 and burst 1.0: expected above 0"),
        ("commit_at = 'haed'", "commit_at: saw 'haed'; did you mean head?"),
        ("spread = 'two_choice'", "spread: saw 'two_choice'; did you mean two_choices"),
        ("bounded_load = 0.5", "bounded_load: saw 0.5, expected a number of at least 1"),
        ("[health_checks]\ninterval_s = 0", "health_checks.interval_s: saw 0.0, expected a number above 0"),
        ("[ejection]\nfailures = 0", "ejection.failures: saw 0, expected a whole number of at least 1"),
        ("[slow_start]\nwindow_s = 0", "slow_start.window_s: saw 0.0, expected a number above 0"),
        ("[slow_start]\naggression = 2", "slow_start.window_s is missing"),
        ("[load]\nstale_s = 0", "load: stale_s 0.0: expected above 0"),
        ("load = false", "load: saw false, expected a table"),
        (
            "[health_checks.rotation]\njitter = 1.0",
            "health_checks.rotation: minimum_ready_share 0.5 and jitter 1.0: expected",
        ),
        ("[health_checks.expected]\nstatuses = []", "health_checks.expected: statuses []: expected at least one"),
        ("virtual_nodes", "not valid TOML: "),
    ],
)
def test_nonsense_is_one_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ClaimsError) as caught:
        settings_from(file, BASE)
    assert str(caught.value).startswith(f"settings file {file}: {message}")
    assert "\n" not in str(caught.value)


def test_a_table_of_a_mechanism_that_is_off_has_the_defaults_of_its_class(file: Path) -> None:
    file.write_text("[health_checks]\nunhealthy = 4\n")
    assert settings_from(file, replace(BASE, health_checks=None)).health_checks == CheckSettings(unhealthy=4)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ClaimsError, match=r"cannot be read \(No such file or directory\); expected settings in TOML"):
        settings_from(file, BASE)


def test_a_file_says_what_takes_a_backend_out_of_rotation(file: Path) -> None:
    file.write_text(
        "[health_checks.expected]\nstatuses = [200, 204]\nready_field = true\n"
        "[health_checks.rotation]\nmemory_share = false\nqueue_depth = 7\ngated = true\njitter = 0.1\n"
    )
    checks = settings_from(file, BASE).health_checks
    assert checks is not None and BASE.health_checks is not None
    assert checks.expected == ExpectedAnswer(frozenset({200, 204}), ready_field=True)
    assert checks.rotation == RotationSettings(memory_share=None, queue_depth=7, gated=True, jitter=0.1)
    assert (BASE.health_checks.expected, BASE.health_checks.rotation) == (STATUS_200, None)


def test_a_file_gives_a_ramp_and_what_makes_a_load(file: Path) -> None:
    file.write_text("[slow_start]\nwindow_s = 9.0\naggression = 2.0\n[load]\nstale_s = 7.0\n")
    made = settings_from(file, BASE)
    assert made.slow_start == SlowStartSettings(9.0, minimum_share=0.1, aggression=2.0)
    assert made.load == replace(BASE.load, stale_s=7.0)
