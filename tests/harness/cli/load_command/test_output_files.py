"""The check of output files before `steelyard load` sends anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.load_command.output_files import check_writable
from harness.scenario.model import ClaimsError


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    check_writable("--out", tmp_path / "new.json")
    assert not list(tmp_path.iterdir())
    for path, message in ((tmp_path, "it is a folder"), (tmp_path / "no" / "x", "there is no folder")):
        with pytest.raises(ClaimsError, match=message):
            check_writable("--out", path)
