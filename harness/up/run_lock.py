"""Discovery of running `steelyard up` processes: one small file per name in a folder of the user, and calls to them.

The writer holds a lock on its file. The kernel releases it when the process ends for any reason, so a file without a
lock is stale and ignored.
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
CALL_TIMEOUT_S = 120.0
"""Timeout of a call. A backend's restart with a membership change may take long; a dead process refuses at once."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")


@dataclass(frozen=True, slots=True)
class RunAddress:
    """How `steelyard fault` reaches a running environment. `token` is sent in a header of every call."""

    pid: int
    control: str
    token: str


def runtime_folder() -> Path:
    """The user's folder, created if missing. TargetError unless it is this user's alone; others could redirect us."""
    folder = Path(tempfile.gettempdir()) / f"steelyard-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise TargetError(f"{folder}: expected a folder of this user with mode 700; remove it or set TMPDIR")
    return folder


class RunLock:
    """The lock on the name of a running environment. `publish` makes it discoverable."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def publish(self, address: RunAddress) -> None:
        """Write the address; call once, when the environment is up."""
        os.write(self._descriptor, json.dumps(asdict(address)).encode())


@contextmanager
def lock_name(name: str) -> Iterator[RunLock]:
    """Lock `name` for an environment. ClaimsError if it is invalid, TargetError if a running environment holds it."""
    path = _path(name)
    descriptor = _open_locked(path, name)
    try:
        yield RunLock(descriptor)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def find(name: str) -> RunAddress:
    """Address of the environment of this name. TargetError if none is running."""
    path = _path(name)
    option = "" if name == DEFAULT_NAME else f" --name {name}"
    missing = TargetError(f"no steelyard up{option} is running: start one with steelyard up{option}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        raise missing from None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            raise missing  # its writer is dead
        text = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    if not text:
        raise TargetError(f"steelyard up{option} is still starting: wait until it prints that it is up")
    return RunAddress(**json.loads(text))


def call_control(address: RunAddress, method: str, path: str, document: dict[str, Any] | None = None) -> Any:
    """Call the control API. ClaimsError for user errors, HarnessError for internal ones, TargetError for no answer."""
    body = b"" if document is None else json.dumps(document).encode()
    try:
        answer = call(method, address.control + path, body, {TOKEN: address.token}, CALL_TIMEOUT_S)
    except (OSError, http.client.HTTPException) as error:
        raise TargetError(
            f"steelyard up (process {address.pid}) does not answer at {address.control}: {error}"
        ) from None
    result = json.loads(answer.body)
    if answer.status == 200:
        return result
    raise (ClaimsError if answer.status == 400 else HarnessError)(result["error"])


def _path(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise ClaimsError(f"--name {name!r}: expected up to 60 letters, digits, '-', '_' and '.'")
    return runtime_folder() / f"up-{name}.json"


def _open_locked(path: Path, name: str) -> int:
    """Descriptor of an open, empty file with an exclusive lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if not _lock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            raise TargetError(f"a steelyard up named {name!r} is already running: stop it or choose another --name")
        try:
            current = os.fstat(descriptor).st_ino == path.stat().st_ino
        except FileNotFoundError:
            current = False
        if current:
            os.ftruncate(descriptor, 0)
            return descriptor
        os.close(descriptor)  # removed by its last holder meanwhile


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
