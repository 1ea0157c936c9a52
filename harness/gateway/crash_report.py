"""One-line report of an exception raised by a balancer's own code: type, message and source location."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from traceback import walk_tb

HARNESS = Path(__file__).parents[1]
STDLIB = Path(sysconfig.get_paths()["stdlib"])


def crash_line(error: BaseException, event: object = None) -> str:
    """`ValueError: out of ideas (policy.py:12, on RequestArrived)`.

    The location is the innermost frame outside the harness and Python's standard library; omitted if there is none.
    """
    message = " ".join(str(error).split())
    summary = f"{type(error).__name__}: {message}" if message else type(error).__name__
    context = [location] if (location := _location(error)) else []
    context += [f"on {type(event).__name__}"] if event is not None else []
    return f"{summary} ({', '.join(context)})" if context else summary


def _location(error: BaseException) -> str:
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        library = path.is_relative_to(STDLIB) and "site-packages" not in path.parts
        if not library and not path.is_relative_to(HARNESS) and not path.name.startswith("<"):
            found = f"{path.name}:{line}"
    return found
