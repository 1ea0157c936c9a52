"""The files of `steelyard load`: check that they can be written, and write the summary."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def check_writable(option: str, path: Path) -> None:
    """ClaimsError if `path`, given as `option`, cannot be written. Creates nothing: the load may still be refused."""
    from harness.scenario.model import ClaimsError

    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "no permission to write"
    else:
        return
    raise ClaimsError(f"{option} {path}: {why}; give a file that can be written")


def write_summary(out: Path, about: dict[str, Any], results: dict[str, Any]) -> None:
    """Write the results of a load or a search as JSON, and print the path."""
    import importlib.metadata

    text = json.dumps({"steelyard": importlib.metadata.version("steelyard"), **about, **results}, indent=2)
    out.write_text(f"{text}\n", encoding="utf-8")
    print(f"written to {out}")
