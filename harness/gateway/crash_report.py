"""A crash of a balancer's own code as one line: what was raised, and where in that code."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from traceback import walk_tb

OURS = Path(__file__).parents[1]
LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def crash_line(error: BaseException, event: object = None) -> str:
    """`ValueError: out of ideas (policy.py:12, on RequestArrived)`.

    The place is the last line outside of the harness and of Python's own library; left out where there is none.
    """
    message = " ".join(str(error).split())
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = [place] if (place := _place(error)) else []
    where += [f"on {type(event).__name__}"] if event is not None else []
    return f"{told} ({', '.join(where)})" if where else told


def _place(error: BaseException) -> str:
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        library = path.is_relative_to(LIBRARY) and "site-packages" not in path.parts
        if not library and not path.is_relative_to(OURS) and not path.name.startswith("<"):
            found = f"{path.name}:{line}"
    return found
