"""What all wire forms of the mock share, without any socket: what a request asks for, and small bodies of answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from reprlib import Repr
from typing import Any, Protocol, TypeAlias

from mockgpu.api.tags import hex_of
from mockgpu.gpu.events import State

# One token of common byte-pair vocabularies, so that a client's tokenizer counts as the mock does.
WORD = " the"
DEFAULT_OUTPUT_TOKENS = 16
JSON = "application/json"
EVENTS = "text/event-stream"
Headers: TypeAlias = Mapping[str, str]
# Beyond the context of every model; so that no request can make the mock build gigabytes.
_MOST_TOKENS = 1_000_000
_MOST_TOKENS_OF_ALL = 1_000_000  # where there are several answers
MOST_CHOICES = 128


# Half of what json.loads costs on a body of this size is what it does besides.
_scan = json.JSONDecoder().raw_decode
# Goes no deeper than it is told to, where repr() recurses until the stack is full; ``shown`` cuts the text.
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 4, 200, 200, 200
_SHORT.maxlist = _SHORT.maxdict = 20


class BadRequestError(ValueError):
    """A request that makes no sense; ``param`` names the part at fault."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str = "bad_request") -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


@dataclass(slots=True)
class ParsedRequest:
    """What an inference request asks for, whatever its form.

    An empty ``model`` leaves the choice to the server. ``prompt`` is the text (or the token numbers) that the prefix
    cache goes by, ``finish`` why the answer will end, ``details`` what only the request's own form understands.
    ``choices`` answers are wanted, each of ``output_tokens``.
    """

    model: str
    prompt_tokens: int
    output_tokens: int
    stream: bool = False
    include_usage: bool = False
    prompt: str = ""
    finish: str = "length"
    details: Any = None
    choices: int = 1


@dataclass(slots=True)
class Served:
    """What is known of a request once it is served. ``cached_tokens``: -1 where there is no prefix cache."""

    tag: int
    backend: str
    created: int
    cached_tokens: int = -1


@dataclass(slots=True)
class WholeAnswer:
    """An answer that is not streamed."""

    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] | None = None


@dataclass(slots=True)
class Events:
    """A streamed answer: ``opening`` goes out with the first token, ``closing`` after the last one.

    The event of token n is ``before``, the number n + ``first_number``, ``after``; the last one has an ``after`` of its
    own. ``empty`` takes the place of the tokens where there are none. Further choices each have an event with the same
    number: ``further`` holds, for each, what stands there in place of ``after`` and of ``last_after``.
    """

    before: bytes
    after: bytes
    last_after: bytes
    closing: bytes
    opening: bytes = b""
    empty: bytes = b""
    first_number: int = 0
    further: tuple[tuple[bytes, bytes], ...] = ()

    def token(self, number: int, last: bool) -> bytes:
        """The event of the token ``number``, counted from 0; those of all choices."""
        numbered = b"%b%d" % (self.before, number + self.first_number)
        text = numbered + (self.last_after if last else self.after)
        if self.further:
            text += b"".join([numbered + both[last] for both in self.further])
        return self.opening + text if number == 0 else text


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is not answered as asked; ``code`` is for machines."""

    message: str
    kind: str
    code: str | int
    param: str | None = None


class Api(Protocol):
    """One wire form of inference: how its requests are read and its answers written. It keeps no state."""

    def load(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The body, decoded; raises BadRequestError."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Where a body may carry a tag: its seed, and the end of its prompt. None, or anything, if it has none."""

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> ParsedRequest:
        """What is asked for; ``named`` is the model that the path names. Raises BadRequestError."""

    def build(self, ask: ParsedRequest) -> Iterable[None]:
        """Make beforehand what takes long in ``whole``, a little at each step, so that others are served in between."""

    def whole(self, ask: ParsedRequest, served: Served) -> WholeAnswer:
        """The answer in one piece."""

    def events(self, ask: ParsedRequest, served: Served) -> Events:
        """The answer as events."""

    def problem(self, problem: Problem) -> bytes:
        """The body of an answer that says what is wrong."""

    def broken(self, problem: Problem, number: int) -> bytes:
        """The end of a stream that says so after its head; the next event would be ``number``."""


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object; no body at all counts as an empty one."""
    if not body:
        return {}
    try:
        text = body.decode()
        data, end = _scan(text) if text[0] == "{" else (None, -1)
        if end != len(text):
            data = json.loads(text)  # there is white space around it, or it is not what it should be
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequestError(f"the body is a JSON {type(data).__name__}, expected an object")
    return data


def model_of(headers: Mapping[str, str], otherwise: object) -> str:
    """The model that a request names; the header wins."""
    model = headers.get("x-model-id") or otherwise
    if not isinstance(model, str):
        raise BadRequestError(f"model is {shown(model)}, expected text", "model")
    return model if model.isascii() else clean(model)


def clean(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can name and no encoding can write."""
    return text.encode(errors="replace").decode()


