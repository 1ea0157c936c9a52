"""The limit of open files, checked before the first live run: a part that runs out of them would look like a fault."""

from __future__ import annotations

import resource

from harness.scenario.model import TargetError

LEAST_FILES = 1024
"""Open files that each process of a live run may need."""


def require_open_files() -> None:
    """TargetError if the hard limit is too low. A low soft limit is raised for each child by its guard."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        raise TargetError(
            f"a process may have {hard} open files at most here (ulimit -Hn), live runs need {LEAST_FILES}:"
            " raise the hard limit, or judge with --world sim"
        )
