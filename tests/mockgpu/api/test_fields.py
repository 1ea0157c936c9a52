import json
from collections.abc import Mapping
from typing import Any

import pytest

from mockgpu.api import fields
from mockgpu.api.embeddings import Embeddings
from mockgpu.api.wire import WORD, BadRequestError


def nested(depth: int) -> Any:
    """A list nested ``depth`` times, decoded from JSON."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a b", ("a b",)),
        ("", ("",)),
        (["a b", "c"], ("a b", "c")),
        ([5, 6], ("5 6",)),
        ([[5, 6], [7]], ("5 6", "7")),
    ],
)
def test_prompts_have_four_forms(given: object, prompts: tuple[str, ...]) -> None:
    assert fields.prompts_of(given) == prompts


@pytest.mark.parametrize(
    "given",
    [None, 5, {}, [], [[]], [True], [1.5], [-1], ["a", 1], ["a", [1]], [[1], "a"], [[[1]]], [["a"]], [1, None], [{}]],
)
def test_other_prompts_are_refused(given: object) -> None:
    with pytest.raises(BadRequestError, match="expected text, a list of texts, a list of token numbers") as error:
        fields.prompts_of(given, "input")
    assert error.value.param == "input"


@pytest.mark.parametrize("depth", [3, 500, 990, 5_000])
def test_no_depth_is_too_deep(depth: int) -> None:
    for given in (nested(depth), {"a": nested(depth)}, ["a", nested(depth)]):
        with pytest.raises(BadRequestError):
            fields.prompts_of(given)
        with pytest.raises(BadRequestError):
            fields.check({"stop": given}, fields.COMPLETION)
        with pytest.raises(BadRequestError):
            Embeddings().parse({}, "", {"input": given})


RULES = {"completion": fields.COMPLETION, "chat": fields.CHAT, "response": fields.RESPONSE}


@pytest.mark.parametrize("form", RULES)
def test_null_and_what_is_not_known_is_always_fine(form: str) -> None:
    rules = RULES[form]
    fields.check(dict.fromkeys(rules), rules)
    fields.check({"future": [{}]}, rules)


@pytest.mark.parametrize(
    ("form", "name", "fine", "wrong"),
    [
        ("completion", "temperature", [0, 1.5, 2], [-0.1, True, "1", [], float("nan"), float("inf"), 10**400]),
        ("chat", "top_p", [0, 0.5, 1], [1.1, -1, "x", {}]),
        ("chat", "presence_penalty", [-2, 2], [-2.1, 3]),
        ("completion", "seed", [-5, 10**30], [1.0, True, "5"]),
        ("completion", "stop", ["a", ["a", "b"], []], ["", [""], [5], 5, {}]),
        ("completion", "echo", [True], [1, "yes"]),
        ("completion", "logprobs", [0, 5], [True, -1, 1.0]),
        ("chat", "logprobs", [False], [5]),
        ("chat", "top_logprobs", [0, 20], [21, True]),
        ("chat", "min_tokens", [0, 5], [-1, 2.0]),
        ("chat", "tools", [[], [{"type": "function"}]], [{}, ["f"]]),
        ("chat", "tool_choice", ["required", {"type": "function"}], [True, []]),
        ("chat", "response_format", [{"type": "text"}], ["text"]),
        ("completion", "stream_options", [{}], [True, [], "x"]),
        ("completion", "logit_bias", [{"5": 1}], [[1]]),
        ("completion", "user", ["me"], [5]),
        ("response", "metadata", [{}], ["x"]),
        ("response", "instructions", ["be brief"], [["be brief"]]),
    ],
)
def test_well_known_fields_have_types(form: str, name: str, fine: list[Any], wrong: list[Any]) -> None:
    rules: Mapping[str, fields.Rule] = RULES[form]
    for value in fine:
        fields.check({name: value}, rules)
    for value in wrong:
        with pytest.raises(BadRequestError, match=f"{name} is .*, expected ") as error:
            fields.check({name: value}, rules)
        assert error.value.param == name
        assert "\n" not in str(error.value)


def test_a_stop_is_found_where_it_occurs_in_the_answer() -> None:
    for stop in ("t", " the", "e t", "the the", " the the the", WORD * 4 + " ", "x", "\n\n"):
        for tokens in range(6):
            text = WORD * tokens
            assert fields.stops_at_once(stop, tokens) == (stop in text), (stop, tokens)
            if stop in text:
                assert text.index(stop) < len(WORD), "nothing but a part of the first word is before it"
    assert fields.stops_at_once(["x", "h"], 1) and not fields.stops_at_once(None, 5) and not fields.stops_at_once([], 5)


def test_a_message_about_a_large_value_is_short() -> None:
    for value in ({"a" * 5_000: 1}, ["x"] * 5_000, 10**4_000, "y" * 10**6, json.loads("[" * 500 + "]" * 500)):
        with pytest.raises(BadRequestError) as error:
            fields.check({"stop": [value, 5], "echo": value}, fields.COMPLETION)
        assert len(str(error.value)) < 150
