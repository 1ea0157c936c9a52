"""Updates of a model: ``POST /v1/updates``, a call that no inference server has; it stands for a change of state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mockgpu.api import fields, wire
from mockgpu.api.completions import OpenAi
from mockgpu.api.wire import BadRequestError, Events, ParsedRequest, Served, WholeAnswer


class Updates(OpenAi):
    """Names its model as an inference does; ``details`` of what it asks is ``embedding`` or ``weights``."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Its seed and its prompt, which means nothing else here."""
        return data.get("seed"), fields.last_of(data.get("prompt"))

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``x-update`` says what it brings: an embedding, unless it says weights."""
        what = headers.get("x-update", "embedding")
        if what not in ("embedding", "weights"):
            raise BadRequestError(f"x-update is {wire.shown(what)}, expected embedding or weights", "x-update")
        return ParsedRequest(
            wire.model_of(headers, data.get("model", "")), prompt_tokens=0, output_tokens=0, details=what
        )

    def whole(self, ask: ParsedRequest, served: Served) -> WholeAnswer:
        """That it is done."""
        return WholeAnswer(wire.update_done(tag=served.tag, backend=served.backend))

    def events(self, ask: ParsedRequest, served: Served) -> Events:
        """There is no stream of an update; none is ever asked for."""
        raise BadRequestError("an update can't be streamed", "stream")
