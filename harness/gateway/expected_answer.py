"""Success criterion of health checks, shared by both worlds. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """Status of a good answer to a health check, and a condition on its body where one is configured.

    `body_part` must occur in the body; with `ready_field` the body must be a JSON object whose `ready` is true.
    ValueError for an empty set of statuses and for statuses outside 200 to 599.
    """

    statuses: frozenset[int] = frozenset({200})
    body_part: str | None = None
    ready_field: bool = False

    def __post_init__(self) -> None:
        if not self.statuses or not all(200 <= status <= 599 for status in self.statuses):
            raise ValueError(f"statuses {sorted(self.statuses)}: expected at least one, each from 200 to 599")

    @property
    def reads_body(self) -> bool:
        """Whether the body must be read to decide."""
        return self.ready_field or self.body_part is not None

    def met(self, status: int, body: bytes) -> bool:
        """Whether this answer meets the criterion. A body that cannot be parsed does not."""
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
"""Status 200, any body."""
