"""HTTP form of requests, and the tag in their answers."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest

from harness.load.wire import WireRequest, echo_of, forms_of, key_of, model_of, request_of, tag_of
from harness.scenario.arrivals import Arrival, draw, key_name, session_name
from harness.scenario.model import Echo, Keys, Kind, Load, Method, Stream
from harness.scenario.request_mix import Content, Fixed, Sessions
from mockgpu.api.completions import ChatCompletions, Completions
from mockgpu.api.kserve import Infer
from mockgpu.api.tags import Carrier, Tags
from mockgpu.api.wire import Api

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
        ("header:x-model-id", "chat", {"method": Method.GET}, "chat has POST /v1/chat/completions only"),
        ("header:x-model-id", "kserve", {"kind": Kind.UPDATE}, "kserve has POST infer only"),
        ("header:x-model-id", "kserve", {"streams": True}, "kserve has no streams"),
        ("json:model", "kserve", {}, "names the model in its path"),
        ("prompt-prefix:8", "kserve", {}, "no field `prompt`"),
        ("prompt-prefix:8", "chat", {}, "no field `prompt`"),
        ("header:x-model-id", "grpc", {}, "protocol 'grpc'"),
        ("header:bad name", "http", {}, "key carrier"),
        ("json:user", "http", {"method": Method.GET}, "GET has no body"),
        ("prompt-prefix:8", "http", {"method": Method.GET}, "GET has no body"),
        ("session", "http", {"method": Method.GET, "kind": Kind.UPDATE}, "an update is a POST"),
    ],
)
def test_impossible_requests_are_refused(carrier: str, protocol: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(carrier, protocol, **changes)


# --- content ----------------------------------------------------------------------------------------------


def test_urgency_and_session_travel_in_headers() -> None:
    headers = dict(made(urgency="critical", session=4).headers)
    assert (headers["x-urgency"], headers["x-session-id"]) == ("critical", session_name(SEED, 4))
    assert not {"x-urgency", "x-session-id"} & set(dict(made().headers))
    assert dict(made("session", session=4).headers)["x-session-id"] == KEY  # the key, where the session is the key
    assert dict(made(method=Method.GET, urgency="high").headers)["x-urgency"] == "high"


@pytest.mark.parametrize("protocol", ["http", "openai", "chat"])
def test_a_stream_requests_its_usage(protocol: str) -> None:
    body = body_of(made(protocol=protocol, streams=True))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "stream" not in body_of(made(protocol=protocol))


@pytest.mark.parametrize("protocol", ["http", "openai", "chat", "kserve"])
def test_a_body_is_padded_to_its_size(protocol: str) -> None:
    bare = body_of(made(protocol=protocol))
    for size in (1000, 3_000_000):
        request = made(protocol=protocol, payload_bytes=size)
        padded = body_of(request)
        assert len(request.body) == size
        assert set(padded.pop("padding")) == {"x"}
        assert padded == bare
    whole = len(made(protocol=protocol).body)
    assert made(protocol=protocol, payload_bytes=whole) == made(protocol=protocol)
    assert len(made(protocol=protocol, payload_bytes=whole + 1).body) >= whole + 1


def test_a_name_of_its_own_is_the_key() -> None:
    request = made("json:model", key_text="meta/llama 3")
    assert dict(request.headers)["x-model-id"] == body_of(request)["model"] == "meta/llama 3"
    assert made("json:model", key_text="meta/llama 3", method=Method.GET).path == "/v1/models/meta/llama%203/answer"
    one = dataclasses.replace(ARRIVAL, key_text="llama")
    assert key_of(one, SEED) == model_of(one, "json:model", SEED) == "llama"
    assert key_of(dataclasses.replace(one, key=-1), SEED) == ""


def test_one_arrival_of_each_form() -> None:
    content = Content(update_share=0.3, streaming_share=0.3)
    arrivals = draw(Load((Stream("one", 0.0, 9.0, 200, keys=Keys(3), content=content), Stream("two", 0.0, 9.0, 9))), 1)
    forms = [(a.stream, a.kind, a.streams, a.key >= 0) for a in forms_of(arrivals)]
    assert len(forms) == len(set(forms)) == 4
    assert set(forms) == {(a.stream, a.kind, a.streams, a.key >= 0) for a in arrivals}


# --- sessions and blocks ------------------------------------------------------------------------------------


def conversation() -> list[Arrival]:
    """Six turns of one session."""
    content = Content(prompt=Fixed(20), output=Fixed(7), sessions=Sessions(1, 6))
    return [a for a in draw(Load((Stream("talk", 0.0, 1.0, 7, content=content),)), 1) if a.session == 1]


def test_the_prompt_of_a_turn_begins_with_all_before_it() -> None:
    turns = conversation()
    requests = [request_of(turn, "header:x-model-id", SEED, NONCE, "http") for turn in turns]
    prompts = [str(body_of(request)["prompt"]) for request in requests]
    assert len(prompts) == 6
    for turn, request, prompt in zip(turns, requests, prompts, strict=True):
        assert len(prompt.split()) == turn.prompt_tokens == 20 + 27 * turn.turn
        assert prompt.endswith(f" #sy-{request.hex}")
        assert prompt.startswith(f"{session_name(SEED, 1)}.0 ")
    for one, following in itertools.pairwise(prompts):
        assert following.startswith(one[: one.index("#sy-")])
    other = dataclasses.replace(turns[3], session=2)
    words = body_of(request_of(other, "header:x-model-id", SEED, NONCE, "http"))["prompt"].split()
    assert words[0] != prompts[3].split()[0]


def test_a_session_repeats_its_history() -> None:
    turns = [body_of(request_of(turn, "header:x-model-id", SEED, NONCE, "chat"))["messages"] for turn in conversation()]
    for number, messages in enumerate(turns):
        assert [message["role"] for message in messages] == ["user", "assistant"] * number + ["user"]
        lengths = [len(message["content"].split()) for message in messages]
        assert lengths == [20, 7] * number + [20]
    for one, following in itertools.pairwise(turns):
        assert following[: len(one) - 1] == one[:-1]
        text = one[-1]["content"]
        assert following[len(one) - 1]["content"].startswith(text[: text.index("#sy-")])


def test_a_turn_that_adds_nothing_or_one_word_is_its_tag() -> None:
    for added in (0, 1):
        prompt = body_of(made(session=3, history=(5, 2), prompt_tokens=7 + added))["prompt"]
        assert len(prompt.split()) == 8
        assert prompt.endswith(f" #sy-{HEX}")


def test_equal_blocks_are_equal_text() -> None:
    one = body_of(made(blocks=(1, 2, 3), prompt_tokens=1300))["prompt"].split()
    other = body_of(made(blocks=(1, 2, 4), prompt_tokens=1400))["prompt"].split()
    assert (len(one), len(other)) == (1300, 1400)
    assert one[:1024] == other[:1024]
    assert one[1024] != other[1024]
    assert one[0] != one[512]
    assert (one[-1], other[-1]) == (f"#sy-{HEX}",) * 2
    assert len(body_of(made(blocks=(1,), prompt_tokens=600))["prompt"].split()) == 600
    assert body_of(made("prompt-prefix:12", blocks=(1,), prompt_tokens=600))["prompt"].startswith(KEY)


# --- chat and KServe ----------------------------------------------------------------------------------------


def test_a_chat_carries_its_tag_everywhere() -> None:
    request = made(protocol="chat")
    headers, body = dict(request.headers), body_of(request)
    assert (request.method, request.path, request.name) == ("POST", "/v1/chat/completions", "/v1/chat/completions")
    assert (headers["x-mock-tag"], headers["x-request-id"], body["seed"]) == (HEX, f"sy-{HEX}", TAG)
    assert (body["model"], body["max_completion_tokens"]) == (KEY, 4)
    assert body["messages"] == [{"role": "user", "content": f"{' '.join(['word'] * 7)} #sy-{HEX}"}]
    assert body_of(made("json:user", protocol="chat"))["user"] == KEY


def test_kserve_names_the_model_in_its_path() -> None:
    request = made(protocol="kserve")
    headers, body = dict(request.headers), body_of(request)
    assert (request.path, request.name) == (f"/v2/models/{KEY}/infer", "/v2/models/{model}/infer")
    assert (headers["x-model-id"], headers["x-mock-tag"]) == (KEY, HEX)
    assert (body["id"], body["parameters"]) == (f"sy-{HEX}", {"seed": TAG})
    prompt, limit = body["inputs"]
    assert (prompt["datatype"], prompt["shape"]) == ("BYTES", [1])
    assert prompt["data"] == [f"{' '.join(['word'] * 7)} #sy-{HEX}"]
    assert (limit["name"], limit["data"]) == ("max_tokens", [4])
    assert body_of(made("json:parameters.user", protocol="kserve"))["parameters"] == {"seed": TAG, "user": KEY}


@pytest.mark.parametrize(
    ("protocol", "api", "named"),
    [("http", Completions(), ""), ("chat", ChatCompletions(), ""), ("kserve", Infer(), f"{KEY}/infer")],
)
def test_the_mock_reads_tag_sizes_and_model(protocol: str, api: Api, named: str) -> None:
    for extra in ({}, {"payload_bytes": 5000}, {"session": 2, "history": (30, 4), "prompt_tokens": 44}):
        request = made(protocol=protocol, **extra)
        headers = dict(request.headers)
        data = api.decode(headers, request.body)
        tags = Tags(headers)
        tags.read_body(*api.carriers(data))
        assert (tags.tag, tags.carriers) == (TAG, Carrier.HEADER | Carrier.REQUEST_ID | Carrier.SEED | Carrier.PROMPT)
        parsed = api.parse(headers, named, data)
        assert (parsed.model, parsed.prompt_tokens, parsed.output_tokens) == (KEY, extra.get("prompt_tokens", 8), 4)
        unaided = {name: value for name, value in headers.items() if not name.startswith("x-")}
        bare = api.parse(unaided, named, data)
        assert (bare.model, bare.output_tokens) == (KEY, 4)


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
