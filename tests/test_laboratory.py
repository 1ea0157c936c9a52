"""When a laboratory runs: its subject's code decides, words do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import laboratory
from tests.laboratory import SUBJECTS, code_of, is_unchanged, subject_hash


def test_comments_docstrings_and_layout_do_not_count() -> None:
    plain = "def f(x):\n    return x + 1\n"
    wordy = '"""Module."""\n\n\ndef f(x):\n    """Doc."""\n    # why\n    return (x\n            + 1)\n'
    assert code_of(plain) == code_of(wordy)
    assert code_of(plain) != code_of("def f(x):\n    return x + 2\n")


def test_a_changed_subject_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(laboratory, "SUBJECTS", {"lab": ("*.py",)})
    monkeypatch.setattr(laboratory, "NOTED", tmp_path / "noted.json")
    monkeypatch.setattr(subject_hash, "__defaults__", (tmp_path,))
    laboratory.NOTED.write_text(json.dumps({"lab": subject_hash("lab")}))
    assert is_unchanged("lab")
    (tmp_path / "a.py").write_text("x = 2\n")
    assert not is_unchanged("lab")
    laboratory.NOTED.write_text("{}")
    assert not is_unchanged("lab"), "never measured"


def test_every_subject_has_files(tmp_path: Path) -> None:
    assert all(subject_hash(name) for name in SUBJECTS)
    with pytest.raises(ValueError, match="no file is called"):
        subject_hash(next(iter(SUBJECTS)), tmp_path)
