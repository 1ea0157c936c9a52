"""What a balancer is told of a client's request, read from its head and body: by this one function in both worlds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.claims.features import MODEL_CARRIERS
from harness.gateway.protocol import Request
from harness.scenario.model import Kind


def described(
    *,
    number: int,
    connection: int,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    key_carrier: str,
) -> Request:
    """The request as a gateway sees it; whatever it does not say is empty.

    `headers` are looked up by names in lower case. `key_carrier` is where the target claims its key, as in a claims
    file.
    """
    carrier, _, place = key_carrier.partition(":")
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
        key = headers.get(place.lower(), "")
    elif carrier == "cookie":
        key = _cookie(headers.get("cookie", ""), place)
    elif carrier == "json":
        key = _text_at(document, place)
    elif carrier == "prompt-prefix":
        key = _text_at(document, "prompt")[: int(place)]
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
    """The text at a dotted path; empty where there is none or something else."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""


def _cookie(header: str, wanted: str) -> str:
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""