def count_of(headers: Mapping[str, str], name: str, otherwise: Callable[[], int]) -> int:
    """The whole number in a header, else what ``otherwise`` says."""
    text = headers.get(name)
    if text is None:
        return otherwise()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= _MOST_TOKENS):
        raise BadRequestError(f"header {name} is {shown(text)}, expected a whole number from 0 to {_MOST_TOKENS}", name)
    return int(text)


def limit_of(data: Mapping[str, Any], *names: str) -> int | None:
    """The first of these limits of output tokens that is given (null is not), None if none is."""
    for name in names:
        value = data.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
            raise BadRequestError(f"{name} is {shown(value)}, expected a whole number from 0 to {_MOST_TOKENS}", name)
        return value
    return None


def choices_of(data: Mapping[str, Any], output_tokens: int, prompts: int = 1) -> int:
    """How many answers of ``output_tokens`` each are wanted: as many as ``n`` says to each of the prompts."""
    number = data.get("n")
    if number is None:
        number = 1
    elif type(number) is not int or not 1 <= number <= MOST_CHOICES:
        raise BadRequestError(f"n is {shown(number)}, expected a whole number from 1 to {MOST_CHOICES}", "n")
    choices: int = number * prompts
    if choices == 1:
        return 1
    name = "n" if prompts == 1 else "prompt"
    if choices > MOST_CHOICES:
        seen = f"{number} answers to each of {prompts} prompts"
        raise BadRequestError(f"{name}: {seen} are asked for, expected at most {MOST_CHOICES} in all", name)
    if choices * output_tokens > _MOST_TOKENS_OF_ALL:
        seen = f"{choices} answers of {output_tokens} tokens"
        raise BadRequestError(f"{name}: {seen} are asked for, expected at most {_MOST_TOKENS_OF_ALL} in all", name)
    return choices


def shown(value: object) -> str:
    """A value for a message, not too long, however deeply nested, and without half surrogates."""
    text = _SHORT.repr(value)
    return clean(text if len(text) <= 80 else text[:77] + "...")


def id_of(tag: int) -> str:
    """The id of an answer, by which its client knows it."""
    return f"sy-{hex_of(tag)}" if tag else "sy-none"


@lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """The text as JSON; the names in answers are few and come again and again."""
    return json.dumps(text)


def usage(ask: ParsedRequest, served: Served) -> str:
    """OpenAI's account of tokens, as JSON."""
    made = ask.output_tokens * ask.choices
    total = ask.prompt_tokens + made
    cached = (
        f', "prompt_tokens_details": {{"cached_tokens": {served.cached_tokens}}}' if served.cached_tokens >= 0 else ""
    )
    return f'{{"prompt_tokens": {ask.prompt_tokens}, "completion_tokens": {made}, "total_tokens": {total}{cached}}}'


def update_done(*, tag: int, backend: str) -> bytes:
    """The body of an answer to an update."""
    return json.dumps({"id": id_of(tag), "object": "update", "backend": backend}).encode()


def error(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error body in OpenAI's form."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def faults(report: list[dict[str, object]]) -> bytes:
    """What ``mockgpu.faults.decisions.RequestFaults.report`` says of a backend's faults."""
    return json.dumps({"faults": report}).encode()


def health(state: State) -> bytes:
    """What a backend reports of itself."""
    return json.dumps(
        {
            "ready": state.ready,
            "memory_total_mb": state.memory_total_mb,
            "memory_used_mb": state.memory_used_mb,
            "memory_evictable_mb": state.memory_evictable_mb,
            "queue_depth": state.queue_depth,
            "running": state.running,
            "pending_tokens": state.pending_tokens,
            "models": state.models,
        }
    ).encode()
