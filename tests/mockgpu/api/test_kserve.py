import json
from typing import Any

import pytest

from mockgpu.api.kserve import (
    Infer,
    ModelPath,
    index,
    model_config,
    model_metadata,
    model_stats,
    no_room,
    parse_model_path,
    server_metadata,
)
from mockgpu.api.metrics import Sums
from mockgpu.api.tags import hex_of, tag_of
from mockgpu.api.tensors import HEADER_LENGTH, packed_text
from mockgpu.api.wire import BadRequestError, ParsedRequest, Problem, Served

TAG = tag_of(3, 4)
SERVED = Served(TAG, "gpu-1", 5)
TEXT = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["one two three"]}
LIMIT = {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [4]}


def read(
    headers: dict[str, str] | None = None, named: str = "m/infer", raw: bytes = b"", **fields: Any
) -> ParsedRequest:
    head = json.dumps({"inputs": [TEXT]} | fields).encode()
    headers = headers or {}
    if raw:
        headers |= {HEADER_LENGTH: str(len(head))}
    api = Infer()
    return api.parse(headers, named, api.decode(headers, head + raw))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("m", ModelPath("m", "", "")),
        ("m/infer", ModelPath("m", "", "infer")),
        ("m/versions/1/ready", ModelPath("m", "1", "ready")),
        ("org/m/versions/2", ModelPath("org/m", "2", "")),
        ("org/m/config", ModelPath("org/m", "", "config")),
        ("stats", ModelPath("stats", "", "")),
        ("/stats", ModelPath("", "", "stats")),
        ("m/else", ModelPath("m/else", "", "")),
    ],
)
def test_paths_below_models(path: str, place: ModelPath) -> None:
    assert parse_model_path(path) == place


@pytest.mark.parametrize(
    "change",
    [
        {"datatype": "FP32", "data": [4.0]},
        {"datatype": "BYTES", "data": ["4"]},
        {"datatype": "BOOL", "data": [True]},
        {"shape": [2], "data": [4, 5]},
        {"data": [-1]},
        {"shape": [0], "data": []},
    ],
)
def test_a_limit_is_one_whole_number(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match=r"max_tokens.*expected"):
        read(inputs=[TEXT, LIMIT | change])


def test_an_inference_is_read() -> None:
    request = read(inputs=[TEXT, LIMIT])
    assert (request.model, request.prompt_tokens, request.output_tokens, request.prompt) == ("m", 3, 4, "one two three")
    assert read(parameters={"max_tokens": 2}).output_tokens == 2
    assert read().output_tokens == 16
    request = read({"x-model-id": "other", "x-prompt-tokens": "50"})
    assert (request.model, request.prompt_tokens) == ("other", 50)


def test_without_text_every_element_is_a_token() -> None:
    numbers = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
    assert read(inputs=[numbers, LIMIT]).prompt_tokens == 6


def test_tags_are_in_the_parameters_and_at_the_end_of_the_text() -> None:
    api = Infer()
    data = api.decode({}, json.dumps({"inputs": [TEXT], "parameters": {"seed": 9}}).encode())
    assert api.carriers(data) == (9, "one two three")
    assert api.carriers(api.decode({}, b"{}")) == (None, None)
    assert api.carriers(api.decode({}, b'{"parameters": 5, "inputs": [7]}')) == (None, None)


def test_only_version_1_is_there() -> None:
    assert read(named="m/versions/1/infer").model == "m"
    with pytest.raises(BadRequestError) as error:
        read(named="m/versions/2/infer")
    assert error.value.status == 404


def test_an_answer_in_json() -> None:
    whole = Infer().whole(read(inputs=[TEXT, LIMIT], id="mine"), SERVED)
    data = json.loads(whole.body)
    assert (data["model_name"], data["model_version"], data["id"]) == ("m", "1", "mine")
    assert data["outputs"] == [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [" the the the the"]}]
    assert json.loads(Infer().whole(read(), SERVED).body)["id"] == f"sy-{hex_of(TAG)}"


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": [{"name": "text_output", "parameters": {"binary_data": True}}]},
        {"parameters": {"binary_data_output": True}},
        {"parameters": {"binary_data_output": True}, "outputs": [{"name": "text_output"}]},
    ],
)
def test_a_binary_answer(fields: dict[str, Any]) -> None:
    text = {"name": "t", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 7}}
    whole = Infer().whole(read(raw=packed_text("a b"), inputs=[text, LIMIT], **fields), SERVED)
    assert whole.headers is not None
    length = int(whole.headers[HEADER_LENGTH])
    head, raw = json.loads(whole.body[:length]), whole.body[length:]
    assert head["outputs"][0]["parameters"] == {"binary_data_size": len(raw)}
    assert raw == packed_text(" the the the the")
    assert whole.content_type == "application/octet-stream"


def test_an_output_says_for_itself_that_it_is_json() -> None:
    outputs = [{"name": "text_output", "parameters": {"binary_data": False}}]
    request = read(parameters={"binary_data_output": True}, outputs=outputs)
    assert Infer().whole(request, SERVED).headers is None


@pytest.mark.parametrize("outputs", [5, [{"name": "logits"}], ["text_output"], [{}]])
def test_other_outputs_are_refused(outputs: object) -> None:
    with pytest.raises(BadRequestError):
        read(outputs=outputs)


def test_errors_are_text_alone() -> None:
    assert json.loads(Infer().problem(Problem("text", "kind", "code"))) == {"error": "text"}
    assert no_room("x").startswith("load failed for model 'x': version 1 is at UNAVAILABLE state: Internal: ")


def test_what_is_said_of_models() -> None:
    assert "binary_tensor_data" in json.loads(server_metadata("gpu-1", "0"))["extensions"]
    assert json.loads(model_metadata("m"))["versions"] == ["1"]
    assert json.loads(model_config("m", 9))["parameters"]["max_running"]["string_value"] == "9"
    sums = Sums(answered=2, failed=1, whole_s=0.5, failed_s=0.25, queue_s=0.125, service_s=0.375)
    (stats,) = json.loads(model_stats("m", sums))["model_stats"]
    assert stats["inference_stats"]["success"] == {"count": 2, "ns": 500_000_000}
    assert stats["inference_stats"]["fail"] == {"count": 1, "ns": 250_000_000}
    assert stats["inference_stats"]["compute_infer"]["ns"] == 375_000_000


def test_the_index_of_the_repository() -> None:
    states = {"a": "ready", "b": "loading", "c": "unavailable"}
    assert json.loads(index(states, only_ready=False)) == [
        {"name": "a", "version": "1", "state": "READY", "reason": ""},
        {"name": "b", "version": "1", "state": "LOADING", "reason": ""},
        {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]
    assert [entry["name"] for entry in json.loads(index(states, only_ready=True))] == ["a"]
