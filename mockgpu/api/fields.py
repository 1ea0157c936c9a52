"""Well-known fields of OpenAI's requests: the types that they must have, prompts in their four forms, and stops.

Values are JSON as it was decoded, however odd or deeply nested: nothing here recurses into it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mockgpu.api.wire import WORD, BadRequestError, shown

Rule: TypeAlias = tuple[Callable[[Any], bool], str]
"""Whether a value is fine, and what is expected in words. Null always is: it stands for a field left out."""


def _number(least: float, most: float | None = None) -> Rule:
    limit = sys.float_info.max if most is None else most

    def fine(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= limit

    return fine, f"a number from {least:g}" + ("" if most is None else f" to {most:g}")


def _whole(least: int, most: int | None = None) -> Rule:
    expected = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    return lambda value: type(value) is int and value >= least and (most is None or value <= most), expected


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
    """See that the well-known fields of a request have the right types; raises BadRequestError that names the first."""
    for name in data:
        if name in rules:
            value, (fine, expected) = data[name], rules[name]
            if value is not None and not fine(value):
                raise BadRequestError(f"{name} is {shown(value)}, expected {expected}", name)


def prompts_of(given: object, name: str = "prompt") -> tuple[str, ...]:
    """The prompts in a text, a list of texts, a list of token numbers, or a list of lists of these.

    Token numbers become words, so a prompt has as many tokens as words. Raises BadRequestError for anything else, a
    mixed or an empty list too.
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
    """Tokens of several prompts together."""
    return len(prompts[0].split()) if len(prompts) == 1 else sum([len(prompt.split()) for prompt in prompts])


def last_of(given: object) -> object:
    """Where a prompt may carry a tag: the text, or the last one of a list."""
    return given[-1] if isinstance(given, list) and given else given


def stops_at_once(stop: str | list[str] | None, output_tokens: int) -> bool:
    """Whether one of the texts of ``stop``, which ``check`` has seen, occurs in an answer of so many tokens.

    The mock's words are all alike: what occurs in the answer at all begins in its first word, so nothing is left of it.
    """
    if not stop:
        return False
    stops = [stop] if isinstance(stop, str) else stop
    length = output_tokens * len(WORD)
    return any(each in WORD * min(output_tokens, len(each) // len(WORD) + 2) for each in stops if len(each) <= length)
