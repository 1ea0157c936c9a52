"""Where a running `steelyard up` is found and how it is asked: a small file for each name, in a folder of its user.

Its writer holds a lock on it for as long as it lives. The kernel lets go of it when the process dies, whatever killed
it, so a file without a lock is stale and counts for nothing.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.live.process.http import call
from harness.scenario.model import ClaimsError, HarnessError, TargetError

DEFAULT_NAME = "default"
TOKEN = "x-steelyard-token"
PATIENCE_S = 120.0
"""A restart of a backend with a change of membership before it may take a while; a dead stage refuses at once."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")


@dataclass(frozen=True, slots=True)
class RunAddress:
    """What `steelyard fault` must know of a running stage. `token` goes into the header of every call."""

    pid: int
    control: str
    token: str


def runtime_folder() -> Path:
    """The folder, made if it is missing. TargetError if it is not ours alone: others could send us elsewhere."""
    folder = Path(tempfile.gettempdir()) / f"steelyard-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise TargetError(f"{folder}: expected a folder of this user with mode 700; remove it or set TMPDIR")
    return folder


class RunLock:
    """The name of a running stage. `tell` lets others find it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, where: RunAddress) -> None:
        """Write where the stage is found; once, when all of it is up."""
        os.write(self._descriptor, json.dumps(asdict(where)).encode())


@contextmanager
def claimed(name: str) -> Iterator[RunLock]:
    """Hold `name` for a stage. ClaimsError if it makes no sense, TargetError if a living stage has it."""
    path = _path(name)
    descriptor = _locked(path, name)
    try:
        yield RunLock(descriptor)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def find(name: str) -> RunAddress:
    """Where the stage of this name is. TargetError if none runs."""
    path = _path(name)
    option = "" if name == DEFAULT_NAME else f" --name {name}"
    missing = TargetError(f"no steelyard up{option} is running: start one with steelyard up{option}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        raise missing from None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            raise missing  # whoever wrote it is dead
        text = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    if not text:
        raise TargetError(f"steelyard up{option} is still starting: wait until it says that it is up")
    return RunAddress(**json.loads(text))


def ask(where: RunAddress, method: str, path: str, asked: dict[str, Any] | None = None) -> Any:
    """Call a stage's control interface. ClaimsError for what the user got wrong, HarnessError for what went wrong."""
    body = b"" if asked is None else json.dumps(asked).encode()
    try:
        answer = call(method, where.control + path, body, {TOKEN: where.token}, PATIENCE_S)
    except (OSError, http.client.HTTPException) as error:
        raise TargetError(f"steelyard up (process {where.pid}) does not answer at {where.control}: {error}") from None
    told = json.loads(answer.body)
    if answer.status == 200:
        return told
    raise (ClaimsError if answer.status == 400 else HarnessError)(told["error"])


def _path(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise ClaimsError(f"--name {name!r}: expected up to 60 letters, digits, '-', '_' and '.'")
    return runtime_folder() / f"up-{name}.json"


def _locked(path: Path, name: str) -> int:
    """An open, empty file that we alone hold."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if not _lock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            raise TargetError(f"a steelyard up named {name!r} runs already: end it, or choose another --name")
        try:
            same = os.fstat(descriptor).st_ino == path.stat().st_ino
        except FileNotFoundError:
            same = False
        if same:
            os.ftruncate(descriptor, 0)
            return descriptor
        os.close(descriptor)  # its last holder removed it in between


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
