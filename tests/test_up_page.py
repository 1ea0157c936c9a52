"""Every command of docs/up.md is run here, in its order, as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.live.faults.command_words import KINDS, options_of

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "up.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (steelyard .*)$", PAGE, re.MULTILINE)
INLINE = re.findall(r"`(steelyard [^`]*)`", PAGE)
UP = "steelyard up --target nginx --backends 4"

SAYS = {
    "steelyard fault add gpu-2 latency --latency-ms 800 --for 10s": r"latency on gpu-2 in force .*, heals in 10 s",
    "steelyard fault add gpu-1 kill": r"kill on gpu-1 in force .*",
    "steelyard fault add gpu-0 failing-status --status 503 --share 0.5": r"failing-status on gpu-0 in force .*",
    "steelyard fault add gpu-3 weigh --weight 3": r"weigh weight 3 of gpu-3 done .*",
    "steelyard fault list": r"(?s)backend +in force.*gpu-1 +kill.*gpu-0 +failing-status .*gpu-3 +weigh weight 3 .*",
    "steelyard fault clear gpu-1": r"kill on gpu-1 cleared",
    "steelyard fault clear": r"(?s).*failing-status on gpu-0 cleared\nweigh of gpu-3 undone",
}


def words(command: str) -> list[str]:
    first, *rest = shlex.split(command)
    return [str(Path(sys.executable).with_name(first)), *rest]


def test_every_command_is_known_here() -> None:
    assert [UP, *SAYS] == COMMANDS
    assert set(INLINE) == {
        "steelyard up",
        "steelyard fault kinds",
        "steelyard run",
        "steelyard targets",
        "steelyard up --name two",
        "steelyard fault list --name two",
    }


@pytest.mark.slow
def test_the_commands_do_what_the_page_says(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    child = subprocess.Popen(words(UP), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        while "s: backends: " not in child.stdout.readline():
            assert child.poll() is None
        for command, said in SAYS.items():
            done = subprocess.run(words(command), env=environment, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stderr) == (0, ""), command
            assert re.fullmatch(said, done.stdout.strip()), done.stdout
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    assert child.returncode == 0


def test_spellings_of_a_duration_are_those_of_the_page() -> None:
    (latency,) = (option for option in options_of(KINDS["latency"]) if option.field == "latency_s")
    for name in latency.names:
        assert f"`{name} " in PAGE
