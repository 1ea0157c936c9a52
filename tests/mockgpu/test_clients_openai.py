"""OpenAI's own client against the mock: requests and responses are compatible."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from mockgpu.api.tags import tag_of
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import LogRow, RowKind, RowOutcome
from mockgpu.server.run_state import Options

NONCE = 77
SETUP = Setup(Gpu("box", 1_000, 8, None), Model("any", 0, 0.0, 10_000.0, 0.001))
MESSAGES: Any = [{"role": "user", "content": "one two three"}]


@contextlib.asynccontextmanager
async def client(it: Any, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=it.url("/v1"), api_key="none", **options) as opened:
        yield opened


def inferences(it: Any) -> list[LogRow]:
    return [row for row in it.rows() if row.kind is RowKind.INFERENCE]


async def set_faults(it: Any, *faults: dict[str, Any]) -> None:
    async with it.session.post(it.url("/mock/faults"), json={"set": faults}) as answer:
        assert answer.status == 200


def test_models(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            assert [model.id async for model in await api.models.list()] == ["any"]
            assert (await api.models.retrieve("any")).owned_by == "mockgpu"
            with pytest.raises(openai.NotFoundError) as error:
                await api.models.retrieve("gpt-9")
            assert error.value.code == "model_not_found"

    serve(test, SETUP, options=Options(strict_models=True))


def test_completions_whole_and_streamed(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            whole = await api.completions.create(model="any", prompt="a b", max_tokens=3, seed=tag_of(NONCE, 1))
            assert whole.choices[0].text == " the the the"
            assert whole.usage is not None and whole.usage.total_tokens == 5
            stream = await api.completions.create(
                model="any", prompt="a b", max_tokens=3, stream=True, stream_options={"include_usage": True}
            )
            *parts, last = [part async for part in stream]
            assert [part.choices[0].text for part in parts] == [" the"] * 3
            assert parts[-1].choices[0].finish_reason == "length"
            assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 3
            assert inferences(it)[0].tag == tag_of(NONCE, 1)

    serve(test, SETUP)


def test_several_choices_whole_and_streamed(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            whole = await api.chat.completions.create(model="any", messages=MESSAGES, max_tokens=3, n=3)
            assert [(choice.index, choice.message.content) for choice in whole.choices] == [
                (index, " the the the") for index in range(3)
            ]
            assert whole.usage is not None and whole.usage.completion_tokens == 9
            stream = await api.chat.completions.create(
                model="any", messages=MESSAGES, max_tokens=3, n=3, stream=True, stream_options={"include_usage": True}
            )
            *parts, last = [part async for part in stream]
            texts = ["", "", ""]
            for part in parts:
                texts[part.choices[0].index] += part.choices[0].delta.content or ""
            assert texts == [" the the the"] * 3
            assert [part.choices[0].index for part in parts] == [0, 1, 2] * 4, "side by side"
            assert last.usage is not None and last.usage.completion_tokens == 9
        await it.until(lambda: all(row.outcome is RowOutcome.ANSWERED for row in it.rows()))
        assert [(row.tokens_out, row.batch) for row in inferences(it)] == [(9, 3), (9, 3)]
        async with it.session.get(it.url("/metrics")) as answer:
            assert 'vllm:generation_tokens_total{model_name="any",engine="0"} 18\n' in await answer.text()

    serve(test, SETUP)


def test_several_prompts_and_a_stop(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            for prompts in (["a b", "c d e"], [[1, 2], [3, 4, 5]]):
                many = await api.completions.create(model="any", prompt=prompts, max_tokens=2, n=2)
                assert [(choice.index, choice.text) for choice in many.choices] == [(n, " the the") for n in range(4)]
                assert many.usage is not None
                assert (many.usage.prompt_tokens, many.usage.completion_tokens) == (5, 8)
            stopped = await api.completions.create(model="any", prompt="a", stop=["the"])
            assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("", "stop")
            chat = await api.chat.completions.create(model="any", messages=MESSAGES, stop=["\n"], max_tokens=2)
            assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (" the the", "length")
            hot: Any = "hot"
            with pytest.raises(openai.BadRequestError, match="temperature is 'hot', expected a number"):
                await api.completions.create(model="any", prompt="a", temperature=hot)
        assert [row.tokens_out for row in inferences(it)] == [8, 8, 0, 2, 0]

    serve(test, SETUP)


def test_an_error_inside_a_stream_is_raised(serve: Any) -> None:
    async def test(it: Any) -> None:
        await set_faults(it, {"kind": "stream-error", "after_tokens": 2})
        async with client(it, max_retries=0) as api:
            stream = await api.completions.create(model="any", prompt="a", max_tokens=5, stream=True)
            parts = aiter(stream)
            assert [(await anext(parts)).choices[0].text for _ in range(2)] == [" the"] * 2
            with pytest.raises(openai.APIError, match="Internal server error") as error:
                await anext(parts)
            assert not isinstance(error.value, openai.APIConnectionError)
            with pytest.raises(openai.InternalServerError):
                await api.completions.create(model="any", prompt="a", max_tokens=5)

    serve(test, SETUP)


def test_chats_whole_and_streamed(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            whole = await api.chat.completions.create(model="any", messages=MESSAGES, max_completion_tokens=2)
            assert whole.choices[0].message.content == " the the"
            assert whole.choices[0].finish_reason == "length"
            stream = await api.chat.completions.create(
                model="any", messages=MESSAGES, max_tokens=3, stream=True, stream_options={"include_usage": True}
            )
            role, *parts, last = [part async for part in stream]
            assert role.choices[0].delta.role == "assistant"
            assert [part.choices[0].delta.content for part in parts] == [" the"] * 3
            assert [part.choices[0].finish_reason for part in parts] == [None, None, "length"]
            assert last.usage is not None and last.usage.total_tokens == 7
            with pytest.raises(openai.BadRequestError) as error:
                await api.chat.completions.create(model="any", messages=MESSAGES, n=129)
            assert error.value.param == "n"

    serve(test, SETUP)


def test_the_helper_for_streamed_chats(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with (
            client(it) as api,
            api.chat.completions.stream(model="any", messages=MESSAGES, max_completion_tokens=4) as stream,
        ):
            with pytest.raises(openai.LengthFinishReasonError):
                await stream.get_final_completion()
        async with client(it) as api, api.chat.completions.stream(model="any", messages=MESSAGES) as stream:
            final = await stream.get_final_completion()
            assert final.choices[0].message.content == " the" * 16

    serve(test, SETUP)


def test_embeddings_of_both_encodings(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            # The client requests base64 by default and decodes it.
            packed = await api.embeddings.create(model="any", input=["a", "b"], dimensions=8)
            floats = await api.embeddings.create(model="any", input=["a", "b"], dimensions=8, encoding_format="float")
            assert [item.embedding for item in packed.data] == [item.embedding for item in floats.data]
            assert len(packed.data[0].embedding) == 8

    serve(test, SETUP)


def test_responses_whole_and_streamed(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            whole = await api.responses.create(model="any", input="a b")
            assert (whole.output_text, whole.status, whole.incomplete_details) == (" the" * 16, "completed", None)
            assert whole.usage is not None and whole.usage.total_tokens == 18
            async with api.responses.stream(model="any", input="a b") as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert kinds.count("response.output_text.delta") == 16
            assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
            assert final.output_text == " the" * 16

            limited = await api.responses.create(model="any", input="a b", max_output_tokens=20)
            assert limited.incomplete_details is not None and limited.incomplete_details.reason == "max_output_tokens"
            assert (limited.output_text, limited.status) == (" the" * 20, "incomplete")
            events = await api.responses.create(model="any", input="a b", max_output_tokens=20, stream=True)
            last = [event async for event in events][-1]
            assert last.type == "response.incomplete" and last.response.output_text == " the" * 20

    serve(test, SETUP)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_it_tries_three_times_and_says_which_try_it_is(serve: Any, status: int) -> None:
    async def test(it: Any) -> None:
        await set_faults(it, {"kind": "status", "status": status, "first": 2})
        async with client(it) as api:
            whole = await api.completions.create(model="any", prompt="a", max_tokens=1)
            assert whole.choices[0].text == " the"
        assert [(row.status, row.retry) for row in inferences(it)] == [(status, 0), (status, 1), (200, 2)]

    serve(test, SETUP)


def test_it_waits_as_long_as_it_is_told(serve: Any) -> None:
    async def test(it: Any) -> None:
        await set_faults(it, {"kind": "status", "status": 503, "first": 1, "retry_after_s": 1})
        async with client(it) as api:
            await api.completions.create(model="any", prompt="a", max_tokens=1)
        first, second = inferences(it)
        assert second.arrival_s - first.end_s >= 1.0

    serve(test, SETUP)


@pytest.mark.parametrize(("status", "error"), [(400, openai.BadRequestError), (404, openai.NotFoundError)])
def test_it_does_not_try_again_what_cannot_help(serve: Any, status: int, error: type[Exception]) -> None:
    async def test(it: Any) -> None:
        await set_faults(it, {"kind": "status", "status": status})
        async with client(it) as api:
            with pytest.raises(error):
                await api.completions.create(model="any", prompt="a", max_tokens=1)
        assert len(inferences(it)) == 1

    serve(test, SETUP)


def test_retries_can_be_turned_off(serve: Any) -> None:
    async def test(it: Any) -> None:
        await set_faults(it, {"kind": "status", "status": 503})
        async with client(it, max_retries=0) as api:
            with pytest.raises(openai.InternalServerError):
                await api.completions.create(model="any", prompt="a", max_tokens=1)
        assert len(inferences(it)) == 1

    serve(test, SETUP)


def test_a_timeout_leaves_and_tries_again(serve: Any) -> None:
    async def test(it: Any) -> None:
        await set_faults(it, {"kind": "hang"})
        async with client(it, timeout=0.1, max_retries=1) as api:
            with pytest.raises(openai.APITimeoutError):
                await api.completions.create(model="any", prompt="a", max_tokens=1)
        await it.until(lambda: [row.outcome for row in inferences(it)] == [RowOutcome.CLIENT_GONE] * 2)
        assert [row.retry for row in inferences(it)] == [0, 1]

    serve(test, SETUP)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_is_a_connection_error(serve: Any, stream: bool) -> None:
    async def test(it: Any) -> None:
        await set_faults(it, {"kind": "cut", "after_tokens": 2})
        got: list[object] = []

        async def take(api: AsyncOpenAI) -> None:
            answer = await api.completions.create(model="any", prompt="a", max_tokens=5, stream=stream)
            assert isinstance(answer, openai.AsyncStream)
            async for part in answer:
                got.append(part)  # noqa: PERF401 (one by one: what came before the cut counts)

        async with client(it, max_retries=0) as api:
            with pytest.raises((openai.APIConnectionError, *_transport_errors())):
                await take(api)
        assert len(got) == (2 if stream else 0)
        (row,) = inferences(it)
        assert (row.outcome, row.tokens_out) == (RowOutcome.CUT, 2)

    serve(test, SETUP)


def _transport_errors() -> tuple[type[Exception], ...]:
    """Errors of the HTTP library below, of which some releases of the client let those in mid-stream through."""
    import httpx2

    return (httpx2.TransportError,)


def test_leaving_a_stream_frees_its_place(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            stream = await api.completions.create(model="any", prompt="a", max_tokens=100_000, stream=True)
            async for _ in stream:
                break
            await stream.close()
        await it.until_running(0)
        await it.until(lambda: inferences(it)[0].outcome is RowOutcome.CLIENT_GONE)

    serve(test, SETUP)


def test_many_at_once(serve: Any) -> None:
    async def test(it: Any) -> None:
        async with client(it) as api:
            began_s = time.monotonic()
            answers = await asyncio.gather(
                *(api.completions.create(model="any", prompt="a", max_tokens=20) for _ in range(20))
            )
            assert {answer.choices[0].text for answer in answers} == {" the" * 20}
            # Eight concurrent requests of 20 ms each.
            assert time.monotonic() - began_s >= 3 * 0.02

    serve(test, SETUP)
