"""What a request looks like on the wire, and what its answer's tag says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from harness.arrivals import Arrival, key_name
from harness.load.wire import WireRequest, echo_of, request_of, tag_of
from harness.model import Echo, Kind, Method

NONCE = 0x7FFFFFFF
SEED = 11
ARRIVAL = Arrival(
    number=5,
    stream=0,
    at_s=0.1,
    kind=Kind.INFERENCE,
    method=Method.POST,
    key=3,
    prompt_tokens=8,
    output_tokens=4,
    connection=-1,
    fresh=False,
    timeout_s=1.0,
)
KEY = key_name(SEED, 3)
TAG = NONCE << 21 | 5
HEX = f"{TAG:013x}"


def made(carrier: str = "header:x-model-id", protocol: str = "http", **changes: Any) -> WireRequest:
    return request_of(dataclasses.replace(ARRIVAL, **changes), carrier, SEED, NONCE, protocol)


def body_of(request: WireRequest) -> dict[str, Any]:
    body = json.loads(request.body)
    assert isinstance(body, dict)
    return body


def test_the_tag_is_thirteen_digits_and_an_exact_json_number() -> None:
    assert tag_of(NONCE, (1 << 21) - 1) == (1 << 52) - 1
    assert len(HEX) == 13
    assert f"{tag_of(0, 1):013x}" == "0000000000001"
    for nonce, number in [(1 << 31, 0), (-1, 0), (0, 1 << 21), (0, -1)]:
        with pytest.raises(ValueError, match="bits"):
            tag_of(nonce, number)


def test_an_inference_carries_its_tag_everywhere() -> None:
    request = made()
    headers, body = dict(request.headers), body_of(request)
    assert (request.method, request.path, request.hex) == ("POST", "/v1/completions", HEX)
    assert headers["x-mock-tag"] == HEX
    assert headers["x-request-id"] == f"sy-{HEX}"
    assert headers["content-type"] == "application/json"
    assert (headers["x-prompt-tokens"], headers["x-output-tokens"]) == ("8", "4")
    assert body["seed"] == TAG
    assert body["prompt"].endswith(f" #sy-{HEX}")
    assert len(body["prompt"].split()) == 8
    assert body["max_tokens"] == 4


def test_the_prompt_ends_with_the_tag_and_never_begins_with_it() -> None:
    for prompt_tokens in (0, 1, 2, 500):
        prompt = body_of(made(prompt_tokens=prompt_tokens))["prompt"]
        assert prompt.endswith(f" #sy-{HEX}")
        assert prompt.startswith("word")


def test_a_get_carries_headers_only() -> None:
    request = made(method=Method.GET)
    headers = dict(request.headers)
    assert (request.method, request.path, request.body) == ("GET", f"/v1/models/{KEY}/answer", b"")
    assert headers["x-mock-tag"] == HEX
    assert headers["x-model-id"] == KEY
    assert headers["x-prompt-tokens"] == "8"
    assert "content-type" not in headers
    assert request.name == "/v1/models/{model}/answer"  # one row of statistics for all models


def test_an_update_names_no_model() -> None:
    request = made(kind=Kind.UPDATE, key=-1)
    assert (request.method, request.path) == ("POST", "/v1/updates")
    assert set(body_of(request)) == {"seed", "prompt"}
    assert not {"x-model-id", "x-prompt-tokens", "x-output-tokens"} & set(dict(request.headers))


@pytest.mark.parametrize("carrier", ["header:x-model-id", "json:model"])
def test_a_carrier_that_names_the_model(carrier: str) -> None:
    request = made(carrier)
    assert dict(request.headers)["x-model-id"] == body_of(request)["model"] == KEY
    assert made(carrier, method=Method.GET).path == f"/v1/models/{KEY}/answer"
    assert body_of(made(carrier, key=-1))["model"] == "default"


@pytest.mark.parametrize(
    ("carrier", "header", "value"),
    [
        ("header:X-Tenant", "x-tenant", KEY),
        ("session", "x-session-id", KEY),
        ("cookie:route", "cookie", f"route={KEY}"),
    ],
)
def test_a_key_in_a_header(carrier: str, header: str, value: str) -> None:
    request = made(carrier)
    assert dict(request.headers)[header] == value
    assert dict(request.headers)["x-model-id"] == body_of(request)["model"] == "default"
    assert header not in dict(made(carrier, key=-1).headers)
    assert dict(made(carrier, method=Method.GET).headers)[header] == value


def test_a_key_in_the_body() -> None:
    assert body_of(made("json:user"))["user"] == KEY
    assert body_of(made("json:metadata.session.id"))["metadata"] == {"session": {"id": KEY}}
    assert "user" not in body_of(made("json:user", key=-1))


@pytest.mark.parametrize("characters", [0, 1, 12, 13, 14, 26, 500])
def test_a_key_as_prefix_of_the_prompt(characters: int) -> None:
    carrier = f"prompt-prefix:{characters}"
    mine = body_of(made(carrier))["prompt"]
    again = body_of(made(carrier, number=6))["prompt"]
    other = body_of(made(carrier, key=4))["prompt"]
    assert mine.startswith(KEY)
    assert len(mine) > characters
    assert mine[:characters] == again[:characters]
    assert mine.endswith(f" #sy-{HEX}") and mine != again
    if characters >= len(KEY):
        assert mine[:characters] != other[:characters]


@pytest.mark.parametrize(
    ("carrier", "protocol", "changes", "message"),
    [
        ("header:x-model-id", "openai", {"method": Method.GET}, "openai"),
        ("header:x-model-id", "openai", {"kind": Kind.UPDATE}, "openai"),
        ("header:x-model-id", "grpc", {}, "protocol 'grpc'"),
        ("header:bad name", "http", {}, "key carrier"),
        ("json:user", "http", {"method": Method.GET}, "GET has no body"),
        ("prompt-prefix:8", "http", {"method": Method.GET}, "GET has no body"),
        ("session", "http", {"method": Method.GET, "kind": Kind.UPDATE}, "an update is a POST"),
    ],
)
def test_what_cannot_be_said(carrier: str, protocol: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(carrier, protocol, **changes)


def test_bytes() -> None:
    request = WireRequest("POST", "/v1/x", (("a", "1"),), b"{}", HEX, "/v1/x")
    assert request.encoded("127.0.0.1:9", "/base", close=True) == (
        b"POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:9\r\nuser-agent: steelyard\r\na: 1\r\ncontent-length: 2\r\n"
        b"connection: close\r\n\r\n{}"
    )
    assert made(method=Method.GET).encoded("h:1").endswith(b"\r\n\r\n")
    assert b"content-length" not in made(method=Method.GET).encoded("h:1")


def test_echo() -> None:
    other = f"{TAG + 1:013x}"
    assert echo_of(f'{{"id": "sy-{HEX}"}}'.encode(), HEX) is Echo.OWN
    assert echo_of(f'{{"id": "sy-{other}", "of": "sy-{HEX}"}}'.encode(), HEX) is Echo.OWN
    assert echo_of(f'{{"id": "sy-{other}"}}'.encode(), HEX) is Echo.OTHER
    assert echo_of(b'{"id": "sy-none"}', HEX) is Echo.NONE
    assert echo_of(b"", HEX) is Echo.NONE
