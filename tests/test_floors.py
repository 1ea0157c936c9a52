"""The floors of the design, enforced by reading imports: who may import whom, and who may touch the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("harness", "mockgpu", "suites", "reports")
MOST_MODULES = 15

FLOORS = (
    ("mockgpu",),
    ("harness.parent_death", "harness.stats", "harness.scenario"),
    ("harness.claims", "harness.evidence", "harness.toxiproxy"),
    ("harness.chaos", "harness.gateway", "harness.property", "harness.load"),
    ("harness.balancer", "suites", "reports"),
    ("harness.targets",),
    ("harness.sim", "harness.proxy"),
    ("harness.judge", "harness.live"),
    ("harness.up", "harness.plugin"),
    ("harness.cli",),
)
"""The rooms, from floor 0 up: a folder, or a module that has none. A room imports from lower floors only."""

MACHINE = ("socket", "subprocess", "multiprocessing", "aiohttp", "requests", "selectors", "ssl", "http.server")
"""Modules that mean sockets or processes."""

CLOCKS = {"time.time", "time.monotonic", "time.perf_counter", "time.sleep", "time.time_ns", "time.monotonic_ns"}
MAY_TOUCH_MACHINE = (
    "harness.cli",
    "harness.live",
    "harness.load",
    "harness.proxy",
    "harness.targets",  # asks a balancer's binary for its version
    "harness.toxiproxy",
    "harness.up",
    "mockgpu.cli",
    "mockgpu.fleet",
    "mockgpu.server",
)

ONLY_IN = {
    "pytest": ("harness.plugin",),
    "_pytest": (),
    "xdist": ("harness.plugin",),
    "typer": ("harness.cli", "mockgpu.cli"),
    "locust": ("harness.load",),
    "gevent": ("harness.load",),
    "geventhttpclient": ("harness.load",),
    "mockgpu": ("harness.sim", "harness.live", "mockgpu"),
    "mockgpu.faults.kinds": ("harness.scenario", "harness.sim", "harness.live", "mockgpu"),
}
"""Packages that only some parts may import; of two entries for a name the longer one counts."""


def floor_of(module: str) -> tuple[str, int] | None:
    """The room that `module` is in, and its floor; None where it is in none."""
    for floor, rooms in enumerate(FLOORS):
        for room in rooms:
            if inside(module, (room,)):
                return room, floor
    return None


def inside(module: str, parts: tuple[str, ...]) -> bool:
    """Whether `module` is one of `parts` or lies in one."""
    return any(module == part or module.startswith(part + ".") for part in parts)


def imports(module: str, source: str, package: bool = False, top_level: bool = False) -> Iterator[tuple[str, int]]:
    """Every name that `source` imports (`a.b` for `from a import b`), with its line; relative ones made absolute."""
    tree = ast.parse(source)
    nodes = tree.body if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if package else module.split(".")[:-1]
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def violations(module: str, source: str, package: bool = False) -> list[str]:
    """What is wrong with the imports and clocks of `module`, one line each."""
    found = []
    for name, line in imports(module, source, package):
        told = _floor(module, name) or _reserved(module, name)
        if told:
            found += [f"{module}:{line}: imports {name}: {told}"]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in CLOCKS and not inside(module, MAY_TOUCH_MACHINE):
                found.append(f"{module}:{node.lineno}: {name}: real clocks only in {', '.join(MAY_TOUCH_MACHINE)}")
    if "TYPE_CHECKING" in source:
        found.append(f"{module}: TYPE_CHECKING: do not dodge a floor")
    if "mutants" in source:
        found.append(f"{module}: names tests/mutants: they reach the judge as python: targets, like a stranger's code")
    return found


def _floor(module: str, name: str) -> str | None:
    mine, other = floor_of(module), floor_of(name)
    if mine is None:
        return None if module == "harness" else f"{module} is on no floor; add it to FLOORS"
    if other is None:
        return "no such room; add it to FLOORS" if name.startswith(PACKAGES) and "." in name else None
    if mine[0] == other[0] or other[1] < mine[1]:
        return None
    return f"floor {mine[1]} imports from lower floors or its own room, not from floor {other[1]}"


def _reserved(module: str, name: str) -> str | None:
    if inside(name, MACHINE) and not inside(module, MAY_TOUCH_MACHINE):
        return f"sockets and processes only in {', '.join(MAY_TOUCH_MACHINE)}"
    if name in CLOCKS and not inside(module, MAY_TOUCH_MACHINE):
        return f"real clocks only in {', '.join(MAY_TOUCH_MACHINE)}"
    part = max((part for part in ONLY_IN if inside(name, (part,))), key=len, default="")
    if part and not inside(module, ONLY_IN[part]):
        return f"{part} only in {', '.join(ONLY_IN[part]) or 'nothing: it is private'}"
    if name.split(".")[0] in ("tests", "conftest"):
        return "tests are imported by tests only"
    return None


def modules() -> dict[str, Path]:
    """All modules outside tests, by dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def cycles(sources: dict[str, str], packages: frozenset[str] = frozenset()) -> list[str]:
    """Cycles among the module-level imports of `sources`, each as `a -> b -> a`."""
    edges = {
        module: sorted({target for name, _ in imports(module, source, module in packages, top_level=True)
                        for target in _module_of(name, sources) if target != module})
        for module, source in sources.items()
    }  # fmt: skip
    found: list[str] = []
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            found.append(" -> ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for following in edges[module]:
                visit(following, (*path, module))
            done.add(module)

    for module in sorted(sources):
        visit(module, ())
    return found


def _module_of(name: str, sources: dict[str, str]) -> list[str]:
    """The module that importing `name` loads: itself if it is one, else the one it is an attribute of."""
    if name in sources:
        return [name]
    parent = name.rpartition(".")[0]
    return [parent] if parent in sources else []


@pytest.mark.parametrize("module", modules())
def test_imports_stay_on_their_floors(module: str) -> None:
    path = modules()[module]
    assert violations(module, path.read_text(encoding="utf-8"), path.name == "__init__.py") == []


def everything() -> tuple[dict[str, str], frozenset[str]]:
    """The source of every module, and which modules are packages."""
    found = modules()
    sources = {module: path.read_text(encoding="utf-8") for module, path in found.items()}
    return sources, frozenset(module for module, path in found.items() if path.name == "__init__.py")


def test_no_cycles() -> None:
    sources, packages = everything()
    assert cycles(sources, packages) == []


def children_of(package: str, sources: dict[str, str], packages: frozenset[str]) -> dict[str, set[str]]:
    """What lies directly in `package`, folders and modules, each with those of its neighbours that it imports."""

    def child(module: str) -> str | None:
        if not module.startswith(package + "."):
            return None
        return ".".join(module.split(".")[: package.count(".") + 2])

    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        mine = child(module)
        if mine is None:
            continue
        found.setdefault(mine, set())
        for name, _ in imports(module, source, module in packages):
            for target in _module_of(name, sources):
                other = child(target)
                if other not in (None, mine):
                    found[mine].add(str(other))
    return found


def test_no_folder_needs_a_neighbour_that_needs_it() -> None:
    sources, packages = everything()
    for package in sorted(packages):
        graph = children_of(package, sources, packages)
        as_sources = {name: "\n".join(f"import {other}" for other in sorted(others)) for name, others in graph.items()}
        assert cycles(as_sources) == [], package


def test_no_folder_has_more_than_fifteen_modules() -> None:
    counts: dict[str, int] = {}
    for path in modules().values():
        folder = path.parent.relative_to(ROOT).as_posix()
        counts[folder] = counts.get(folder, 0) + 1
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_every_room_exists() -> None:
    known = modules()
    assert [room for rooms in FLOORS for room in rooms if room not in known] == []


@pytest.mark.parametrize(
    ("module", "source", "told"),
    [
        ("harness.scenario.model", "import harness.claims", "floor 1 imports from lower floors"),
        ("harness.stats", "def f():\n    from harness.scenario import model", "harness.stats:2: imports harness"),
        ("harness.property.declare", "from harness import judge", "not from floor 7"),
        ("harness.gateway.protocol", "from harness.balancer.core.gateway import Settings", "not from floor 4"),
        ("harness.sim.world", "from harness.live import session", "not from floor 7"),
        ("harness.sim.world", "from ..live import session", "imports harness.live.session"),
        ("harness.unheard", "import json\nimport harness.stats", "is on no floor"),
        ("suites.cache", "from harness.unheard import thing", "no such room"),
        ("suites.cache", "import subprocess", "sockets and processes only in"),
        ("suites.cache", "from time import monotonic", "real clocks only in"),
        ("mockgpu.gpu.batch", "import socket", "sockets and processes only in"),
        ("mockgpu.api.wire", "import time\n\ntime.time()", "real clocks only in"),
        ("harness.balancer.picking.ring", "import time\n\ndef f():\n    return time.time()", "ring:4: time.time"),
        ("harness.judge", "import pytest", "pytest only in harness.plugin"),
        ("harness.plugin", "from _pytest.runner import CallInfo", "it is private"),
        ("reports.terminal", "import typer", "typer only in"),
        ("harness.targets.nginx", "import mockgpu.gpu.model", "mockgpu only in harness.sim"),
        ("harness.scenario.faults", "from mockgpu.faults.decisions import Change", "mockgpu only in harness.sim"),
        ("harness.scenario.faults", "from mockgpu.faults import decisions", "mockgpu only in harness.sim"),
        ("harness.chaos.swarm", "from mockgpu.faults.kinds import Slow", "mockgpu.faults.kinds only in"),
        ("mockgpu.faults.kinds", "from harness.scenario.faults import Kill", "not from floor 1"),
        ("harness.live.fleet", "from locust import User", "locust only in harness.load"),
        ("suites.spread", "from tests.helpers import thing", "tests are imported by tests only"),
        ("suites.spread", "NAME = 'tests/mutants/x.py'", "names tests/mutants"),
        ("suites.spread", "from typing import TYPE_CHECKING", "TYPE_CHECKING"),
    ],
)  # fmt: skip
def test_the_checker_sees(module: str, source: str, told: str) -> None:
    assert any(told in line for line in violations(module, source)), violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("harness.judge", "from harness.sim.world import play\nfrom harness.stats import ShareTest"),
        ("harness.targets.base", "from harness.gateway.protocol import Gateway"),
        ("harness.sim.world", "from . import backend\nfrom mockgpu.gpu.model import GpuServer"),
        ("harness.scenario.faults", "from mockgpu.faults.kinds import Slow"),
        ("harness.live.session", "import socket, subprocess, time\n\ntime.sleep(1)"),
        ("mockgpu.cli", "import typer\nfrom mockgpu import fleet"),
    ],
)
def test_the_checker_lets_pass(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_the_checker_sees_folders_that_need_each_other() -> None:
    sources = {
        "p": "",
        "p.a": "",
        "p.a.x": "import p.b.y",
        "p.b": "",
        "p.b.y": "",
        "p.b.z": "from p.a import w",
        "p.a.w": "",
    }
    graph = children_of("p", sources, frozenset({"p", "p.a", "p.b"}))
    assert graph == {"p.a": {"p.b"}, "p.b": {"p.a"}}


def test_the_checker_sees_cycles() -> None:
    sources = {"p": "from p import a", "p.a": "from p.b import f", "p.b": "import p.c", "p.c": "from . import b"}
    assert cycles(sources, frozenset({"p"})) == ["p.b -> p.c -> p.b"]
    sources["p.c"] = "def f():\n    from . import b"
    assert cycles(sources, frozenset({"p"})) == []
