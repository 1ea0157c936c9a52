"""The floors of the design, enforced by reading imports: who may import whom, and who may touch the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("harness", "mockgpu", "suites", "reports")

FLOORS = {
    "harness.plugin": 4,
    "harness.cli": 4,
    "mockgpu.cli": 4,
    "mockgpu.__main__": 4,
    "harness.judge": 3,
    "reports": 3,
    "suites": 2,
    "harness.sim": 2,
    "harness.live": 2,
    "harness.targets": 2,
    "harness.course": 1,
    "harness.programmes": 1,
    "harness.property": 1,
    "harness.scenario_text": 1,
    "harness.shrink": 1,
    "harness.swarm": 1,
    "harness.target": 1,
    "harness.balancer": 1,
    "harness.load": 1,
    "harness.model": 0,
    "harness.frozen": 0,
    "harness.shapes": 0,
    "harness.content": 0,
    "harness.request_faults": 0,
    "harness.timeline": 0,
    "harness.timetable": 0,
    "harness.claims": 0,
    "harness.claims_file": 0,
    "harness.verdict": 0,
    "harness.arrivals": 0,
    "harness.chats": 0,
    "harness.records": 0,
    "harness.history": 0,
    "harness.stats": 0,
    "harness.toxiproxy": 0,
    "mockgpu": 0,
}
"""Every module by its longest prefix here. The name of the part is also what "its own package" means."""

ALLOWED = {
    ("harness.target", "harness.balancer.protocol"): "a target of Python code hands out a gateway",
    ("harness.arrivals", "harness.frozen"): "floor 0 has an order of its own",
    ("harness.model", "harness.frozen"): "floor 0 has an order of its own",
    ("harness.model", "harness.content"): "floor 0 has an order of its own",
    ("harness.model", "harness.shapes"): "floor 0 has an order of its own",
    ("harness.model", "harness.timeline"): "floor 0 has an order of its own",
    ("harness.timeline", "harness.request_faults"): "floor 0 has an order of its own",
    ("harness.timetable", "harness.timeline"): "floor 0 has an order of its own",
    ("harness.history", "harness.frozen"): "floor 0 has an order of its own",
    ("harness.verdict", "harness.model"): "floor 0 has an order of its own",
    ("harness.claims", "harness.model"): "floor 0 has an order of its own",
    ("harness.claims_file", "harness.claims"): "floor 0 has an order of its own",
    ("harness.claims_file", "harness.model"): "floor 0 has an order of its own",
    ("harness.arrivals", "harness.content"): "floor 0 has an order of its own",
    ("harness.arrivals", "harness.shapes"): "floor 0 has an order of its own",
    ("harness.arrivals", "harness.model"): "floor 0 has an order of its own",
    ("harness.chats", "harness.arrivals"): "floor 0 has an order of its own",
    ("harness.chats", "harness.model"): "floor 0 has an order of its own",
    ("harness.records", "harness.model"): "floor 0 has an order of its own",
    ("harness.history", "harness.model"): "floor 0 has an order of its own",
    ("harness.history", "harness.records"): "floor 0 has an order of its own",
    ("mockgpu.__main__", "mockgpu.cli"): "python -m mockgpu is the command",
}
"""Imports on one floor that are right all the same, by prefixes, and why."""

MACHINE = ("socket", "subprocess", "multiprocessing", "aiohttp", "requests", "selectors", "ssl", "http.server")
"""Modules that mean sockets or processes."""

CLOCKS = {"time.time", "time.monotonic", "time.perf_counter", "time.sleep", "time.time_ns", "time.monotonic_ns"}
MAY_TOUCH_MACHINE = (
    "harness.live",
    "harness.toxiproxy",
    "harness.load",
    "harness.cli",
    "harness.targets.nginx",  # asks the binary for its version, before anything runs
    "mockgpu.server",
    "mockgpu.visit",
    "mockgpu.sending",
    "mockgpu.feeding",
    "mockgpu.spoiling",
    "mockgpu.extras",
    "mockgpu.engine",
    "mockgpu.listening",
    "mockgpu.fleet",
    "mockgpu.members",
    "mockgpu.cli",
    "mockgpu.clock",
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
}
"""Top packages that only some parts may import."""


def part_of(module: str) -> str | None:
    """The part that `module` belongs to: its longest prefix in FLOORS."""
    found = [part for part in FLOORS if module == part or module.startswith(part + ".")]
    return max(found, key=len, default=None)


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
    mine, other = part_of(module), part_of(name)
    if mine is None:
        return f"{module} has no floor; add it to FLOORS and to the design"
    if other is None:
        return "no such part; add it to FLOORS and to the design" if name.startswith(PACKAGES) and "." in name else None
    if mine == other or mine.startswith(other + ".") or FLOORS[other] < FLOORS[mine]:
        return None
    if any(inside(module, (one,)) and inside(name, (two,)) for one, two in ALLOWED):
        return None
    return f"floor {FLOORS[mine]} imports from lower floors or its own package, not from floor {FLOORS[other]}"


def _reserved(module: str, name: str) -> str | None:
    if inside(name, MACHINE) and not inside(module, MAY_TOUCH_MACHINE):
        return f"sockets and processes only in {', '.join(MAY_TOUCH_MACHINE)}"
    if name in CLOCKS and not inside(module, MAY_TOUCH_MACHINE):
        return f"real clocks only in {', '.join(MAY_TOUCH_MACHINE)}"
    top = name.split(".")[0]
    if top in ONLY_IN and not inside(module, ONLY_IN[top]):
        return f"{top} only in {', '.join(ONLY_IN[top]) or 'nothing: it is private'}"
    if top in ("tests", "conftest"):
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


def test_no_cycles() -> None:
    found = modules()
    sources = {module: path.read_text(encoding="utf-8") for module, path in found.items()}
    packages = frozenset(module for module, path in found.items() if path.name == "__init__.py")
    assert cycles(sources, packages) == []


def test_every_exception_is_needed() -> None:
    used = set()
    for module, path in modules().items():
        names = [name for name, _ in imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")]
        used |= {pair for pair in ALLOWED if inside(module, pair[:1]) and any(inside(name, pair[1:]) for name in names)}
    assert set(ALLOWED) - used == set()


@pytest.mark.parametrize(
    ("module", "source", "told"),
    [
        ("harness.model", "import harness.claims", "floor 0 imports from lower floors"),
        ("harness.stats", "def f():\n    from harness.model import Scenario", "harness.stats:2: imports harness.model"),
        ("harness.property", "from harness import judge", "not from floor 3"),
        ("harness.target", "from harness.balancer.gateway import Settings", "not from floor 1"),
        ("harness.sim.world", "from harness.live import session", "not from floor 2"),
        ("harness.sim.world", "from ..live import session", "imports harness.live.session"),
        ("harness.unheard", "import json", "has no floor"),
        ("suites.affinity", "from harness.unheard import thing", "no such part"),
        ("suites.affinity", "import subprocess", "sockets and processes only in"),
        ("suites.affinity", "from time import monotonic", "real clocks only in"),
        ("harness.balancer.ring", "import time\n\ndef f():\n    return time.time()", "ring:4: time.time"),
        ("harness.judge", "import pytest", "pytest only in harness.plugin"),
        ("harness.plugin", "from _pytest.runner import CallInfo", "it is private"),
        ("reports.terminal", "import typer", "typer only in"),
        ("harness.targets.nginx", "import mockgpu.model", "mockgpu only in harness.sim"),
        ("harness.live.load", "from locust import User", "locust only in harness.load"),
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
        ("harness.target", "from harness.balancer.protocol import Gateway"),
        ("harness.sim.world", "from . import backend\nfrom mockgpu.model import GpuServer"),
        ("harness.live.session", "import socket, subprocess, time\n\ntime.sleep(1)"),
        ("mockgpu.cli", "import typer\nfrom mockgpu import fleet"),
    ],
)
def test_the_checker_lets_pass(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_the_checker_sees_cycles() -> None:
    sources = {"p": "from p import a", "p.a": "from p.b import f", "p.b": "import p.c", "p.c": "from . import b"}
    assert cycles(sources, frozenset({"p"})) == ["p.b -> p.c -> p.b"]
    sources["p.c"] = "def f():\n    from . import b"
    assert cycles(sources, frozenset({"p"})) == []
