import json
from typing import Any

import pytest

from mockgpu.api.completions import AnswerByGet, ChatCompletions, Completions, conversation
from mockgpu.api.tags import hex_of, tag_of
from mockgpu.api.wire import BadRequestError, Events, ParsedRequest, Problem, Served

TAG = tag_of(3, 4)
SERVED = Served(TAG, 'gpu-"1"', 1_700_000_000)
ASK = ParsedRequest("org/näme", 7, 3, True, True)


def events_of(events: Events, tokens: int) -> list[Any]:
    """All events of a stream of ``tokens`` tokens, decoded; "[DONE]" as text."""
    sent = b"".join(events.token(number, number == tokens - 1) for number in range(tokens))
    sent += events.closing if tokens else events.empty + events.closing
    parts = sent.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part if part == "data: [DONE]" else json.loads(part[6:]) for part in parts]


def test_a_completion_is_read() -> None:
    body = {"model": "m", "prompt": "a b c", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    request = Completions().parse({}, "", body)
    assert (request.model, request.prompt_tokens, request.output_tokens, request.prompt) == ("m", 3, 5, "a b c")
    assert (request.stream, request.include_usage, request.finish) == (True, True, "length")
    headers = {"x-model-id": "other", "x-prompt-tokens": "100"}
    request = Completions().parse(headers, "", body)
    assert (request.model, request.prompt_tokens, request.prompt) == ("other", 100, "a b c")


def test_prompts_may_be_token_numbers_or_several() -> None:
    assert Completions().parse({}, "", {"prompt": [5, 6, 7]}).prompt == "5 6 7"
    request = Completions().parse({}, "", {"prompt": ["a b", "c d e"]})
    assert (request.prompt_tokens, request.prompt, request.choices) == (5, "", 2)
    request = Completions().parse({}, "", {"prompt": [[1, 2], [3]], "n": 3, "best_of": 3})
    assert (request.prompt_tokens, request.choices) == (3, 6)
    assert Completions().parse({}, "", {"prompt": None}).prompt_tokens == 0


def test_a_whole_completion() -> None:
    data = json.loads(Completions().whole(ASK, SERVED).body)
    assert data == {
        "id": f"sy-{hex_of(TAG)}",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "org/näme",
        "backend": 'gpu-"1"',
        "choices": [{"index": 0, "text": " the the the", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def test_cached_tokens_stand_in_the_usage_where_there_is_a_cache() -> None:
    served = Served(TAG, "gpu-1", 1, cached_tokens=0)
    usage = json.loads(Completions().whole(ASK, served).body)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    served.cached_tokens = 6
    assert json.loads(ChatCompletions().whole(ASK, served).body)["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 6
    }


def test_a_streamed_completion_numbers_its_tokens() -> None:
    *tokens, usage, done = events_of(Completions().events(ASK, SERVED), 3)
    assert [token["token"] for token in tokens] == [0, 1, 2]
    assert [token["choices"][0]["text"] for token in tokens] == [" the"] * 3
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None, None, "length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)
    assert done == "data: [DONE]"
    assert {token["id"] for token in (*tokens, usage)} == {f"sy-{hex_of(TAG)}"}


def test_usage_comes_only_where_asked_for() -> None:
    request = ParsedRequest("m", 1, 1, True, False)
    assert len(events_of(Completions().events(request, SERVED), 1)) == 2
    (only, done) = events_of(Completions().events(ParsedRequest("m", 1, 0, True), SERVED), 0)
    (choice,) = only["choices"]
    assert (choice["text"], choice["finish_reason"], done) == ("", "length", "data: [DONE]")


def test_a_stop_that_occurs_leaves_nothing() -> None:
    for api, body in ((Completions(), {"prompt": "a"}), (ChatCompletions(), {"messages": [{"content": "a"}]})):
        requests = [
            api.parse({}, "", {**body, "max_tokens": 2, "stop": stop}) for stop in (" the", ["\n", "e th"], "\n")
        ]
        assert [(request.output_tokens, request.finish) for request in requests] == [
            (0, "stop"),
            (0, "stop"),
            (2, "length"),
        ]
    assert json.loads(Completions().whole(requests[0], SERVED).body)["choices"][0]["text"] == ""


def test_an_empty_body_is_refused() -> None:
    with pytest.raises(BadRequestError, match="the body is empty, expected"):
        Completions().decode({}, b"")


def test_an_answer_by_get_is_read_from_headers() -> None:
    request = AnswerByGet().parse({"x-prompt-tokens": "9", "x-output-tokens": "2"}, "org/m", {})
    assert (request.model, request.prompt_tokens, request.output_tokens, request.stream) == ("org/m", 9, 2, False)
    assert AnswerByGet().decode({}, b"nonsense") == {}


def test_a_chat_is_read() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "two words"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": None},
    ]
    request = ChatCompletions().parse(
        {}, "", {"model": "m", "messages": messages, "max_tokens": 9, "max_completion_tokens": 4}
    )
    assert request.prompt == "system: be brief\nuser: two words\nassistant: "
    assert (request.prompt_tokens, request.output_tokens, request.finish) == (7, 4, "length")
    request = ChatCompletions().parse({}, "", {"messages": messages, "max_completion_tokens": None})
    assert (request.output_tokens, request.finish) == (16, "stop")


@pytest.mark.parametrize(
    ("messages", "carrier"),
    [
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "last"}], "last"),
        ([{"role": "user", "content": [{"type": "text", "text": "last"}]}], "last"),
        ([{"role": "user", "content": 5}], None),
        ([7], None),
        ([], None),
        ("text", None),
    ],
)
def test_a_chat_carries_its_tag_in_its_last_message(messages: object, carrier: object) -> None:
    assert ChatCompletions().carriers({"seed": 5, "messages": messages}) == (5, carrier)


