"""Parsing of a request's bytes for a gateway."""

from __future__ import annotations

import json

import pytest

from harness.gateway.parse_request import parse_request
from harness.gateway.protocol import Request
from harness.scenario.model import Kind

BODY = json.dumps({"model": "in-body", "prompt": "word by word", "user": {"id": "me", "age": 7}}).encode()


def parsed(
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    carrier: str = "header:x-model-id",
    path: str = "/v1/completions",
) -> Request:
    """The parsed request of a POST."""
    return parse_request(
        number=3, connection=4, method="POST", path=path, headers=headers or {}, body=body, key_carrier=carrier
    )


def test_everything_that_a_request_says() -> None:
    headers = {"x-model-id": "m", "x-session-id": "s", "x-urgency": "high", "x-prompt-tokens": "12"}
    assert parsed(headers, b"1234") == Request(3, 4, Kind.INFERENCE, "POST", "m", "s", "high", 12, 4, "m")


def test_what_it_does_not_say_is_empty() -> None:
    assert parsed() == Request(3, 4, Kind.INFERENCE, "POST", "")


@pytest.mark.parametrize("tokens", ["many", "-1", "²", "1.5"])
def test_a_number_that_is_none_counts_as_absent(tokens: str) -> None:
    assert parsed({"x-prompt-tokens": tokens}).prompt_tokens == 0


@pytest.mark.parametrize(
    ("headers", "body", "model"),
    [
        ({"x-model-id": "in-head"}, BODY, "in-head"),
        ({}, BODY, "in-body"),
        ({}, b'{"model": 7}', ""),
        ({}, b"[1]", ""),
        ({}, b"no JSON", ""),
        ({}, b"\xff", ""),
    ],
)
def test_the_model_is_that_of_the_head_or_else_of_the_body(headers: dict[str, str], body: bytes, model: str) -> None:
    assert parsed(headers, body).model == model


def test_an_update_has_no_model() -> None:
    request = parsed({"x-model-id": "m"}, BODY, path="/v1/updates")
    assert (request.kind, request.model, request.key) == (Kind.UPDATE, "", "")


@pytest.mark.parametrize(
    ("carrier", "key"),
    [
        ("header:x-model-id", "m"),
        ("json:model", "m"),
        ("session", "s"),
        ("header:X-Tenant", "t"),
        ("header:x-other", ""),
        ("cookie:sid", "c=1"),
        ("cookie:si", ""),
        ("json:user.id", "me"),
        ("json:user.age", ""),
        ("json:user.id.more", ""),
        ("json:nothing", ""),
        ("prompt-prefix:6", "word b"),
    ],
)
def test_the_key_is_read_where_the_target_claims_it(carrier: str, key: str) -> None:
    headers = {"x-model-id": "m", "x-session-id": "s", "x-tenant": "t", "cookie": "a=b; sid=c=1;x"}
    assert parsed(headers, BODY, carrier).key == key
