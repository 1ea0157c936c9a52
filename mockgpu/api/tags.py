"""Tags identify a request by run and number, to match it with its attempts at backends.

A tag is a 52-bit number, ``nonce << 21 | number``, which fits a JSON number exactly. As text it is HEX, 13
lower-case hexadecimal digits. Balancers drop or rewrite some parts of a request, so a client puts the tag
into four carriers, and a backend takes the first one present:

==============  ===================================
header          ``x-mock-tag: HEX``
request id      ``x-request-id: sy-HEX``
seed            field ``seed`` of a JSON body, as a number
prompt          the prompt ends in ``#sy-HEX``
==============  ===================================

Tag 0 means no tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag

NONCE_BITS = 31
NUMBER_BITS = 21
NONCE_LIMIT = 1 << NONCE_BITS
NUMBER_LIMIT = 1 << NUMBER_BITS
TAG_LIMIT = 1 << (NONCE_BITS + NUMBER_BITS)
HEX_DIGITS = 13
_LOWER_HEX = frozenset("0123456789abcdef")


class Carrier(IntFlag):
    """Where a tag was found."""

    HEADER = 1
    REQUEST_ID = 2
    SEED = 4
    PROMPT = 8


def tag_of(nonce: int, number: int) -> int:
    """The tag of request ``number`` (21 bits) in run ``nonce`` (31 bits); ValueError if either is too large."""
    if not (0 <= nonce < NONCE_LIMIT and 0 <= number < NUMBER_LIMIT):
        raise ValueError(f"nonce {nonce}, number {number}: expected less than {NONCE_LIMIT}, {NUMBER_LIMIT}")
    return nonce << NUMBER_BITS | number


def nonce_of(tag: int) -> int:
    """The nonce of a tag's run."""
    return tag >> NUMBER_BITS


def hex_of(tag: int) -> str:
    """A tag as 13 lower-case hexadecimal digits."""
    return f"{tag:013x}"


def parse_hex(text: str) -> int:
    """The tag written as exactly 13 lower-case hexadecimal digits; 0 for any other text."""
    if len(text) != HEX_DIGITS or not _LOWER_HEX.issuperset(text):
        return 0
    return int(text, 16)


class Tags:
    """The tags of one request, by carrier."""

    __slots__ = ("_by_carrier",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        header = parse_hex(headers.get("x-mock-tag", ""))
        request_id = headers.get("x-request-id", "")
        request_id_tag = parse_hex(request_id[3:]) if request_id.startswith("sy-") else 0
        self._by_carrier = [header, request_id_tag, 0, 0]

    def read_body(self, seed: object, prompt: object) -> None:
        """Read the tags of the body's ``seed`` and ``prompt``, of any type."""
        if type(seed) is int and 0 < seed < TAG_LIMIT:
            self._by_carrier[2] = seed
        if isinstance(prompt, str) and prompt[-HEX_DIGITS - 4 : -HEX_DIGITS] == "#sy-":
            self._by_carrier[3] = parse_hex(prompt[-HEX_DIGITS:])

    @property
    def tag(self) -> int:
        """The first tag found, in the order of the carriers; 0 if there is none."""
        header, request_id, seed, prompt = self._by_carrier
        return header or request_id or seed or prompt

    @property
    def carriers(self) -> int:
        """The Carrier mask of the carriers with ``tag``; carriers of another tag are not included."""
        header, request_id, seed, prompt = self._by_carrier
        tag = header or request_id or seed or prompt
        if tag == 0:
            return 0
        return (header == tag) + 2 * (request_id == tag) + 4 * (seed == tag) + 8 * (prompt == tag)

    @property
    def echo(self) -> int:
        """The tag for the answer: the body's if it has one, else the headers'.

        So an answer to one request's body that is delivered to another request can be detected.
        """
        header, request_id, seed, prompt = self._by_carrier
        return seed or prompt or header or request_id
