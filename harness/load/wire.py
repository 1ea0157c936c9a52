"""How one arrival looks on the wire, and whose answer came back. Pure: no clock, no socket, no gevent.

Every request carries its tag (the run's nonce and its own number) in several places, because nobody knows which of
them a balancer passes on: headers `x-mock-tag` and `x-request-id`, the body field `seed`, and the end of the prompt.
The tag never stands at the beginning of the prompt, where it would break affinity by prompt prefix.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from harness.arrivals import Arrival, key_name
from harness.claims import CARRIER, MODEL_CARRIERS, PROTOCOLS
from harness.model import Echo, Kind, Method

NUMBER_BITS = 21
NONCE_BITS = 31
DEFAULT_MODEL = "default"

_TAG = re.compile(rb"sy-([0-9a-f]{13})")


@dataclass(frozen=True, slots=True)
class WireRequest:
    """An HTTP request without its connection. `hex` is its tag, `name` what Locust's statistics group it by."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    hex: str
    name: str

    def encoded(self, authority: str, base_path: str = "", close: bool = False) -> bytes:
        """Its bytes for HTTP/1.1, sent to `authority` (HOST:PORT); `close` asks the peer to close after the answer."""
        lines = [f"{self.method} {base_path}{self.path} HTTP/1.1", f"host: {authority}", "user-agent: steelyard"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.method == "POST":
            lines.append(f"content-length: {len(self.body)}")
        if close:
            lines.append("connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def tag_of(nonce: int, number: int) -> int:
    """The tag of request `number` in the run with this nonce: 52 bits, so that a JSON number holds it exactly."""
    if not 0 <= nonce < 1 << NONCE_BITS or not 0 <= number < 1 << NUMBER_BITS:
        raise ValueError(f"nonce {nonce} and number {number}: expected at most {NONCE_BITS} and {NUMBER_BITS} bits")
    return nonce << NUMBER_BITS | number


def request_of(arrival: Arrival, key_carrier: str, seed: int, nonce: int, protocol: str) -> WireRequest:
    """The request that `arrival` becomes in the run with this seed and nonce.

    ValueError if it cannot be said: an unknown carrier or protocol, a GET whose key would have to travel in a body,
    or anything but POST /v1/completions with protocol "openai".
    """
    _check(arrival, key_carrier, protocol)
    tag = tag_of(nonce, arrival.number)
    hexadecimal = f"{tag:013x}"
    key = key_name(seed, arrival.key) if arrival.key >= 0 else ""
    model = model_of(arrival, key_carrier, seed)
    headers = {"x-mock-tag": hexadecimal, "x-request-id": f"sy-{hexadecimal}"}
    body: dict[str, Any] = {"seed": tag, "prompt": _prompt(arrival, key_carrier, key, hexadecimal)}
    if arrival.kind is Kind.INFERENCE:
        headers["x-model-id"] = model
        headers["x-prompt-tokens"] = str(arrival.prompt_tokens)
        headers["x-output-tokens"] = str(arrival.output_tokens)
        body = {"model": model, "max_tokens": arrival.output_tokens, **body}
    if key:
        _carry(key, key_carrier, headers, body)
    if arrival.method is Method.GET:
        path, name = f"/v1/models/{model}/answer", "/v1/models/{model}/answer"
        return WireRequest("GET", path, tuple(headers.items()), b"", hexadecimal, name)
    headers["content-type"] = "application/json"
    path = "/v1/completions" if arrival.kind is Kind.INFERENCE else "/v1/updates"
    return WireRequest("POST", path, tuple(headers.items()), json.dumps(body).encode(), hexadecimal, path)


def model_of(arrival: Arrival, key_carrier: str, seed: int) -> str:
    """The model that an arrival asks for: its key where that is the model, else a default; none for an update."""
    if arrival.kind is Kind.UPDATE:
        return ""
    return key_name(seed, arrival.key) if arrival.key >= 0 and key_carrier in MODEL_CARRIERS else DEFAULT_MODEL


def echo_of(body: bytes, own: str) -> Echo:
    """Whose tag the body of an answer holds, for a request with the tag `own` (13 hex digits)."""
    if b"sy-" + own.encode() in body:
        return Echo.OWN
    return Echo.OTHER if _TAG.search(body) else Echo.NONE


def _check(arrival: Arrival, key_carrier: str, protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r}: expected one of {', '.join(PROTOCOLS)}")
    if not CARRIER.match(key_carrier):
        raise ValueError(f"key carrier {key_carrier!r}: expected header:NAME, json:PATH, prompt-prefix:N and the like")
    if protocol == "openai" and (arrival.method is Method.GET or arrival.kind is not Kind.INFERENCE):
        raise ValueError("protocol openai knows POST /v1/completions only; use no GET and no update in this scenario")
    if arrival.method is Method.GET:
        if arrival.kind is not Kind.INFERENCE:
            raise ValueError("an update is a POST; there is no GET for it")
        if arrival.key >= 0 and key_carrier != "json:model" and key_carrier.startswith(("json:", "prompt-prefix:")):
            raise ValueError(f"a GET has no body to carry a key as {key_carrier}; use POST in this scenario")


def _carry(key: str, key_carrier: str, headers: dict[str, str], body: dict[str, Any]) -> None:
    """Put `key` where `key_carrier` says, except into the prompt, which is made with it."""
    carrier, _, name = key_carrier.partition(":")
    if carrier == "header":
        headers[name.lower()] = key
    elif carrier == "session":
        headers["x-session-id"] = key
    elif carrier == "cookie":
        headers["cookie"] = f"{name}={key}"
    elif carrier == "json":
        *parents, last = name.split(".")
        for parent in parents:
            body = body.setdefault(parent, {})
        body[last] = key


def _prompt(arrival: Arrival, key_carrier: str, key: str, hexadecimal: str) -> str:
    carrier, _, characters = key_carrier.partition(":")
    prefix = ""
    if key and carrier == "prompt-prefix":
        prefix = f"{key} " * (int(characters) // (len(key) + 1) + 1)
    words = max(arrival.prompt_tokens - 1 - prefix.count(" "), 1)
    return f"{prefix}{' '.join(['word'] * words)} #sy-{hexadecimal}"
