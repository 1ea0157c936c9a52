"""Figures as short text: four significant digits, bands as low–high."""

from __future__ import annotations

import math

from harness.property.verdict import Figure


def figure(value: Figure) -> str:
    """`value` in at most four significant digits; a pair as low–high, None as an empty text."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "–".join(dict.fromkeys(_number(item) for item in value))
    return _number(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def milliseconds(value_s: float) -> str:
    """A time in seconds as text in milliseconds: `3.2 ms`."""
    return f"{value_s * 1000:.3g} ms"
