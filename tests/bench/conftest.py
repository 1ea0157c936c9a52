"""The gate of a benchmark."""

from __future__ import annotations

import pytest

from tests.bench.quiet import Gate


@pytest.fixture(scope="module")
def gate() -> Gate:
    """Judges figures measured since the first test of the module began."""
    return Gate()
