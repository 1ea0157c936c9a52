"""Reading and writing JSON as Toxiproxy's Go server does."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.toxiproxy import wire
from harness.toxiproxy.stage import Toxic
from harness.toxiproxy.wire import ApiError


@pytest.mark.parametrize(
    ("body", "value"),
    [(b" \n{} junk", {}), (b"null", None), (b'"x"', "x"), (b"[1]]", [1]), (b'"\xff"', "\ufffd")],
)
def test_only_the_first_value_of_a_body_counts(body: bytes, value: object) -> None:
    assert wire.read_value(body) == value


@pytest.mark.parametrize(
    "body",
    [b"", b"  ", b"hello", b'{"name": "a"', b"NaN", b"-Infinity", b"[" * 100_000, b"1" * 5000, b"\xef\xbb\xbf{}"],
)
def test_invalid_json_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(ApiError, match="bad request body: ") as caught:
        wire.read_value(body)
    assert caught.value.status == 400


def test_an_empty_body_has_a_text_of_its_own() -> None:
    with pytest.raises(ApiError, match=r"^bad request body: EOF$"):
        wire.read_value(b"")


def test_keys_match_in_any_case_and_null_is_absent() -> None:
    assert wire.read_fields({"NAME": "a", "name": None, "Listen": "b"}) == {"name": "a", "listen": "b"}
    assert wire.read_fields(None) == {}


@pytest.mark.parametrize("value", [[], "x", 1, True])
def test_a_body_that_is_not_an_object_is_a_bad_request(value: object) -> None:
    with pytest.raises(ApiError):
        wire.read_fields(value)


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert wire.text_field({"name": "\ud800x"}, "name") == "\ufffdx"


@pytest.mark.parametrize("value", [1, 1.5, True, [], {}])
def test_a_text_must_be_a_string(value: object) -> None:
    with pytest.raises(ApiError):
        wire.text_field({"name": value}, "name")


@pytest.mark.parametrize("value", [1, 0, "yes", []])
def test_a_flag_must_be_a_boolean(value: object) -> None:
    with pytest.raises(ApiError):
        wire.flag_field({"enabled": value}, "enabled", True)


@pytest.mark.parametrize("value", ["1", True, [], 1e39, 10**400, float("inf")])
def test_a_toxicity_must_be_a_32_bit_number(value: object) -> None:
    with pytest.raises(ApiError):
        wire.float32_field({"toxicity": value}, "toxicity", 1.0)


@pytest.mark.parametrize("literal", ["100.0", "1e2", '"100"', "true", "99999999999999999999", "[]"])
def test_attributes_must_be_64_bit_integers(literal: str) -> None:
    fields = wire.read_fields(json.loads(f'{{"latency": {literal}, "jitter": 7, "other": "x"}}'))
    merged, error = wire.read_attributes(fields, ("latency", "jitter"), {"latency": 5, "jitter": 0})
    assert merged == {"latency": 5, "jitter": 7}  # valid ones apply nevertheless
    assert error is not None
    assert "latency" in error.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.1, "0.1"),
        (0.123456789, "0.12345679"),
        (2.5, "2.5"),
        (-1.0, "-1"),
        (0.0, "0"),
        (1e-9, "1e-9"),
        (10.0, "10"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1e-6, "0.000001"),
    ],
)
def test_32_bit_floats_are_written_in_the_fewest_digits(value: float, text: str) -> None:
    assert wire.float32_json(wire.float32_field({"x": value}, "x", 0.0)) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_written_32_bit_float_reads_back_as_itself(value: float) -> None:
    assert struct.pack("f", float(wire.float32_json(value))) == struct.pack("f", value)


def test_text_is_escaped_as_go_does() -> None:
    assert wire.text_json({"é<&>": "\u2028"}) == '{"é\\u003c\\u0026\\u003e":"\\u2028"}'


def test_a_toxic_has_its_keys_in_toxiproxys_order() -> None:
    toxic = Toxic("t", "latency", "UPSTREAM", 0.5, {"latency": 1, "jitter": 0})
    assert wire.toxic_json(toxic) == (
        '{"attributes":{"latency":1,"jitter":0},"name":"t","type":"latency","stream":"UPSTREAM","toxicity":0.5}'
    )
