"""Under pytest-xdist all live properties run on one worker: they measure time, and would disturb each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

LIVE_ITEM = re.compile(r"::[a-z0-9-]+(\.[a-z0-9-]+)+\[live\]")
"""Node ids of live properties; no Python test has a dotted name."""


class LiveOnOneWorker:
    """Hands everything to the scheduler that the user chose, unless live properties turn out to be collected."""

    def __init__(self, chosen: Any, together: Callable[[], Any]) -> None:
        self._scheduler = chosen
        self._together: Callable[[], Any] | None = together
        self._collections: dict[Any, list[str]] = {}

    def add_node_collection(self, node: Any, collection: Iterable[str]) -> None:
        """Note what a worker collected, for the case that the scheduler is changed."""
        self._collections[node] = list(collection)
        self._scheduler.add_node_collection(node, self._collections[node])

    def schedule(self) -> None:
        """Decide, once all workers have collected, and start."""
        together, self._together = self._together, None
        if together and any(LIVE_ITEM.search(name) for names in self._collections.values() for name in names):
            nodes = list(self._scheduler.nodes)
            self._scheduler = together()
            for node in nodes:
                self._scheduler.add_node(node)
            for node in nodes:
                self._scheduler.add_node_collection(node, self._collections[node])
        self._scheduler.schedule()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def live_together(config: pytest.Config, log: Any, chosen: Any) -> Any:
    """A scheduler with all live properties in one scope; the rest goes by the scopes of `chosen`, or one by one."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class LiveTogether(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if LIVE_ITEM.search(nodeid):
                return "steelyard-live"
            scope = chosen._split_scope(nodeid) if isinstance(chosen, LoadScopeScheduling) else nodeid
            return str(scope)

    return LiveTogether(config, log)
