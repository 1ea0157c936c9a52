"""OpenAI's embeddings: unit vectors that depend on nothing but the model and the text."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import shake_128
from typing import Any

from mockgpu.api import fields, wire
from mockgpu.api.completions import OpenAi
from mockgpu.api.wire import BadRequestError, Events, ParsedRequest, Served, WholeAnswer

DEFAULT_DIMENSIONS = 256
_MOST_DIMENSIONS = 16_384
_MOST_INPUTS = 2048  # as OpenAI has it
_MOST_NUMBERS = 2**18  # in one answer: 6 MB of JSON, which are sent at once
_SLICE_NUMBERS = 1024  # made in about two milliseconds, in which nothing else in the process is served


@dataclass(frozen=True, slots=True)
class _Wanted:
    """``made`` are the embeddings of the first texts, as JSON with what stands before them in their list."""

    texts: tuple[str, ...]
    dimensions: int
    packed: bool
    made: list[bytes] = field(default_factory=list)


class Embeddings(OpenAi):
    """``POST /v1/embeddings``: takes the prefill of its input and no decode step."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Its seed and its last text."""
        return data.get("seed"), fields.last_of(data.get("input"))

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``input`` is a text, a list of texts, token numbers, or a list of lists of these."""
        fields.check(data, fields.EMBEDDING)
        given = data.get("input")
        if given in (None, "", []):
            raise BadRequestError("input is empty, expected text, token numbers, or a list of either", "input")
        texts = fields.prompts_of(given, "input")
        if len(texts) > _MOST_INPUTS:
            raise BadRequestError(f"input has {len(texts)} texts, expected at most {_MOST_INPUTS}", "input")
        kind = data.get("encoding_format") or "float"
        if kind not in ("float", "base64"):
            raise BadRequestError(f"encoding_format is {wire.shown(kind)}, expected float or base64", "encoding_format")
        dimensions = data.get("dimensions")
        if dimensions is None:
            dimensions = DEFAULT_DIMENSIONS
        if type(dimensions) is not int or not 0 < dimensions <= _MOST_DIMENSIONS:
            seen = wire.shown(dimensions)
            raise BadRequestError(f"dimensions is {seen}, expected 1 to {_MOST_DIMENSIONS}", "dimensions")
        if dimensions * len(texts) > _MOST_NUMBERS:
            seen = f"{len(texts)} texts of {dimensions} dimensions"
            raise BadRequestError(f"{seen} are asked for, expected at most {_MOST_NUMBERS} numbers in all", "input")
        return ParsedRequest(
            wire.model_of(headers, data.get("model", "")),
            wire.count_of(headers, "x-prompt-tokens", lambda: fields.words_in(texts)),
            output_tokens=0,
            prompt=texts[0] if len(texts) == 1 else "",
            finish="stop",
            details=_Wanted(texts, dimensions, kind == "base64"),
        )

    def whole(self, ask: ParsedRequest, served: Served) -> WholeAnswer:
        """A list of embeddings; float or base64 of little-endian 32-bit floats, with the very same values."""
        wanted: _Wanted = ask.details
        _make(ask, len(wanted.texts) - len(wanted.made))
        usage = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens}
        answer = {"object": "list", "id": wire.id_of(served.tag), "model": ask.model, "backend": served.backend}
        head = json.dumps({**answer, "usage": usage})[:-1]
        return WholeAnswer(b"".join([head.encode(), b', "data": ', *wanted.made, b"]}"]))

    def build(self, ask: ParsedRequest) -> Iterator[None]:
        """Make many embeddings, slice by slice."""
        wanted: _Wanted = ask.details
        texts = max(1, _SLICE_NUMBERS // wanted.dimensions)
        while len(wanted.made) + texts < len(wanted.texts):
            _make(ask, texts)
            yield

    def events(self, ask: ParsedRequest, served: Served) -> Events:
        """There is no stream of embeddings; none is ever asked for."""
        raise BadRequestError("embeddings can't be streamed", "stream")


def _make(ask: ParsedRequest, count: int) -> None:
    """Make so many further embeddings."""
    wanted: _Wanted = ask.details
    begun = len(wanted.made)
    for index, text in enumerate(wanted.texts[begun : begun + count], begun):
        packed = vector_of(ask.model, text, wanted.dimensions)
        value = base64.b64encode(packed).decode() if wanted.packed else struct.unpack(f"<{len(packed) // 4}f", packed)
        item = json.dumps({"object": "embedding", "index": index, "embedding": value})
        wanted.made.append((", " if index else "[").encode() + item.encode())


def vector_of(model: str, text: str, dimensions: int) -> bytes:
    """A vector of length 1 as little-endian 32-bit floats, the same for the same model, text and dimensions."""
    seed = f"{model}\0{text}".encode(errors="replace")
    numbers = struct.unpack(f"<{dimensions}i", shake_128(seed).digest(4 * dimensions))
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return struct.pack(f"<{dimensions}f", *(number / length for number in numbers))
