"""Adapters of other packages: found by entry point, and each mistake is one line that spares all other targets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.scenario.model import AdapterError, ClaimsError, SteelyardError, TargetError
from harness.targets import SHIPPED, TargetRow, listing, resolve
from harness.targets.nginx import NginxTarget
from harness.targets.reference import ReferenceTarget
from tests.harness.targets.distributions import install

ADAPTERS = """
from harness.targets.base import Adapter
from harness.targets.reference import ReferenceTarget

def made(argument):
    target = ReferenceTarget()
    target.name = f"made of {argument!r}"
    return target

def raises(argument):
    raise KeyError("lost")

def leaves(argument):
    raise SystemExit(3)

PLAIN = Adapter(made, "one of Acme's")
FREE = Adapter(made, "one of Acme's", "FILE")
NEEDS = Adapter(made, "one of Acme's", "FILE", required=True)
RAISES = Adapter(raises, "raises")
LEAVES = Adapter(leaves, "leaves")
NO_TARGET = Adapter(str, "makes no target", "FILE")
NO_ADAPTER = ReferenceTarget
"""
ENTRIES = {
    "plain": "PLAIN",
    "free": "FREE",
    "needs": "NEEDS",
    "raises": "RAISES",
    "leaves": "LEAVES",
    "no-target": "NO_TARGET",
    "no-adapter": "NO_ADAPTER",
    "no-attribute": "GONE",
}


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with all these entries and modules, on the path; its folder."""
    entries = {name: f"adapters_of_acme:{value}" for name, value in ENTRIES.items()}
    entries |= {"no-module": "module_that_is_gone:X", "bad-module": "module_that_raises:X"}
    files = {"adapters_of_acme.py": ADAPTERS, "module_that_raises.py": "raise SystemExit('not today')\n"}
    site = install(tmp_path / "site", "steelyard-acme", entries, files)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "adapters_of_acme", raising=False)
    return site


def refused(text: str, kind: type[SteelyardError]) -> str:
    """The line with which a target is refused."""
    with pytest.raises(kind) as caught:
        resolve(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("plain", "made of ''"),
        ("free", "made of ''"),
        ("free:a:b", "made of 'a:b'"),
        ("needs:x.toml", "made of 'x.toml'"),
    ],
)
def test_an_entry_makes_a_target_from_what_follows_the_colon(acme: Path, text: str, name: str) -> None:
    assert resolve(text).name == name


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("plane", ClaimsError, "no target 'plane'; did you mean plain?"),
        ("fre:FILE", ClaimsError, "no target 'fre'; did you mean free"),
        ("ngnix:/usr/sbin/nginx", ClaimsError, "no target 'ngnix'; did you mean nginx?"),
        ("referense:gone.toml", ClaimsError, "no target 'referense'; did you mean reference?"),
        ("plain:x", ClaimsError, "target 'plain:x': plain takes no argument; expected plain"),
        ("plain:", ClaimsError, "target 'plain:': expected plain, one of Acme's"),
        ("free:", ClaimsError, "target 'free:': expected free[:FILE], one of Acme's"),
        ("needs", ClaimsError, "target 'needs': expected needs:FILE, one of Acme's"),
        ("python", ClaimsError, "target 'python': expected python:MODULE:CLASS, a class of yours"),
        ("raises", AdapterError, "target 'raises': its adapter raised KeyError: 'lost' (adapters_of_acme.py:11)"),
        ("leaves", AdapterError, "target 'leaves': its adapter raised SystemExit: 3"),
        (
            "no-target:x",
            AdapterError,
            "target no-target:x: make() returned 'x'; expected a harness.targets.base.Target",
        ),
        ("no-adapter", TargetError, "adapters_of_acme:NO_ADAPTER of steelyard-acme is ABCMeta; expected a harness."),
        ("no-attribute", TargetError, "adapters_of_acme:GONE of steelyard-acme cannot be imported: AttributeError"),
        ("no-module", TargetError, "cannot be imported: ModuleNotFoundError: No module named 'module_that_is_gone'"),
        ("bad-module", TargetError, "module_that_raises:X of steelyard-acme cannot be imported: SystemExit: not today"),
    ],
)
def test_mistakes_are_one_line(acme: Path, text: str, kind: type[SteelyardError], message: str) -> None:
    assert message in refused(text, kind)


def test_a_name_taken_twice_is_refused_and_others_are_not(
    acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"plain": "adapters_of_acme:PLAIN", "nginx": "adapters_of_acme:PLAIN"}
    monkeypatch.syspath_prepend(install(tmp_path / "other", "other-acme", entries, {}))
    assert refused("plain", TargetError) == (
        "target 'plain' is registered by other-acme and steelyard-acme; expected one: uninstall the others"
    )
    assert "'nginx' is registered by steelyard and other-acme" in refused("nginx", TargetError)
    assert isinstance(resolve("reference"), ReferenceTarget)
    assert resolve("free").name == "made of ''"


def test_the_listing_says_what_is_broken_and_goes_on(acme: Path) -> None:
    rows = {row.usage: row for row in listing()}
    assert rows["plain"].state == ReferenceTarget().version and rows["plain"].summary == "one of Acme's"
    assert rows["needs:FILE"] == TargetRow("needs:FILE", "one of Acme's")
    for name in ("no-adapter", "no-attribute", "no-module", "bad-module", "raises", "leaves", "no-target[:FILE]"):
        assert rows[name].state.startswith("broken: target "), name
    assert rows["reference[:FILE.toml]"].worlds == ("live", "sim")


def test_a_binary_of_ones_own(tmp_path: Path) -> None:
    program = tmp_path / "nginx"
    program.write_text("#!/bin/sh\necho nginx version: nginx/1.2.3 >&2\n")
    program.chmod(0o755)
    target = resolve(f"nginx:{program}")
    assert isinstance(target, NginxTarget)
    assert (target.name, target.version) == ("nginx", "1.2.3")
    assert "no nginx at '/nowhere/nginx'" in refused("nginx:/nowhere/nginx", TargetError)


def test_adapters_are_imported_when_they_are_named() -> None:
    code = (
        "import sys; from harness.targets import resolve; resolve('reference');"
        " print([name for name in ('nginx', 'python', 'file') if f'harness.targets.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_shipped_names_are_those_of_their_modules() -> None:
    assert {name: f"harness.targets.{name}:ADAPTER" for name in SHIPPED} == SHIPPED
