"""Request and response of the routes other than inference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from mockgpu.api import wire


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request; ``path`` is percent-decoded."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ApiReply:
    """A response."""

    body: bytes = b""
    status: int = 200
    content_type: str = wire.JSON
    headers: Mapping[str, str] | None = None


def json_reply(data: object) -> ApiReply:
    """A reply with status 200 and ``data`` as JSON."""
    return ApiReply(json.dumps(data).encode())


def text_of(data: Mapping[str, object], name: str) -> str:
    """A required, non-empty text field of a body; raises BadRequestError."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise wire.BadRequestError(f"{name} is {wire.shown(value)}, expected text", name)
    return wire.clean(value)
