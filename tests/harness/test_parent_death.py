"""The end of a process with its parent; the kernel's part is tested with the guard, load process and fault proxy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import signal, sys
from harness.parent_death import die_with_parent
print(die_with_parent(signal.SIGKILL, int(sys.argv[1])))
"""


@pytest.mark.parametrize(("parent", "expected"), [(os.getpid(), "True"), (0, "True"), (2**22 + 1, "False")])
def test_it_returns_whether_the_parent_is_alive(parent: int, expected: str) -> None:
    words = [sys.executable, "-c", CODE, str(parent)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
