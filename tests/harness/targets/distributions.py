"""Distributions that register targets, installed as a folder for the path of modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.targets import GROUP


def install(site: Path, name: str, entries: Mapping[str, str], files: Mapping[str, str]) -> Path:
    """Write a distribution with these entry points of ours and these modules into folder `site`; returns it."""
    info = site / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = "".join(f"{entry} = {value}\n" for entry, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    for file, text in files.items():
        (site / file).write_text(text)
    return site
