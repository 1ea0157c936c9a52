"""Numbers for real use, and the file that changes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.balancer.limits import AdmissionSettings, BucketSettings
from harness.balancer.settings import EjectionSettings
from harness.live.live_settings import LONGEST_ANSWER_S, live_settings, settings_from
from harness.model import ClaimsError
from harness.targets.reference import ReferenceTarget

BASE = live_settings()


def test_every_mechanism_of_the_reference_is_on() -> None:
    assert ReferenceTarget(BASE).claims.names == ReferenceTarget().claims.names


def test_a_completion_may_stream_for_minutes() -> None:
    assert BASE.retry is not None and BASE.breaker is not None
    assert min(BASE.attempt_timeout_s, BASE.retry.deadline_s) == LONGEST_ANSWER_S >= 300
    assert BASE.breaker.slow_p99_s is None


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
    """It switches on what is off by default."""
    made = settings_from(Path(__file__).parents[3] / "docs" / "examples" / "balancer.toml", BASE)
    assert made.limits is not None and made.ejection is not None and made.slow_start_s is not None
    assert made.breaker is not None and made.breaker.slow_p99_s is not None
    assert (BASE.limits, BASE.ejection, BASE.slow_start_s) == (None, None, None)


def test_a_file_gives_limits(file: Path) -> None:
    file.write_text("[limits]\nconcurrency = 3\n[limits.requests]\nrate_per_s = 5\n")
    assert settings_from(file, BASE).limits == AdmissionSettings(BucketSettings(5.0), concurrency=3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("braker = false", "braker is unknown; did you mean breaker"),
        ("[breaker]\nopens = 1", "breaker.opens is unknown; did you mean open_s"),
        ("[breaker]\nopen_s = 'long'", "breaker.open_s 'long': input should be a valid number"),
        ("[breaker]\nopen_s = -1", "breaker: open_s -1.0: expected above 0"),
        ("breaker = 7", "breaker 7: "),
        ("attempt_timeout_s = false", "attempt_timeout_s false: expected another kind"),
        ("virtual_nodes = true", "virtual_nodes true: expected another kind"),
        ("virtual_nodes = 0", "virtual_nodes 0: expected"),
        ("attempt_timeout_s = 0", "attempt_timeout_s 0.0: expected above 0"),
        ("drain_deadline_s = 0", "drain_deadline_s 0.0: expected above 0"),
        ("drain_deadline_s = inf", "drain_deadline_s inf: expected above 0, and an end"),
        ("[limits.requests]\nburst = 5", "limits.requests.rate_per_s is missing"),
        ("[limits.tokens]\nrate_per_s = 0", "limits.tokens: rate_per_s 0.0 and burst 1.0: expected above 0"),
        ("commit_at = 'haed'", "commit_at 'haed' is unknown; did you mean head?"),
        ("update_policy = 'two_choice'", "update_policy 'two_choice' is unknown; did you mean two_choices"),
        ("bounded_load = 0.5", ""),
        ("[checks]\ninterval_s = 0", "interval_s 0.0"),
        ("[ejection]\nfailures = 0", ""),
        ("virtual_nodes", "no TOML: "),
    ],
)
def test_nonsense_is_one_line(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(ClaimsError) as caught:
        settings_from(file, BASE)
    assert str(caught.value).startswith(f"settings file {file}: {told}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ClaimsError, match="No such file or directory; give a readable TOML file"):
        settings_from(file, BASE)
