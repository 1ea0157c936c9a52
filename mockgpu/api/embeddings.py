"""OpenAI's embeddings: unit vectors determined by the model and the text."""

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
_MAX_DIMENSIONS = 16_384
_MAX_INPUTS = 2048  # as in OpenAI
_MAX_NUMBERS = 2**18  # per answer: 6 MB of JSON, sent in one piece
_SLICE_NUMBERS = 1024  # computed in about 2 ms, which block the event loop


@dataclass(frozen=True, slots=True)
class _EmbeddingOptions:
    """``computed``: embeddings of the first texts, as JSON list items with their separators."""

    texts: tuple[str, ...]
    dimensions: int
    packed: bool
    computed: list[bytes] = field(default_factory=list)


class Embeddings(OpenAi):
    """``POST /v1/embeddings``: prefill of the input, no decode step."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """The seed and the last text."""
        return data.get("seed"), fields.last_of(data.get("input"))

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``input`` is a text, a list of texts, a list of token ids, or a list of such lists."""
        fields.check(data, fields.EMBEDDING)
        inputs = data.get("input")
        if inputs in (None, "", []):
            raise BadRequestError("input is empty, expected text, token numbers, or a list of either", "input")
        texts = fields.prompts_of(inputs, "input")
        if len(texts) > _MAX_INPUTS:
            raise BadRequestError(f"input has {len(texts)} texts, expected at most {_MAX_INPUTS}", "input")
        kind = data.get("encoding_format") or "float"
        if kind not in ("float", "base64"):
            raise BadRequestError(f"encoding_format is {wire.shown(kind)}, expected float or base64", "encoding_format")
        dimensions = data.get("dimensions")
        if dimensions is None:
            dimensions = DEFAULT_DIMENSIONS
        if type(dimensions) is not int or not 0 < dimensions <= _MAX_DIMENSIONS:
            value = wire.shown(dimensions)
            raise BadRequestError(f"dimensions is {value}, expected 1 to {_MAX_DIMENSIONS}", "dimensions")
        if dimensions * len(texts) > _MAX_NUMBERS:
            size = f"{len(texts)} texts of {dimensions} dimensions"
            raise BadRequestError(f"{size} are requested, expected at most {_MAX_NUMBERS} numbers in total", "input")
        return ParsedRequest(
            wire.model_of(headers, data.get("model", "")),
            wire.count_of(headers, "x-prompt-tokens", lambda: fields.words_in(texts)),
            output_tokens=0,
            prompt=texts[0] if len(texts) == 1 else "",
            finish="stop",
            details=_EmbeddingOptions(texts, dimensions, kind == "base64"),
        )

    def whole(self, request: ParsedRequest, served: Served) -> WholeAnswer:
        """A list of embeddings, as floats or as base64 of little-endian 32-bit floats; both have equal values."""
        options: _EmbeddingOptions = request.details
        _compute(request, len(options.texts) - len(options.computed))
        usage = {"prompt_tokens": request.prompt_tokens, "total_tokens": request.prompt_tokens}
        answer = {"object": "list", "id": wire.id_of(served.tag), "model": request.model, "backend": served.backend}
        head = json.dumps({**answer, "usage": usage})[:-1]
        return WholeAnswer(b"".join([head.encode(), b', "data": ', *options.computed, b"]}"]))

    def prepare(self, request: ParsedRequest) -> Iterator[None]:
        """Compute the embeddings in slices."""
        options: _EmbeddingOptions = request.details
        texts = max(1, _SLICE_NUMBERS // options.dimensions)
        while len(options.computed) + texts < len(options.texts):
            _compute(request, texts)
            yield

    def events(self, request: ParsedRequest, served: Served) -> Events:
        """Embeddings have no streaming form."""
        raise BadRequestError("embeddings can't be streamed", "stream")


def _compute(request: ParsedRequest, count: int) -> None:
    """Compute ``count`` further embeddings."""
    options: _EmbeddingOptions = request.details
    first = len(options.computed)
    for index, text in enumerate(options.texts[first : first + count], first):
        packed = vector_of(request.model, text, options.dimensions)
        value = base64.b64encode(packed).decode() if options.packed else struct.unpack(f"<{len(packed) // 4}f", packed)
        item = json.dumps({"object": "embedding", "index": index, "embedding": value})
        options.computed.append((", " if index else "[").encode() + item.encode())


def vector_of(model: str, text: str, dimensions: int) -> bytes:
    """A unit vector as little-endian 32-bit floats, determined by model, text and dimensions."""
    seed = f"{model}\0{text}".encode(errors="replace")
    numbers = struct.unpack(f"<{dimensions}i", shake_128(seed).digest(4 * dimensions))
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return struct.pack(f"<{dimensions}f", *(number / length for number in numbers))
