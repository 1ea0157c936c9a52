"""Checks of settings, each with a one-line ValueError that suggests valid names. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str]) -> str:
    """ "did you mean x or y?" for a misspelt name, or the list of valid names if none is similar."""
    options = sorted(valid)
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"valid: {', '.join(options)}"


def one_of(value: str, what: str, valid: tuple[str, ...]) -> None:
    """ValueError with the most similar valid names unless `value` is one of `valid`."""
    if value not in valid:
        raise ValueError(f"{what} {value!r} is unknown; {nearest(value, valid)}")


def positive(owner: object, *names: str) -> None:
    """ValueError unless each of the attributes `names` of `owner` is above 0."""
    for name in names:
        value = getattr(owner, name)
        if not value > 0:
            raise ValueError(f"{name} must be above 0, not {value}")
