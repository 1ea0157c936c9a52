"""Files of saved evidence: arrays and a JSON object in one compressed archive, versioned and with a checksum.

An archive is a zip file with `about.json` and one `NAME.npy` (numpy's format) for each array. Equal content gives equal
bytes. `read` accepts a file only if format, version, columns and checksum are right, so a truncated or altered file is
never taken for evidence.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.evidence.records import Rows
from harness.scenario.model import EvidenceError

FORMAT = "steelyard-history"
VERSION = 1
ABOUT = "about.json"
SUFFIX = ".npy"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Date of the members, the earliest that a zip file can state."""


def write(path: Path, about: Mapping[str, Any], arrays: Mapping[str, Rows]) -> None:
    """Write an archive to `path` atomically (temporary file, then rename). `about` consists of plain JSON types."""
    text = _text(about)
    head = {"format": FORMAT, "version": VERSION, "sha256": _checksum(text, arrays), "about": json.loads(text)}
    partial = path.with_name(path.name + ".part")
    with zipfile.ZipFile(partial, "w") as archive:
        _add(archive, ABOUT, (json.dumps(head, indent=1) + "\n").encode())
        for name, rows in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(rows), allow_pickle=False)
            _add(archive, name + SUFFIX, buffer.getvalue())
    partial.rename(path)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Rows]]:
    """The JSON object and the arrays of an archive. EvidenceError, one line, if they cannot be trusted."""
    try:
        with zipfile.ZipFile(path) as archive:
            head = _head(path, archive)
            names = [name for name in archive.namelist() if name.endswith(SUFFIX)]
            arrays = {name.removesuffix(SUFFIX): _array(archive.read(name)) for name in names}
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise EvidenceError(f"{path}: truncated, altered, or not a saved history: {error}") from None
    except (KeyError, ValueError) as error:
        raise EvidenceError(f"{path}: altered, or not a saved history: {error}") from None
    about = head["about"]
    if head.get("sha256") != _checksum(_text(about), arrays):
        raise EvidenceError(f"{path}: altered: its content does not match its checksum; save the run again")
    return about, arrays


def _head(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    """Content of `about.json`, of the right format and version."""
    head = json.loads(archive.read(ABOUT))
    if not isinstance(head, dict) or head.get("format") != FORMAT or not isinstance(head.get("about"), dict):
        raise ValueError(f"{ABOUT} is not the head of a {FORMAT} file")
    if head.get("version") != VERSION:
        observed = f"version {head.get('version')!r} of {FORMAT}"
        raise EvidenceError(f"{path}: {observed}, expected {VERSION}; read it with the release that wrote it")
    return head


def _array(data: bytes) -> Rows:
    rows: Rows = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return rows


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, EPOCH)
    archive.writestr(member, data, zipfile.ZIP_DEFLATED, compresslevel=6)


def _text(about: Mapping[str, Any]) -> str:
    return json.dumps(about, sort_keys=True)


def _checksum(text: str, arrays: Mapping[str, Rows]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        rows = np.ascontiguousarray(arrays[name])
        total.update(f"\n{name} {rows.dtype.descr} {rows.shape}\n".encode())
        total.update(rows.tobytes())
    return total.hexdigest()
