"""CATALOGUE.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from harness.cli import app


def test_catalogue_page_is_up_to_date() -> None:
    made = CliRunner().invoke(app, ["catalogue", "--format", "markdown"])
    assert made.exit_code == 0
    page = (Path(__file__).parent.parent / "CATALOGUE.md").read_text(encoding="utf-8")
    assert page == made.output, "run: steelyard catalogue --format markdown > CATALOGUE.md"
