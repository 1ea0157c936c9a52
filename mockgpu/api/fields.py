"""Known fields of OpenAI's requests: their types, the four forms of prompts, and stop texts.

Values are decoded JSON of any type and depth; no function here recurses into them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mockgpu.api.wire import WORD, BadRequestError, shown

Rule: TypeAlias = tuple[Callable[[Any], bool], str]
"""A test of a value and a text of what is expected. Null always passes, as if the field were missing."""


def _number(minimum: float, maximum: float | None = None) -> Rule:
    limit = sys.float_info.max if maximum is None else maximum

    def is_valid(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value <= limit

    return is_valid, f"a number from {minimum:g}" + ("" if maximum is None else f" to {maximum:g}")


def _whole(minimum: int, maximum: int | None = None) -> Rule:
    expected = f"a whole number from {minimum}" + ("" if maximum is None else f" to {maximum}")
    return lambda value: type(value) is int and value >= minimum and (maximum is None or value <= maximum), expected


def _list_of(kind: type, name: str) -> Rule:
    return lambda value: isinstance(value, list) and all(isinstance(each, kind) for each in value), f"a list of {name}"


_FLAG: Rule = (lambda value: isinstance(value, bool), "true or false")
_TEXT: Rule = (lambda value: isinstance(value, str), "text")
_OBJECT: Rule = (lambda value: isinstance(value, dict), "an object")
_SEED: Rule = (lambda value: type(value) is int, "a whole number")
_CHOICE: Rule = (lambda value: isinstance(value, str | dict), "text or an object")
_STOP: Rule = (
    lambda value: (
        bool(value)
        if isinstance(value, str)
        else isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    ),
    "text or a list of texts, none of them empty",
)

_SAMPLING: dict[str, Rule] = {
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "temperature": _number(0),
    "top_p": _number(0, 1),
    "seed": _SEED,
    "user": _TEXT,
}
_GENERATION: dict[str, Rule] = {
    **_SAMPLING,
    "ignore_eos": _FLAG,
    "logit_bias": _OBJECT,
    "min_tokens": _whole(0),
    "stop": _STOP,
    "stream_options": _OBJECT,
}
COMPLETION: dict[str, Rule] = {
    **_GENERATION,
    "best_of": _whole(1),
    "echo": _FLAG,
    "logprobs": _whole(0),
    "suffix": _TEXT,
}
CHAT: dict[str, Rule] = {
    **_GENERATION,
    "logprobs": _FLAG,
    "parallel_tool_calls": _FLAG,
    "response_format": _OBJECT,
    "tool_choice": _CHOICE,
    "tools": _list_of(dict, "objects"),
    "top_logprobs": _whole(0, 20),
}
RESPONSE: dict[str, Rule] = {
    **_SAMPLING,
    "instructions": _TEXT,
    "metadata": _OBJECT,
    "parallel_tool_calls": _FLAG,
    "previous_response_id": _TEXT,
    "stream_options": _OBJECT,
    "tool_choice": _CHOICE,
    "tools": _list_of(dict, "objects"),
}
EMBEDDING: dict[str, Rule] = {"encoding_format": _TEXT, "seed": _SEED, "stream": _FLAG, "user": _TEXT}


def check(data: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Check the types of the known fields of a request; raises BadRequestError for the first invalid one."""
    for name in data:
        if name in rules:
            value, (is_valid, expected) = data[name], rules[name]
            if value is not None and not is_valid(value):
                raise BadRequestError(f"{name} is {shown(value)}, expected {expected}", name)


def prompts_of(given: object, name: str = "prompt") -> tuple[str, ...]:
    """The prompts in a text, a list of texts, a list of token ids, or a list of such lists.

    Token ids become words, so a prompt has as many tokens as words. Raises BadRequestError for anything else, mixed
    and empty lists included.
    """
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list) and given:
        if all(isinstance(part, str) for part in given):
            return tuple(given)
        if _are_tokens(given):
            return (_words_of(given),)
        if all(isinstance(part, list) and part and _are_tokens(part) for part in given):
            return tuple(_words_of(part) for part in given)
    expected = "text, a list of texts, a list of token numbers, or a list of lists of these"
    raise BadRequestError(f"{name} is {shown(given)}, expected {expected}", name)


def _are_tokens(parts: list[Any]) -> bool:
    return all(type(part) is int and part >= 0 for part in parts)


def _words_of(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


def words_in(prompts: tuple[str, ...]) -> int:
    """Total number of tokens of the prompts."""
    return len(prompts[0].split()) if len(prompts) == 1 else sum([len(prompt.split()) for prompt in prompts])


def last_of(given: object) -> object:
    """The part of a prompt that may carry a tag: the text, or the last item of a list."""
    return given[-1] if isinstance(given, list) and given else given


def stops_at_once(stop: str | list[str] | None, output_tokens: int) -> bool:
    """Whether a text of ``stop`` (already checked) occurs in an answer of ``output_tokens`` tokens.

    The output repeats one word, so a stop text that occurs at all starts in the first word and the answer is empty.
    """
    if not stop:
        return False
    stops = [stop] if isinstance(stop, str) else stop
    length = output_tokens * len(WORD)
    return any(each in WORD * min(output_tokens, len(each) // len(WORD) + 2) for each in stops if len(each) <= length)
