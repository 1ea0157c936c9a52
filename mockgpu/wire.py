"""What travels over HTTP: what a request asks for, and the bodies of answers, without any socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mockgpu.events import State
from mockgpu.tags import hex_of

# One token of common byte-pair vocabularies, so that a client's tokenizer counts as the mock does.
WORD = " the"
DEFAULT_OUTPUT_TOKENS = 16


class BadRequestError(ValueError):
    """A request that makes no sense; ``param`` names the part at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Ask:
    """What an inference request asks for; an empty ``model`` leaves the choice to the server."""

    model: str
    prompt_tokens: int
    output_tokens: int
    stream: bool = False
    include_usage: bool = False

    def with_model(self, model: str) -> Ask:
        """The same for another model."""
        return replace(self, model=model)


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object; no body at all counts as an empty one."""
    if not body:
        return {}
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequestError(f"the body is a JSON {type(data).__name__}, expected an object")
    return data


def read_completion(headers: Mapping[str, str], body: Mapping[str, Any]) -> Ask:
    """An OpenAI completion request. Headers win over the body."""
    output_tokens = body.get("max_tokens", DEFAULT_OUTPUT_TOKENS)
    if type(output_tokens) is not int or output_tokens < 0:
        raise BadRequestError(f"max_tokens is {output_tokens!r}, expected a whole number from 0", "max_tokens")
    options = body.get("stream_options")
    return Ask(
        model=_model_of(headers, body.get("model", "")),
        prompt_tokens=_count_of(headers, "x-prompt-tokens", lambda: _words_in(body.get("prompt", ""))),
        output_tokens=output_tokens,
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def read_answer_get(headers: Mapping[str, str], model: str) -> Ask:
    """A request for an answer by GET, which has only headers and the model in its path."""
    return Ask(
        model=_model_of(headers, model),
        prompt_tokens=_count_of(headers, "x-prompt-tokens", lambda: 0),
        output_tokens=_count_of(headers, "x-output-tokens", lambda: DEFAULT_OUTPUT_TOKENS),
    )


def _model_of(headers: Mapping[str, str], otherwise: object) -> str:
    model = headers.get("x-model-id") or otherwise
    if not isinstance(model, str):
        raise BadRequestError(f"model is {model!r}, expected text", "model")
    # JSON can name half a surrogate pair, which no encoding can write.
    return model.encode(errors="replace").decode()


def _count_of(headers: Mapping[str, str], name: str, otherwise: Callable[[], int]) -> int:
    text = headers.get(name)
    if text is None:
        return otherwise()
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadRequestError(f"header {name} is {text!r}, expected a whole number from 0", name)
    return int(text)


def _words_in(prompt: object) -> int:
    """Tokens of a prompt: words of a text, or the length of a list of token numbers; lists of prompts add up."""
    if isinstance(prompt, str):
        return len(prompt.split())
    if isinstance(prompt, list):
        return sum(1 if isinstance(part, int) else _words_in(part) for part in prompt)
    raise BadRequestError(f"prompt is {prompt!r}, expected text", "prompt")


def id_of(tag: int) -> str:
    """The id of an answer, by which its client knows it."""
    return f"sy-{hex_of(tag)}" if tag else "sy-none"


def completion(ask: Ask, *, tag: int, backend: str, created: int) -> bytes:
    """The body of a whole completion."""
    return json.dumps(
        {
            "id": id_of(tag),
            "object": "text_completion",
            "created": created,
            "model": ask.model,
            "backend": backend,
            "choices": [{"index": 0, "text": WORD * ask.output_tokens, "logprobs": None, "finish_reason": "length"}],
            "usage": _usage(ask),
        }
    ).encode()


@dataclass(frozen=True, slots=True)
class Chunks:
    """The events of a streamed completion; ``tail`` ends it, usage included where it was asked for."""

    token: bytes
    last_token: bytes
    tail: bytes


def chunks(ask: Ask, *, tag: int, backend: str, created: int) -> Chunks:
    """The three events that a streamed completion is made of: all tokens but the last look the same."""

    def event(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        data: dict[str, Any] = {
            "id": id_of(tag),
            "object": "text_completion",
            "created": created,
            "model": ask.model,
            "backend": backend,
            "choices": choices,
        }
        if usage is not None:
            data["usage"] = usage
        return b"data: " + json.dumps(data).encode() + b"\n\n"

    def token(finish_reason: str | None) -> bytes:
        return event([{"index": 0, "text": WORD, "logprobs": None, "finish_reason": finish_reason}])

    tail = event([], _usage(ask)) if ask.include_usage else b""
    return Chunks(token(None), token("length"), tail + b"data: [DONE]\n\n")


def _usage(ask: Ask) -> dict[str, int]:
    return {
        "prompt_tokens": ask.prompt_tokens,
        "completion_tokens": ask.output_tokens,
        "total_tokens": ask.prompt_tokens + ask.output_tokens,
    }


def update_done(*, tag: int, backend: str) -> bytes:
    """The body of an answer to an update."""
    return json.dumps({"id": id_of(tag), "object": "update", "backend": backend}).encode()


def error(message: str, kind: str, code: str, param: str | None = None) -> bytes:
    """An error body in OpenAI's form."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def faults(report: list[dict[str, object]]) -> bytes:
    """What ``mockgpu.faults.RequestFaults.report`` says of a backend's faults."""
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


def model_list(names: list[str], created: int) -> bytes:
    """The body of ``GET /v1/models``."""
    data = [{"id": name, "object": "model", "created": created, "owned_by": "mockgpu"} for name in names]
    return json.dumps({"object": "list", "data": data}).encode()


def metrics(state: State, model: str) -> bytes:
    """Gauges in Prometheus' text format, under vLLM's names."""
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    label = f'{{model_name="{escaped}",engine="0"}}'
    return (
        "# HELP vllm:num_requests_running Number of requests in service.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{label} {state.running}\n"
        "# HELP vllm:num_requests_waiting Number of requests waiting for a slot or for a model.\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        f"vllm:num_requests_waiting{label} {state.queue_depth}\n"
    ).encode()
