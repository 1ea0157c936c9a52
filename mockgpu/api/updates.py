"""Updates of a model: ``POST /v1/updates``, a state change; no real inference server has this call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mockgpu.api import fields, wire
from mockgpu.api.completions import OpenAi
from mockgpu.api.wire import BadRequestError, Events, ParsedRequest, Served, WholeAnswer


class Updates(OpenAi):
    """The model is named as in an inference; ``ParsedRequest.details`` is ``embedding`` or ``weights``."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """The seed and the prompt, which are used for tags only."""
        return data.get("seed"), fields.last_of(data.get("prompt"))

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``x-update`` is the content of the update: ``embedding`` (default) or ``weights``."""
        update = headers.get("x-update", "embedding")
        if update not in ("embedding", "weights"):
            raise BadRequestError(f"x-update is {wire.shown(update)}, expected embedding or weights", "x-update")
        return ParsedRequest(
            wire.model_of(headers, data.get("model", "")), prompt_tokens=0, output_tokens=0, details=update
        )

    def whole(self, request: ParsedRequest, served: Served) -> WholeAnswer:
        """The confirmation."""
        return WholeAnswer(wire.update_done(tag=served.tag, backend=served.backend))

    def events(self, request: ParsedRequest, served: Served) -> Events:
        """Updates have no streaming form."""
        raise BadRequestError("an update can't be streamed", "stream")
