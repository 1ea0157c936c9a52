import json
from typing import Any

import pytest

from mockgpu.api.responses import Responses
from mockgpu.api.tags import hex_of, tag_of
from mockgpu.api.wire import BadRequestError, ParsedRequest, Served

TAG = tag_of(3, 4)
SERVED = Served(TAG, "gpu-1", 5, cached_tokens=2)


def test_input_is_text_or_messages() -> None:
    request = Responses().parse(
        {}, "", {"input": "a b", "instructions": "be brief", "max_output_tokens": 3, "stream": True}
    )
    assert (request.prompt, request.prompt_tokens, request.output_tokens, request.stream) == (
        "be brief\na b",
        4,
        3,
        True,
    )
    request = Responses().parse(
        {}, "", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a b"}]}]}
    )
    assert (request.prompt, request.output_tokens) == ("user: a b", 16)
    with pytest.raises(BadRequestError):
        Responses().parse({}, "", {"input": 5})
    with pytest.raises(BadRequestError):
        Responses().parse({}, "", {"input": "x", "max_output_tokens": "many"})
    with pytest.raises(BadRequestError, match="instructions"):
        Responses().parse({}, "", {"input": "x", "instructions": ["y"]})


@pytest.mark.parametrize(
    "given", ["last", [{"content": "last"}], [{"content": "no"}, {"content": [{"type": "input_text", "text": "last"}]}]]
)
def test_the_tag_is_looked_for_in_the_last_text(given: object) -> None:
    assert Responses().carriers({"seed": 7, "input": given}) == (7, "last")


def test_a_whole_response() -> None:
    data = json.loads(Responses().whole(ParsedRequest("m", 4, 2), SERVED).body)
    assert (data["id"], data["object"], data["status"]) == (f"sy-{hex_of(TAG)}", "response", "completed")
    assert data["incomplete_details"] is None
    assert data["output"][0]["content"][0]["text"] == " the the"
    assert data["usage"]["input_tokens_details"] == {"cached_tokens": 2}
    assert data["usage"]["total_tokens"] == 6


def test_a_response_that_a_limit_ends_is_incomplete() -> None:
    request = Responses().parse({}, "", {"input": "a", "max_output_tokens": 2})
    data = json.loads(Responses().whole(request, SERVED).body)
    assert (data["status"], data["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (data["output"][0]["status"], data["output"][0]["content"][0]["text"]) == ("incomplete", " the the")
    last = Responses().events(request, SERVED).closing.decode().split("\n\n")[-2]
    kind, event = last.split("\n")
    assert (kind, json.loads(event[6:])["response"]["status"]) == ("event: response.incomplete", "incomplete")


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_events_are_numbered_without_a_gap(tokens: int) -> None:
    events = Responses().events(ParsedRequest("m", 4, tokens, True), SERVED)
    sent = b"".join(events.token(number, number == tokens - 1) for number in range(tokens))
    sent += events.closing if tokens else events.empty + events.closing
    decoded: list[dict[str, Any]] = []
    for part in sent.decode().split("\n\n")[:-1]:
        kind, data = part.split("\n")
        decoded.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {decoded[-1]['type']}"
    assert [event["sequence_number"] for event in decoded] == list(range(8 + tokens))
    assert (
        "".join(event["delta"] for event in decoded if event["type"] == "response.output_text.delta") == " the" * tokens
    )
    assert decoded[-1]["type"] == "response.completed"
    assert decoded[-1]["response"]["output"][0]["content"][0]["text"] == " the" * tokens
