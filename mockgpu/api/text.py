"""Values as text for messages. Pure, standard library only."""

from __future__ import annotations

from reprlib import Repr

# Limits the depth, whereas repr() recurses until the stack overflows; ``shown`` truncates the text.
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 4, 200, 200, 200
_SHORT.maxlist = _SHORT.maxdict = 20


def clean(text: str) -> str:
    """The text without lone surrogates, which JSON can express but no encoding can write."""
    return text.encode(errors="replace").decode()


def shown(value: object) -> str:
    """A value as text for a message: at most 80 characters, without lone surrogates, for any nesting depth."""
    text = _SHORT.repr(value)
    return clean(text if len(text) <= 80 else text[:77] + "...")
