"""The HTTP request of an arrival, and the tag found in its answer. Pure: no clock, no socket, no gevent.

Every request carries its tag (run nonce and number) in several places, because it is unknown which of them a balancer
passes on: headers `x-mock-tag` and `x-request-id`, the body field `seed`, and the end of the prompt. The tag is never
at the beginning of the prompt, where it would break affinity by prompt prefix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from harness.claims.features import CARRIER, MODEL_CARRIERS, PROTOCOLS
from harness.scenario.arrivals import Arrival, key_name, session_name
from harness.scenario.model import Echo, Kind, Method
from harness.scenario.request_mix import BLOCK_TOKENS

NUMBER_BITS = 21
NONCE_BITS = 31
DEFAULT_MODEL = "default"

_TAG = re.compile(rb"sy-([0-9a-f]{13})")


@dataclass(frozen=True, slots=True)
class WireRequest:
    """An HTTP request without its connection. `hex` is its tag, `name` its group in Locust's statistics."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    hex: str
    name: str

    def encoded(self, authority: str, base_path: str = "", close: bool = False) -> bytes:
        """Its bytes in HTTP/1.1 for `authority` (HOST:PORT); `close` adds `Connection: close`."""
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
    """The request of `arrival` in the run with this seed and nonce.

    `protocol`: "http" (completions, updates, GET), "openai" (POST /v1/completions alone), "chat" (POST
    /v1/chat/completions) or "kserve" (POST /v2/models/MODEL/infer). ValueError if there is no such request: an unknown
    carrier or protocol, a feature that the protocol lacks, or a key without a place in this form of request.
    """
    _check(arrival, key_carrier, protocol)
    tag = tag_of(nonce, arrival.number)
    hexadecimal = f"{tag:013x}"
    key = key_of(arrival, seed)
    model = model_of(arrival, key_carrier, seed)
    headers = {"x-mock-tag": hexadecimal, "x-request-id": f"sy-{hexadecimal}"}
    if arrival.kind is Kind.INFERENCE:
        headers["x-model-id"] = model
        headers["x-prompt-tokens"] = str(arrival.prompt_tokens)
        headers["x-output-tokens"] = str(arrival.output_tokens)
    if arrival.urgency != "normal":
        headers["x-urgency"] = arrival.urgency
    if arrival.session >= 0:
        headers["x-session-id"] = session_name(seed, arrival.session)
    if arrival.method is Method.GET:
        _carry(key, key_carrier, headers, {})
        path, name = f"/v1/models/{quote(model)}/answer", "/v1/models/{model}/answer"
        return WireRequest("GET", path, tuple(headers.items()), b"", hexadecimal, name)
    contents = BodyContents(
        arrival, model, tag, hexadecimal, _opening(key_carrier, key), session_name(seed, arrival.session)
    )
    path, name, body = _FORMS["update" if arrival.kind is Kind.UPDATE else protocol](contents)
    _carry(key, key_carrier, headers, body)
    headers["content-type"] = "application/json"
    return WireRequest("POST", path, tuple(headers.items()), _encoded(body, arrival), hexadecimal, name)


