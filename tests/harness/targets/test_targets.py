from pathlib import Path

import pytest

from harness.claims.features import Breaker, Hedge, Limits, Spread
from harness.scenario.model import ClaimsError, TargetError
from harness.targets import SHIPPED, listing, resolve
from harness.targets.file import FileTarget
from harness.targets.nginx import NginxTarget
from harness.targets.python import PythonTarget
from harness.targets.reference import ReferenceTarget

POLICY = """
class First:
    def pick(self, request): return self.backends[0].id
    def update_backends(self, backends): self.backends = backends
    def report_result(self, backend_id, latency_s, error): pass
"""


def test_shipped_names_resolve() -> None:
    assert isinstance(resolve("nginx"), NginxTarget)
    assert isinstance(resolve("reference"), ReferenceTarget)


@pytest.mark.parametrize(("wrong", "meant"), [("ngnix", "nginx"), ("referense", "reference")])
def test_misspelt_name_gets_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(ClaimsError, match=rf"no target '{wrong}'; did you mean {meant}\?") as caught:
        resolve(wrong)
    assert "\n" not in str(caught.value)


def test_the_reference_with_what_a_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('spread = "ewma"\nhedge = false\n[breaker]\nfailures = 4\n')
    target = resolve(f"reference:{file}")
    assert isinstance(target, ReferenceTarget)
    assert target.name == f"reference:{file}" == target.scaled(2.0).name
    assert (target.claims[Spread].policy, target.claims[Breaker].failures) == ("ewma", 4)
    assert Hedge not in target.claims
    assert target.claims[Limits] == ReferenceTarget().claims[Limits]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "settings file .*gone.toml: cannot be read \\(No such file or directory"),
        ("spraed = 'ewma'", "spraed is unknown; did you mean spread"),
        ("spread = 'emwa'", "spread: saw 'emwa'; did you mean ewma"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "gone.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ClaimsError, match=message) as caught:
        resolve(f"reference:{file}")
    assert "\n" not in str(caught.value)
    with pytest.raises(ClaimsError, match=r"'reference:': expected reference\[:FILE\.toml\], the reference"):
        resolve("reference:")


def test_claims_file_resolves_by_its_ending(tmp_path: Path) -> None:
    file = tmp_path / "acme.toml"
    file.write_text(
        '[balancer]\nurl = "http://127.0.0.1:8080"\n[backends]\nlisten = ["127.0.0.1:9001", "127.0.0.1:9002"]\n'
        "[claims.spread]\n"
    )
    target = resolve(str(file))
    assert isinstance(target, FileTarget)
    assert target.name == "acme"


def test_missing_claims_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match="cannot be read") as caught:
        resolve(str(tmp_path / "gone.toml"))
    assert "\n" not in str(caught.value)


def test_claims_file_may_name_a_python_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "balancer_of_a_file.py").write_text(POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "mine.toml"
    file.write_text(
        '[balancer]\nname = "mine"\nversion = "7"\npython = "balancer_of_a_file:First"\n[claims.failover]\n'
    )
    target = resolve(str(file))
    assert isinstance(target, PythonTarget)
    assert (target.name, target.version, target.claims.names) == ("mine", "7", ("failover",))
    assert target.spec(frozenset()) == "python:balancer_of_a_file:First"


def test_listing_tells_version_worlds_and_claims() -> None:
    rows = {row.usage: row for row in listing()}
    assert {"file:FILE.toml", "nginx[:PATH]", "python:MODULE:CLASS", "reference[:FILE.toml]"} <= set(rows)
    assert len(rows) >= len(SHIPPED)
    nginx = rows["nginx[:PATH]"]
    assert (nginx.worlds, nginx.claims) == (("live",), ("affinity", "ejection", "failover", "retry", "spread"))
    assert rows["reference[:FILE.toml]"].worlds == ("live", "sim")
    assert rows["file:FILE.toml"][2:] == rows["python:MODULE:CLASS"][2:] == ("", (), ())
    assert all(row.summary for row in rows.values())


def test_listing_goes_on_where_a_binary_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: NginxTarget, nginx: str | None = None) -> None:
        raise TargetError("nginx is not installed")

    monkeypatch.setattr(NginxTarget, "__init__", refuse)
    rows = {row.usage: row for row in listing()}
    assert rows["nginx[:PATH]"][2:] == ("missing: nginx is not installed", (), ())
    assert rows["reference[:FILE.toml]"].state != ""
