"""Laboratories measure recorded rows again. They run where the code they measure has changed, or with `-m laboratory`.

A laboratory has a subject: files whose code, without comments and docstrings, has a hash. The hash of the last run in
which all rows held is noted in `laboratories.json`; after such a run of the changed code, note the new one:

    pytest tests/ -m laboratory && python -m tests.laboratory
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTED = Path(__file__).with_name("laboratories.json")

SUBJECTS: dict[str, tuple[str, ...]] = {
    "toxiproxy data path": (
        "harness/toxiproxy/*.py",
        "tests/harness/toxiproxy/experiments_*.py",
        "tests/harness/toxiproxy/lab.py",
        "tests/harness/toxiproxy/rig.py",
        "tests/harness/toxiproxy/test_recorded_data_path.py",
        "tests/harness/toxiproxy/recorded/data_path_2.12.0.jsonl",
    ),
}
"""Files that each laboratory depends on, as patterns from the root."""


def subject_hash(name: str, root: Path = ROOT) -> str:
    """Hash of the code of a laboratory's subject; ValueError if a pattern names no file."""
    total = hashlib.sha256()
    for pattern in SUBJECTS[name]:
        paths = sorted(root.glob(pattern))
        if not paths:
            raise ValueError(f"{name}: no file is called {pattern}")
        for path in paths:
            total.update(f"{path.relative_to(root).as_posix()}\n".encode())
            total.update(code_of(path.read_text(encoding="utf-8")) if path.suffix == ".py" else path.read_bytes())
    return total.hexdigest()


def code_of(source: str) -> bytes:
    """Python source without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not _is_text(item)]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _is_text(item: ast.AST) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def is_unchanged(name: str) -> bool:
    """Whether the subject is as it was when its rows were last measured."""
    return bool(json.loads(NOTED.read_text(encoding="utf-8")).get(name) == subject_hash(name))


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m tests.laboratory", description="Note the hashes of all subjects."
    ).parse_args()
    NOTED.write_text(json.dumps({name: subject_hash(name) for name in SUBJECTS}, indent=1) + "\n", encoding="utf-8")
