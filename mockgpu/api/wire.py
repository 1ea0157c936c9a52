"""Shared parts of the mock's wire formats, without I/O: parsed requests, the ``Api`` protocol and small bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from mockgpu.api.tags import hex_of
from mockgpu.api.text import clean as clean
from mockgpu.api.text import shown as shown
from mockgpu.gpu.events import State

# One token of common byte-pair vocabularies, so that a client's tokenizer gets the same count.
WORD = " the"
DEFAULT_OUTPUT_TOKENS = 16
JSON = "application/json"
EVENTS = "text/event-stream"
Headers: TypeAlias = Mapping[str, str]
# Beyond the context length of every model; keeps answers well below gigabytes.
_MAX_TOKENS = 1_000_000
_MAX_TOTAL_TOKENS = 1_000_000  # over all choices
MAX_CHOICES = 128


# Called directly: half the cost of json.loads on small bodies is overhead around the scanner.
_scan = json.JSONDecoder().raw_decode


class BadRequestError(ValueError):
    """An invalid request; ``param`` names the invalid part."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str = "bad_request") -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


@dataclass(slots=True)
class ParsedRequest:
    """An inference request, independent of its wire format.

    An empty ``model`` selects the default model. ``prompt`` is the text (or the token ids) for the prefix cache,
    ``finish`` the finish reason, ``details`` data for the wire format only. The request is for ``choices`` answers of
    ``output_tokens`` each.
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
    """Data about a served request for its answer. ``cached_tokens``: -1 without a prefix cache."""

    tag: int
    backend: str
    created: int
    cached_tokens: int = -1


@dataclass(slots=True)
class WholeAnswer:
    """A non-streamed answer."""

    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] | None = None


@dataclass(slots=True)
class Events:
    """A streamed answer: ``opening`` is sent with the first token, ``closing`` after the last one.

    The event of token n is ``before``, the number n + ``first_number``, then ``after`` (``last_after`` for the last
    token). ``empty`` replaces the token events if there are no tokens. Each further choice has an event with the same
    number: ``further`` holds its replacements of ``after`` and ``last_after``.
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
        """The events of token ``number`` (from 0) for all choices."""
        numbered = b"%b%d" % (self.before, number + self.first_number)
        text = numbered + (self.last_after if last else self.after)
        if self.further:
            text += b"".join([numbered + suffixes[last] for suffixes in self.further])
        return self.opening + text if number == 0 else text


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason for an error response; ``code`` is machine-readable."""

    message: str
    kind: str
    code: str | int
    param: str | None = None


class Api(Protocol):
    """One wire format of inference: parses its requests and formats its answers. Stateless."""

    def decode(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The decoded body; raises BadRequestError."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Parts of a body that may carry a tag: its seed and its prompt; None or any other type if it has none."""

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """Parse a decoded request; ``path_model`` is the model in the path. Raises BadRequestError."""

    def prepare(self, request: ParsedRequest) -> Iterable[None]:
        """Do the slow work of ``whole`` in advance, in small steps, so that other requests are served in between."""

    def whole(self, request: ParsedRequest, served: Served) -> WholeAnswer:
        """The answer in one piece."""

    def events(self, request: ParsedRequest, served: Served) -> Events:
        """The answer as events."""

    def problem(self, problem: Problem) -> bytes:
        """The body of an error response."""

    def error_event(self, problem: Problem, number: int) -> bytes:
        """The error event that ends a started stream; ``number`` is that of the next event."""


def read_json(body: bytes) -> dict[str, Any]:
    """The body as a JSON object; an empty body counts as an empty object."""
    if not body:
        return {}
    try:
        text = body.decode()
        data, end = _scan(text) if text[0] == "{" else (None, -1)
        if end != len(text):
            data = json.loads(text)  # surrounding white space or invalid JSON
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequestError(f"the body is a JSON {type(data).__name__}, expected an object")
    return data


def model_of(headers: Mapping[str, str], otherwise: object) -> str:
    """The model of a request: the header ``x-model-id``, else ``otherwise``."""
    model = headers.get("x-model-id") or otherwise
    if not isinstance(model, str):
        raise BadRequestError(f"model is {shown(model)}, expected text", "model")
    return model if model.isascii() else clean(model)


def count_of(headers: Mapping[str, str], name: str, otherwise: Callable[[], int]) -> int:
    """The whole number in a header, else the result of ``otherwise``."""
    text = headers.get(name)
    if text is None:
        return otherwise()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= _MAX_TOKENS):
        raise BadRequestError(f"header {name} is {shown(text)}, expected a whole number from 0 to {_MAX_TOKENS}", name)
    return int(text)


def limit_of(data: Mapping[str, Any], *names: str) -> int | None:
    """The first output token limit in ``names`` that is present and not null, else None."""
    for name in names:
        value = data.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value <= _MAX_TOKENS:
            raise BadRequestError(f"{name} is {shown(value)}, expected a whole number from 0 to {_MAX_TOKENS}", name)
        return value
    return None


def choices_of(data: Mapping[str, Any], output_tokens: int, prompts: int = 1) -> int:
    """Number of requested answers of ``output_tokens`` each: ``n`` for each prompt."""
    number = data.get("n")
    if number is None:
        number = 1
    elif type(number) is not int or not 1 <= number <= MAX_CHOICES:
        raise BadRequestError(f"n is {shown(number)}, expected a whole number from 1 to {MAX_CHOICES}", "n")
    choices: int = number * prompts
    if choices == 1:
        return 1
    name = "n" if prompts == 1 else "prompt"
    if choices > MAX_CHOICES:
        size = f"{number} answers to each of {prompts} prompts"
        raise BadRequestError(f"{name}: {size} are requested, expected at most {MAX_CHOICES} in total", name)
    if choices * output_tokens > _MAX_TOTAL_TOKENS:
        size = f"{choices} answers of {output_tokens} tokens"
        raise BadRequestError(f"{name}: {size} are requested, expected at most {_MAX_TOTAL_TOKENS} in total", name)
    return choices


def id_of(tag: int) -> str:
    """The id of an answer, which contains its tag."""
    return f"sy-{hex_of(tag)}" if tag else "sy-none"


@lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """The text as JSON; cached because answers repeat few names."""
    return json.dumps(text)


def usage(request: ParsedRequest, served: Served) -> str:
    """OpenAI's token usage, as JSON."""
    made = request.output_tokens * request.choices
    total = request.prompt_tokens + made
    cached = (
        f', "prompt_tokens_details": {{"cached_tokens": {served.cached_tokens}}}' if served.cached_tokens >= 0 else ""
    )
    return f'{{"prompt_tokens": {request.prompt_tokens}, "completion_tokens": {made}, "total_tokens": {total}{cached}}}'


def update_done(*, tag: int, backend: str) -> bytes:
    """The response body of an update."""
    return json.dumps({"id": id_of(tag), "object": "update", "backend": backend}).encode()


def error(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error body in OpenAI's form."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def faults(report: list[dict[str, object]]) -> bytes:
    """The body with a backend's faults, from ``mockgpu.faults.decisions.RequestFaults.report``."""
    return json.dumps({"faults": report}).encode()


def health(state: State) -> bytes:
    """The body of ``GET /health``: readiness and load."""
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
