import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mockgpu.api.updates import Updates
from mockgpu.api.wire import BadRequestError
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind
from mockgpu.server.run_state import Options

SETUP = Setup(
    Gpu("box", 1_000, 4, None, update_s=0.002, weights_update_s=0.004, kv_share=0.5, max_adapters=1),
    Model("any", 0, 0.0, 10_000.0, 0.001, kv_bytes_per_token=1_000),
    (Model("other", 0, 0.0, 10_000.0, 0.001, kv_bytes_per_token=1_000),),
)
WEIGHTS = {"x-update": "weights"}


async def cached(it: Any, model: str = "any") -> int:
    """Cached tokens of a prompt of 64 tokens; 48 when it is sent again."""
    _, body = await it.post("/v1/completions", model=model, prompt="w " * 64, max_tokens=1)
    tokens: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


async def update(it: Any, headers: dict[str, str], **fields: Any) -> int:
    async with it.session.post(it.url("/v1/updates"), json=fields, headers=headers) as answer:
        status: int = answer.status
        return status


@pytest.mark.parametrize(
    ("headers", "fields", "forgotten"),
    [
        (WEIGHTS, {}, ["any"]),  # the default model, as for an inference without a model
        (WEIGHTS, {"model": "any"}, ["any"]),
        (WEIGHTS, {"model": "other"}, ["other"]),
        ({**WEIGHTS, "x-model-id": "other"}, {"model": "any"}, ["other"]),
        (WEIGHTS, {"model": "unlisted"}, []),
        ({}, {"model": "any"}, []),
        (WEIGHTS, {"model": "sql"}, ["any"]),  # an adapter of the default model
    ],
)
def test_new_weights_are_for_the_model_that_is_named(
    serve: Any, headers: dict[str, str], fields: dict[str, str], forgotten: list[str]
) -> None:
    async def test(it: Any) -> None:
        assert (await it.post("/v1/load_lora_adapter", lora_name="sql"))[0] == 200
        assert [await cached(it, model) for model in ("any", "other") for _ in range(2)] == [0, 48, 0, 48]
        assert await update(it, headers, **fields) == 200
        assert {model for model in ("any", "other") if await cached(it, model) == 0} == set(forgotten)
        (row,) = [row for row in it.rows() if row.kind is RowKind.UPDATE]
        assert row.model == headers.get("x-model-id") or row.model == fields.get("model", "any")

    serve(test, SETUP)


def test_strict_models_are_so_for_updates(serve: Any) -> None:
    async def test(it: Any) -> None:
        statuses = [await update(it, {}, **fields) for fields in ({"model": "x"}, {"model": "other"}, {}, {"model": 5})]
        assert statuses == [404, 200, 200, 400]
        assert await update(it, {"x-model-id": "x"}) == 404

    serve(test, SETUP, options=Options(strict_models=True))


def test_what_an_update_brings_is_named(serve: Any) -> None:
    with pytest.raises(BadRequestError, match="x-update is 'other', expected embedding or weights"):
        Updates().parse({"x-update": "other"}, "", {})

    async def test(it: Any) -> None:
        await asyncio.gather(update(it, {}), update(it, WEIGHTS))
        assert sorted(row.service_asked_s for row in it.rows()) == [0.002, 0.004]

    serve(test, replace(SETUP, models=()))
