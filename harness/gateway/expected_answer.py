"""What a good answer to a health check looks like: decided by this one rule in both worlds. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """The status of a good answer, and its body where one is asked for.

    `body_part` must occur in the body; with `ready_field` the body must be a JSON object whose `ready` is true.
    ValueError for statuses that no answer can have.
    """

    statuses: frozenset[int] = frozenset({200})
    body_part: str | None = None
    ready_field: bool = False

    def __post_init__(self) -> None:
        if not self.statuses or not all(200 <= status <= 599 for status in self.statuses):
            raise ValueError(f"statuses {sorted(self.statuses)}: expected at least one, each from 200 to 599")

    @property
    def reads_body(self) -> bool:
        """Whether more than the status counts."""
        return self.ready_field or self.body_part is not None

    def met(self, status: int, body: bytes) -> bool:
        """Whether this answer is as expected. A body that can't be read is not."""
        if status not in self.statuses:
            return False
        if self.body_part is not None and self.body_part.encode() not in body:
            return False
        return not self.ready_field or _says_ready(body)


def _says_ready(body: bytes) -> bool:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("ready") is True


STATUS_200 = ExpectedAnswer()
"""The status alone."""
