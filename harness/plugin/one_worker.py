"""With pytest-xdist all live properties run on one worker: they measure time and would disturb each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

LIVE_ITEM = re.compile(r"::[a-z0-9-]+(\.[a-z0-9-]+)+\[live\]")
"""Node ids of live properties; no Python test has a dotted name."""


class LiveOnOneWorker:
    """Delegates to the user's scheduler, unless live properties are collected."""

    def __init__(self, chosen: Any, live_scheduler: Callable[[], Any]) -> None:
        self._scheduler = chosen
        self._live_scheduler: Callable[[], Any] | None = live_scheduler
        self._collections: dict[Any, list[str]] = {}

    def add_node_collection(self, node: Any, collection: Iterable[str]) -> None:
        """Record the collection of a worker, in case the scheduler is replaced."""
        self._collections[node] = list(collection)
        self._scheduler.add_node_collection(node, self._collections[node])

    def schedule(self) -> None:
        """Choose the scheduler once all workers have collected, and start it."""
        live_scheduler, self._live_scheduler = self._live_scheduler, None
        if live_scheduler and any(LIVE_ITEM.search(name) for names in self._collections.values() for name in names):
            nodes = list(self._scheduler.nodes)
            self._scheduler = live_scheduler()
            for node in nodes:
                self._scheduler.add_node(node)
            for node in nodes:
                self._scheduler.add_node_collection(node, self._collections[node])
        self._scheduler.schedule()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def live_scheduler_of(config: pytest.Config, log: Any, chosen: Any) -> Any:
    """A scheduler with all live properties in one scope; other items use the scopes of `chosen`, or one each."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class LiveInOneScope(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if LIVE_ITEM.search(nodeid):
                return "steelyard-live"
            scope = chosen._split_scope(nodeid) if isinstance(chosen, LoadScopeScheduling) else nodeid
            return str(scope)

    return LiveInOneScope(config, log)
