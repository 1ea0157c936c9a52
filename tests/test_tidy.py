"""Style as a test: sizes, docstrings, words, and every module can be imported alone with warnings as errors."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = ("harness", "mockgpu", "suites", "reports")
FILES = sorted(path for folder in (*SHIPPED, "tests") for path in (ROOT / folder).rglob("*.py"))

FILE_LINES = 400
FUNCTION_LINES = 70
BANNED = re.compile("|".join([r"\bTO" + "DO", r"\bFIX" + "ME", r"\bX" + "XX", r"\bHA" + "CK"]))
"""Words for things to be done later, put together so that this file does not contain them."""

IDIOMS = re.compile(
    "|".join(
        [
            r"so " + "manieth",
            r"has in " + "store",
            r"have in " + "store",
            r"\bbe" + "falls?\b",
            r"\bto" + "ld=",
            r"\b(first|second) " + "half:",
            r"\bcheck" + "[-_]ups?\b",
            r"\bpro" + "grammes?\b",
            r"in the words " + "of",
            r"has a say " + "in",
            r"for the " + "sake of",
            r"\bturned" + "[ _]away\b",
            r"\bagen" + "da\b",
            r"\bdoor" + "way\b",
            r"\bwho" + "ever\b",
        ]
    ),
    re.IGNORECASE,
)
"""Private idioms that the field has words for: docs/style.md lists the words."""

KEPT = ("health.check-ups.independent", '"{seed}/programme"')
"""A property's name and a seed's text, which stay as they are: verdicts and histories are known by them."""

PATCHING = ("locust", "gevent")
"""Packages that patch the whole interpreter when imported; modules that load them run as processes of their own."""


def problems(path: str, source: str, shipped: bool) -> list[str]:
    """What is untidy in the Python file `path`, one line each, with what to do."""
    found = []
    lines = source.splitlines()
    if len(lines) >= FILE_LINES:
        found.append(f"{path}: {len(lines)} lines; split it (under {FILE_LINES})")
    for number, line in enumerate(lines, start=1):
        if BANNED.search(line):
            found.append(f"{path}:{number}: {line.strip()!r}: do it now or leave it out")
    for number, idiom in idioms(lines):
        found.append(f"{path}:{number}: {idiom!r}: use the field's word (docs/style.md)")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length >= FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines; split it (under {FUNCTION_LINES})")
    if shipped and source.strip():
        found += [f"{path}:{line}: {name} needs a docstring" for name, line in undocumented(tree)]
    return found


def idioms(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Line number and text of each private idiom."""
    for number, line in enumerate(lines, start=1):
        for kept in KEPT:
            line = line.replace(kept, "")
        if (match := IDIOMS.search(line)) is not None:
            yield number, match[0]


def undocumented(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names and lines of the module, public classes and functions without a docstring.

    Not what hides in functions, nor the methods of a derived class: they may do what a documented one says.
    """
    if ast.get_docstring(tree) is None:
        yield "the module", 1
    pending: list[ast.Module | ast.ClassDef] = [tree]
    while pending:
        for node in pending.pop().body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name[0] == "_":
                continue
            if ast.get_docstring(node) is None:
                yield node.name, node.lineno
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.ClassDef) and not set(bases) - {"ABC", "Protocol", "StrEnum", "IntEnum"}:
                pending.append(node)


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(ROOT).as_posix() for path in FILES])
def test_tidy(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    assert problems(name, path.read_text(encoding="utf-8"), shipped=not name.startswith("tests/")) == []


def positions(source: str) -> list[str]:
    """Parts of a scenario or history that are read by position: a check asks for them by name."""
    parts = ("intervals_s", "phases", "streams", "timeline", "steps")
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr in parts
    ]


def test_suites_read_scenarios_by_name() -> None:
    found = {str(path): positions(path.read_text(encoding="utf-8")) for path in (ROOT / "suites").rglob("*.py")}
    assert {path: reads for path, reads in found.items() if reads} == {}
    assert positions("history.scenario.intervals_s[0] + load.stream('x').start_s") == [
        "history.scenario.intervals_s[0]"
    ]


PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if path.name != "CHANGELOG.md")


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_pages_use_the_words_of_the_field(path: Path) -> None:
    assert list(idioms(path.read_text(encoding="utf-8").splitlines())) == []


def named_paths(text: str) -> Iterator[str]:
    """Paths of ours that a page names between backquotes; `a/{b,c}.py` are two."""
    for found in re.findall(r"`((?:harness|mockgpu|suites|tests|reports|docs|deploy)/[\w./{},-]*)`", text):
        before, brace, rest = found.partition("{")
        inner, _, after = rest.partition("}")
        yield from (f"{before}{part}{after}" for part in (inner.split(",") if brace else [""]))


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_paths_that_pages_name_exist(path: Path) -> None:
    missing = [name for name in named_paths(path.read_text(encoding="utf-8")) if not (ROOT / name).exists()]
    assert missing == []


def test_named_paths_are_seen() -> None:
    text = "In `harness/judge.py`, `harness/{sim,live}/world.py` and `suites/`; not `other/x.py` or harness/y.py."
    assert list(named_paths(text)) == ["harness/judge.py", "harness/sim/world.py", "harness/live/world.py", "suites/"]


def class_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """The files that define each public class."""
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path)
    return found


def test_a_public_class_name_stands_for_one_thing() -> None:
    shipped = [path for path in FILES if path.relative_to(ROOT).parts[0] in SHIPPED]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in shipped}
    assert {name: paths for name, paths in class_names(sources).items() if len(paths) > 1} == {}


def test_a_class_name_used_twice_is_seen() -> None:
    assert class_names({"a.py": "class A: ...\nclass _B: ...", "b.py": "class A: ..."}) == {"A": ["a.py", "b.py"]}


def test_untidy_is_seen() -> None:
    long = "def f():\n" + "    pass\n" * FUNCTION_LINES
    source = "x = 1  # " + "TO" + "DO later\n" + long + "class C:\n    def g(self):\n        pass\n" + "\n" * FILE_LINES
    told = "\n".join(problems("a.py", source, shipped=True))
    for part in ("split it (under 400)", "do it now", "f has 71 lines", "the module needs", "C needs", "g needs"):
        assert part in told
    assert "use the field's word" in problems("a.py", '"""Every so ' + 'manieth."""\n', shipped=True)[0]
    assert problems("a.py", '"""Doc."""\n\n\ndef _private():\n    pass\n', shipped=True) == []


IMPORT_ALONE = """
import os, sys, warnings
import aiohttp.web, jinja2, numpy, pydantic, pytest, rich.console, rich.table, typer
warnings.simplefilter("error")
for module in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            __import__(module)
        except BaseException as error:
            print(f"{module}: {type(error).__name__}: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Each module in a child of an interpreter that has loaded nothing of ours: much quicker than an interpreter each."""


@pytest.mark.slow
def test_every_module_imports_alone() -> None:
    names = []
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        patches = any(f"import {name}" in text or f"from {name}" in text
                      for text in [path.read_text(encoding="utf-8")] for name in PATCHING)  # fmt: skip
        if parts[0] != "tests" and parts[-1] != "__main__" and not patches:
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    command = [sys.executable, "-W", "error", "-c", IMPORT_ALONE, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout + done.stderr == ""
