"""Parses a client's request (head and body) into the `Request` that a gateway sees; used by both worlds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.claims.features import MODEL_CARRIERS
from harness.gateway.protocol import Request
from harness.scenario.model import Kind


def parse_request(
    *,
    number: int,
    connection: int,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    key_carrier: str,
) -> Request:
    """The request as a gateway sees it; fields that the request does not carry are empty or 0.

    `headers` are looked up by lower-case names. `key_carrier`: where the target claims the affinity key travels, in the
    form of a claims file (`header:NAME`, `cookie:NAME`, `json:PATH`, `prompt-prefix:LENGTH`, `session` or a model
    carrier).
    """
    carrier, _, carrier_name = key_carrier.partition(":")
    update = path == "/v1/updates"
    model = headers.get("x-model-id", "")
    document = _document(body) if not model or carrier in ("json", "prompt-prefix") else {}
    model = "" if update else model or _text_at(document, "model")
    session = headers.get("x-session-id", "")
    key = ""
    if key_carrier in MODEL_CARRIERS:
        key = model
    elif carrier == "session":
        key = session
    elif carrier == "header":
        key = headers.get(carrier_name.lower(), "")
    elif carrier == "cookie":
        key = _cookie(headers.get("cookie", ""), carrier_name)
    elif carrier == "json":
        key = _text_at(document, carrier_name)
    elif carrier == "prompt-prefix":
        key = _text_at(document, "prompt")[: int(carrier_name)]
    tokens = headers.get("x-prompt-tokens", "")
    return Request(
        id=number,
        connection=connection,
        kind=Kind.UPDATE if update else Kind.INFERENCE,
        method=method,
        model=model,
        session=session,
        urgency=headers.get("x-urgency", "normal"),
        prompt_tokens=int(tokens) if tokens.isdecimal() else 0,
        payload_bytes=len(body),
        key=key,
    )


def _document(body: bytes) -> Any:
    try:
        return json.loads(body) if body else {}
    except ValueError:
        return {}


def _text_at(document: Any, path: str) -> str:
    """The string at a dotted path; empty if there is none or the value is not a string."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""


def _cookie(header: str, cookie_name: str) -> str:
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == cookie_name:
            return value
    return ""
