"""Declaring, finding and listing properties."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.claims.features import Affinity, Claims, Hedge, Retry
from harness.evidence.history import History, empty_requests
from harness.property.declare import Property, catalogue, catalogue_row, declare, properties_of
from harness.property.findings import Findings, held, sampled
from harness.scenario.model import Load, Scenario


def quiet(claims: Claims) -> Scenario:
    """A scenario without any load."""
    return Scenario("quiet", backends=2, load=Load(()))


@declare("family.situation.promise", scenario=quiet, needs=(Affinity,), without=(Retry,), off=(Hedge,))
def example(history: History, claims: Claims) -> Findings:
    """Equal keys
    meet equal backends.

    And here is why.
    """
    yield held(True, at_s=0.5, observed=1, bound=2)


def test_a_declared_check_is_a_property() -> None:
    assert isinstance(example, Property)
    assert (example.name, example.family) == ("family.situation.promise", "family")
    assert example.summary == "Equal keys meet equal backends."
    assert example.doc.endswith("And here is why.")
    assert example.module == __name__
    assert example(History(quiet(Claims()), 1, empty_requests(0)), Claims()) == [held(True, 0.5, 1, 2)]


def test_row_has_everything_in_plain_types() -> None:
    assert catalogue_row(example) == {
        "name": "family.situation.promise",
        "family": "family",
        "summary": "Equal keys meet equal backends.",
        "description": "Equal keys\nmeet equal backends.\n\nAnd here is why.",
        "needs": ["affinity"],
        "without": ["retry"],
        "off": ["hedge"],
        "attempts": True,
        "baselines": [],
        "worlds": ["sim", "live"],
        "module": __name__,
    }


@pytest.mark.parametrize("name", ["alone", "Upper.case.name", "a.b.c.d", "a..b", "a b.c.d", ""])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected family"):
        declare(name, scenario=quiet)


@pytest.mark.parametrize("name", ["family.promise", "family.situation.promise", "a-1.b-2"])
def test_names_have_two_or_three_parts(name: str) -> None:
    def check(history: History, claims: Claims) -> Findings:
        """A promise."""
        yield held(True, 0.0, 0, 0)

    assert declare(name, scenario=quiet)(check).name == name


def test_bad_checks_are_refused() -> None:
    def swapped(claims: Claims, history: History) -> Findings:
        """A promise."""
        yield held(True, 0.0, 0, 0)

    def silent(history: History, claims: Claims) -> Iterator[object]:
        yield None

    with pytest.raises(ValueError, match=r"a\.b\.c: its check takes \(history, claims\)"):
        declare("a.b.c", scenario=quiet)(swapped)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a\.b\.c: its check needs a docstring"):
        declare("a.b.c", scenario=quiet)(silent)  # type: ignore[arg-type]


def test_sampled_makes_plain_flags() -> None:
    assert sampled([1, 0], conform=(0.0, 0.1), violate=(None, 0.2), at_s=1.0).hits == (True, False)  # type: ignore[list-item]


def test_imported_properties_are_not_a_modules_own() -> None:
    stranger = types.ModuleType("stranger")
    vars(stranger)["imported"] = example
    assert properties_of(stranger) == []
    assert properties_of(sys.modules[__name__]) == [example]


def test_a_table_shares_a_check_between_properties() -> None:
    table = types.ModuleType("table")
    rows = {"a.b.c": "One promise.\n\nWhy.", "a.b.d": "Another."}
    made = [declare(name, scenario=quiet, doc=doc, module="table")(example.check) for name, doc in rows.items()]
    vars(table)["PROPERTIES"] = tuple(made)
    assert properties_of(table) == made
    assert [(item.summary, item.doc) for item in made] == [("One promise.", rows["a.b.c"]), ("Another.", "Another.")]


PROMISE = """
from harness.scenario.model import Load, Scenario
from harness.property.declare import declare
from harness.property.findings import held

def quiet(claims):
    return Scenario("quiet", backends=2, load=Load(()))
"""

CHECK = '''
@declare("{name}", scenario=quiet)
def {function}(history, claims):
    """A promise."""
    yield held(True, at_s=0.0, observed=0, bound=0)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package `kept_promises` that can be imported."""
    folder = tmp_path / "kept_promises"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Suite."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "kept_promises"]:
        del sys.modules[name]


def test_catalogue_is_a_sorted_scan(package: Path) -> None:
    (package / "b.py").write_text(PROMISE + CHECK.format(name="z.y.x", function="one"))
    (package / "a.py").write_text(
        "from kept_promises.b import one\n"
        + PROMISE
        + CHECK.format(name="m.n.o", function="two")
        + CHECK.format(name="a.b.c", function="three")
    )
    assert [item.name for item in catalogue("kept_promises")] == ["a.b.c", "m.n.o", "z.y.x"]


def test_names_are_unique(package: Path) -> None:
    (package / "a.py").write_text(PROMISE + CHECK.format(name="a.b.c", function="one"))
    (package / "b.py").write_text(PROMISE + CHECK.format(name="a.b.c", function="one"))
    with pytest.raises(ValueError, match=r"kept_promises: declared twice: a\.b\.c"):
        catalogue("kept_promises")


def test_names_are_unique_in_a_module(package: Path) -> None:
    checks = CHECK.format(name="a.b.c", function="one") + CHECK.format(name="a.b.c", function="two")
    (package / "a.py").write_text(PROMISE + checks)
    with pytest.raises(ValueError, match=r"kept_promises\.a: two properties are called a\.b\.c"):
        catalogue("kept_promises")


def test_the_shipped_catalogue_is_sound() -> None:
    found = catalogue()
    assert found, "suites declares no property"
    for item in found:
        module = f"suites.{item.family.replace('-', '_')}"
        message = f"{item.name} belongs in {module} or a module of that folder; it is in {item.module}"
        assert item.module == module or item.module.startswith(f"{module}."), message