def test_a_whole_chat() -> None:
    data = json.loads(ChatCompletions().whole(ParsedRequest("m", 7, 2, finish="stop"), SERVED).body)
    assert data["object"] == "chat.completion"
    (choice,) = data["choices"]
    assert choice["message"] == {"role": "assistant", "content": " the the", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert data["usage"]["total_tokens"] == 9


def test_a_streamed_chat_begins_with_the_role() -> None:
    role, *tokens, usage, done = events_of(ChatCompletions().events(ASK, SERVED), 3)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "token" not in role
    assert [token["choices"][0]["delta"] for token in tokens] == [{"content": " the"}] * 3
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None, None, "length"]
    assert [token["token"] for token in tokens] == [0, 1, 2]
    assert usage["usage"]["prompt_tokens"] == 7
    assert done == "data: [DONE]"


def test_a_streamed_chat_without_tokens_still_says_why_it_ends() -> None:
    role, done = events_of(ChatCompletions().events(ParsedRequest("m", 1, 0, True), SERVED), 0)
    assert role["choices"][0]["finish_reason"] == "length"
    assert done == "data: [DONE]"


@pytest.mark.parametrize(
    ("api", "body", "param"),
    [
        (Completions(), {"n": 0}, "n"),
        (Completions(), {"n": 129}, "n"),
        (Completions(), {"n": True}, "n"),
        (Completions(), {"n": 1.5}, "n"),
        (Completions(), {"n": 100, "max_tokens": 10_001}, "n"),
        (Completions(), {"best_of": 3}, "best_of"),
        (Completions(), {"best_of": True}, "best_of"),
        (Completions(), {"best_of": 3, "n": 2}, "best_of"),
        (Completions(), {"max_tokens": "5"}, "max_tokens"),
        (Completions(), {"max_tokens": True}, "max_tokens"),
        (Completions(), {"max_tokens": 10**12}, "max_tokens"),
        (Completions(), {"prompt": {}}, "prompt"),
        (Completions(), {"prompt": ["a"] * 129}, "prompt"),
        (Completions(), {"prompt": ["a"] * 64, "n": 3}, "prompt"),
        (Completions(), {"stream_options": {"include_usage": 1}}, "stream_options"),
        (Completions(), {"stop": ["a", 5]}, "stop"),
        (ChatCompletions(), {"messages": [{"role": "user", "content": "x"}], "tools": ["x"]}, "tools"),
        (Completions(), {"stream": "yes"}, "stream"),
        (Completions(), {"model": 5}, "model"),
        (ChatCompletions(), {}, "messages"),
        (ChatCompletions(), {"messages": "hi"}, "messages"),
        (ChatCompletions(), {"messages": []}, "messages"),
        (ChatCompletions(), {"messages": ["hi"]}, "messages"),
        (ChatCompletions(), {"messages": [{"role": 5, "content": "x"}]}, "messages"),
        (ChatCompletions(), {"messages": [{"role": "user", "content": 5}]}, "content"),
        (ChatCompletions(), {"messages": [{"role": "user", "content": "x"}], "n": "3"}, "n"),
        (
            ChatCompletions(),
            {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": -1},
            "max_completion_tokens",
        ),
    ],
)
def test_what_is_wrong_is_named(api: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as error:
        api.parse({}, "", body)
    assert error.value.param == param
    assert "expected" in str(error.value)


def test_several_answers_may_be_asked_for() -> None:
    requests = [Completions().parse({}, "", body) for body in ({}, {"n": None}, {"n": 1, "best_of": 1})]
    assert [(request.output_tokens, request.choices) for request in requests] == [(16, 1)] * 3
    assert Completions().parse({}, "", {"n": 128, "best_of": 128}).choices == 128
    assert ChatCompletions().parse({}, "", {"messages": [{"content": "x"}], "n": 2}).choices == 2


THREE = ParsedRequest("m", 7, 2, True, True, choices=3)


@pytest.mark.parametrize("api", [Completions(), ChatCompletions()])
def test_each_choice_of_several_has_its_index_and_counts_in_the_usage(api: Any) -> None:
    data = json.loads(api.whole(THREE, SERVED).body)
    first = data["choices"][0]
    assert data["choices"] == [{**first, "index": index} for index in range(3)]
    assert data["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}


@pytest.mark.parametrize("api", [Completions(), ChatCompletions()])
def test_several_choices_stream_side_by_side(api: Any) -> None:
    *events, usage, done = events_of(api.events(THREE, SERVED), 2)
    indices = [event["choices"][0]["index"] for event in events]
    assert indices == [0, 1, 2] * (len(events) // 3)
    tokens = [event for event in events if "token" in event]
    assert [event["token"] for event in tokens] == [0] * 3 + [1] * 3
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 3 + ["length"] * 3
    assert (usage["usage"]["completion_tokens"], done) == (6, "data: [DONE]")
    roles = [event for event in events if "token" not in event]
    assert len(roles) == (3 if isinstance(api, ChatCompletions) else 0)


def test_a_chat_of_several_choices_without_tokens_says_why_each_ends() -> None:
    *roles, done = events_of(ChatCompletions().events(ParsedRequest("m", 1, 0, True, choices=2), SERVED), 0)
    assert [(role["choices"][0]["index"], role["choices"][0]["finish_reason"]) for role in roles] == [
        (0, "length"),
        (1, "length"),
    ]
    assert done == "data: [DONE]"


def test_a_problem_is_an_error_object() -> None:
    data = json.loads(ChatCompletions().problem(Problem("text", "kind", "code", "part")))
    assert data == {"error": {"message": "text", "type": "kind", "param": "part", "code": "code"}}


def test_a_conversation_is_a_line_for_each_message() -> None:
    assert conversation([{"content": "hello"}], "input") == "user: hello"
