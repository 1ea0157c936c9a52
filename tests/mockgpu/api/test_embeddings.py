import asyncio
import base64
import json
import math
import struct
from itertools import pairwise
from typing import Any

import pytest

from mockgpu.api.embeddings import DEFAULT_DIMENSIONS, Embeddings, vector_of
from mockgpu.api.wire import BadRequestError, ParsedRequest, Served
from mockgpu.gpu.catalogue import Gpu, Model, Setup

SERVED = Served(1, "gpu-1", 5)


def embed(**fields: Any) -> dict[str, Any]:
    api = Embeddings()
    data: dict[str, Any] = json.loads(api.whole(api.parse({}, "", {"model": "m"} | fields), SERVED).body)
    return data


def test_vectors_are_deterministic_and_of_length_one() -> None:
    data = embed(input=["one two", "three"])
    one, three = (item["embedding"] for item in data["data"])
    assert [item["index"] for item in data["data"]] == [0, 1]
    assert len(one) == DEFAULT_DIMENSIONS
    assert math.hypot(*one) == pytest.approx(1, abs=1e-5)
    assert one != three
    assert one == embed(input="one two")["data"][0]["embedding"]
    assert one != embed(input="one two", model="other")["data"][0]["embedding"]
    assert data["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_base64_holds_the_very_same_values() -> None:
    floats = embed(input="x", dimensions=3)["data"][0]["embedding"]
    packed = base64.b64decode(embed(input="x", dimensions=3, encoding_format="base64")["data"][0]["embedding"])
    assert list(struct.unpack("<3f", packed)) == floats


def test_texts_do_not_resemble_each_other() -> None:
    vectors = [struct.unpack("<256f", vector_of("m", str(number), 256)) for number in range(30)]
    products = [sum(a * b for a, b in zip(x, y, strict=True)) for x in vectors for y in vectors if x is not y]
    assert max(map(abs, products)) < 0.5


@pytest.mark.parametrize(("texts", "dimensions"), [(1, 4), (300, 100), (3, 5_000), (64, 64), (2_048, 1)])
def test_many_are_made_in_slices_and_are_the_same(texts: int, dimensions: int) -> None:
    api, fields = Embeddings(), {"input": [f"x {number}" for number in range(texts)], "dimensions": dimensions}
    request = api.parse({}, "", fields)
    prepared = [0, *(len(request.details.computed) for _ in api.prepare(request))]
    assert all(after - before <= max(1, 1_024 // dimensions) for before, after in pairwise([*prepared, texts]))
    assert (len(prepared) > 1) == (texts * dimensions > 1_024)
    assert api.whole(request, SERVED) == api.whole(api.parse({}, "", fields), SERVED)


def test_who_is_refused_has_none_made(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[ParsedRequest] = []

    def prepare(api: Embeddings, request: ParsedRequest) -> list[None]:
        prepared.append(request)
        return []

    monkeypatch.setattr(Embeddings, "prepare", prepare)

    async def test(it: Any) -> None:
        status, body = await it.post("/v1/embeddings", input="a")
        assert status == 503 and not prepared, body

    serve(test, Setup(Gpu("box", 1_000, 4, 0), Model("any", 2_000, 0.0, 1e9, 0.0)))


def test_others_are_served_while_many_are_made(serve: Any) -> None:
    async def test(it: Any) -> None:
        large = asyncio.create_task(it.post("/v1/embeddings", input=["x"] * 400, dimensions=512))
        await it.until(lambda: bool(it.rows()))
        pings = 0
        while not large.done():
            async with it.session.get(it.url("/mock/ping")) as answer:
                pings += answer.status == 200
        status, body = await large
        assert (status, len(body["data"])) == (200, 400)
        assert pings > 10

    serve(test, Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 1e9, 0.0)))


@pytest.mark.parametrize(
    ("given", "tokens", "vectors"), [("a b", 2, 1), ([1, 2, 3], 3, 1), (["a", "b c"], 3, 2), ([[1], [2, 3]], 3, 2)]
)
def test_inputs_are_texts_or_token_numbers(given: object, tokens: int, vectors: int) -> None:
    data = embed(input=given)
    assert (data["usage"]["total_tokens"], len(data["data"])) == (tokens, vectors)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": [{}]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": ["x"] * 2048, "dimensions": 1024}, "input"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 1.5}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "encoding_format": 0}, "encoding_format"),
        ({"input": "x", "stream": "no"}, "stream"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as error:
        embed(**fields)
    assert error.value.param == param


def test_the_tag_is_looked_for_in_the_last_text() -> None:
    assert Embeddings().carriers({"seed": 1, "input": ["a", "b"]}) == (1, "b")
    assert Embeddings().carriers({"input": "a"}) == (None, "a")