def forms_of(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """One arrival for each different form of request: if these can be sent, all can."""
    return list({(one.stream, one.method, one.kind, one.streams, one.key >= 0): one for one in arrivals}.values())


def key_of(arrival: Arrival, seed: int) -> str:
    """The affinity key of `arrival` in the run with this seed; empty if it has none."""
    return (arrival.key_text or key_name(seed, arrival.key)) if arrival.key >= 0 else ""


def model_of(arrival: Arrival, key_carrier: str, seed: int) -> str:
    """The model of an arrival: its key if that is the model, else a default; none for an update."""
    if arrival.kind is Kind.UPDATE:
        return ""
    return key_of(arrival, seed) if arrival.key >= 0 and key_carrier in MODEL_CARRIERS else DEFAULT_MODEL


def echo_of(body: bytes, own: str) -> Echo:
    """Whether the body of an answer has the tag `own` (13 hex digits), another one, or none."""
    if b"sy-" + own.encode() in body:
        return Echo.OWN
    return Echo.OTHER if _TAG.search(body) else Echo.NONE


def _check(arrival: Arrival, key_carrier: str, protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r}: expected one of {', '.join(PROTOCOLS)}")
    if not CARRIER.match(key_carrier):
        raise ValueError(f"key carrier {key_carrier!r}: expected header:NAME, json:PATH, prompt-prefix:N and the like")
    if protocol != "http" and (arrival.method is Method.GET or arrival.kind is not Kind.INFERENCE):
        known = {"openai": "POST /v1/completions", "chat": "POST /v1/chat/completions", "kserve": "POST infer"}
        raise ValueError(f"protocol {protocol} has {known[protocol]} only; use no GET and no update in this scenario")
    if protocol == "kserve" and arrival.streams:
        raise ValueError("protocol kserve has no streams; use none in this scenario")
    if arrival.key >= 0 and protocol in ("chat", "kserve"):
        if key_carrier.startswith("prompt-prefix:"):
            raise ValueError(f"protocol {protocol} has no field `prompt` to carry a key as {key_carrier}")
        if protocol == "kserve" and key_carrier == "json:model":
            raise ValueError("protocol kserve names the model in its path, not as json:model; use header:x-model-id")
    if arrival.method is Method.GET:
        if arrival.kind is not Kind.INFERENCE:
            raise ValueError("an update is a POST; there is no GET for it")
        if arrival.key >= 0 and key_carrier != "json:model" and key_carrier.startswith(("json:", "prompt-prefix:")):
            raise ValueError(f"a GET has no body to carry a key as {key_carrier}; use POST in this scenario")


def _carry(key: str, key_carrier: str, headers: dict[str, str], body: dict[str, Any]) -> None:
    """Put `key` into its carrier, except the prompt, which is built with it."""
    if not key:
        return
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


def _opening(key_carrier: str, key: str) -> str:
    """The key, repeated to fill the relevant prefix of the prompt; empty if the carrier is not the prompt."""
    carrier, _, characters = key_carrier.partition(":")
    if not key or carrier != "prompt-prefix":
        return ""
    return f"{key} " * (int(characters) // (len(key) + 1) + 1)


def _encoded(body: dict[str, Any], arrival: Arrival) -> bytes:
    """`body` as JSON of at least `payload_bytes` bytes, padded by a last field `padding`."""
    data = json.dumps(body).encode()
    if len(data) >= arrival.payload_bytes:
        return data
    missing = arrival.payload_bytes - len(data) - len(b', "padding": ""')
    return data[:-1] + b', "padding": "' + b"x" * missing + b'"}'


# --- prompts ------------------------------------------------------------------------------------------------
# A word is a token of the mock. The first word of a part identifies it; a part has the same words in every request, and
# blocks of a prefix cache are chained, so one word is enough.


@dataclass(frozen=True, slots=True)
class BodyContents:
    """Contents of a request's body, independent of the protocol. `opening` is the beginning of the prompt."""

    arrival: Arrival
    model: str
    tag: int
    hex: str
    opening: str
    session: str

    @property
    def messages(self) -> list[str]:
        """The parts of the prompt in order: history of the session, then the current request with its tag."""
        arrival = self.arrival
        ahead = self.opening.count(" ")
        if arrival.blocks:
            texts = [_part(f"block-{block}", BLOCK_TOKENS) for block in arrival.blocks]
            words = " ".join(texts).split()[: max(arrival.prompt_tokens - 1 - ahead, 1)]
            words += ["word"] * (arrival.prompt_tokens - 1 - ahead - len(words))
            return [f"{self.opening}{' '.join(words)} #sy-{self.hex}"]
        if arrival.session < 0:
            return [f"{self.opening}{' '.join(['word'] * max(arrival.prompt_tokens - 1 - ahead, 1))} #sy-{self.hex}"]
        sizes = (*arrival.history, arrival.prompt_tokens - arrival.shared_tokens)
        texts = [_part(f"{self.session}.{position}", size) for position, size in enumerate(sizes)]
        texts[-1] = f"{' '.join(texts[-1].split()[:-1])} #sy-{self.hex}".lstrip()
        return [f"{self.opening}{texts[0]}", *texts[1:]]

    @property
    def prompt(self) -> str:
        """All parts as one text."""
        return " ".join(self.messages)


@lru_cache(maxsize=4096)
def _part(name: str, tokens: int) -> str:
    """`tokens` words; the first is `name`."""
    return " ".join([name, *["word"] * (tokens - 1)]) if tokens > 0 else ""


# --- bodies: path, name in Locust's statistics, JSON -------------------------------------------------------

Form = tuple[str, str, dict[str, Any]]


def _update(contents: BodyContents) -> Form:
    return "/v1/updates", "/v1/updates", {"seed": contents.tag, "prompt": contents.prompt}


def _completions(contents: BodyContents) -> Form:
    body = {
        "model": contents.model,
        "max_tokens": contents.arrival.output_tokens,
        "seed": contents.tag,
        "prompt": contents.prompt,
    }
    return "/v1/completions", "/v1/completions", {**body, **_streaming(contents.arrival)}


def _chat(contents: BodyContents) -> Form:
    messages = [
        {"role": "assistant" if position % 2 else "user", "content": text}
        for position, text in enumerate(contents.messages)
    ]
    limit = {"max_completion_tokens": contents.arrival.output_tokens}
    body = {
        "model": contents.model,
        **limit,
        "seed": contents.tag,
        "messages": messages,
        **_streaming(contents.arrival),
    }
    return "/v1/chat/completions", "/v1/chat/completions", body


def _kserve(contents: BodyContents) -> Form:
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [contents.prompt]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [contents.arrival.output_tokens]},
    ]
    body = {"id": f"sy-{contents.hex}", "parameters": {"seed": contents.tag}, "inputs": inputs}
    return f"/v2/models/{quote(contents.model)}/infer", "/v2/models/{model}/infer", body


def _streaming(arrival: Arrival) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": True}} if arrival.streams else {}


_FORMS: Mapping[str, Callable[[BodyContents], Form]] = MappingProxyType(
    {"http": _completions, "openai": _completions, "chat": _chat, "kserve": _kserve, "update": _update}
)
