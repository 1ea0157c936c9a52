"""OpenAI's completions and chat completions, and the same service by GET, as bytes.

The mock's own words are all alike, one token each. Every event of a stream also bears ``token``, its number in the
answer, and every answer ``backend``: so a lost, doubled or foreign part betrays itself; clients pass over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mockgpu import wire
from mockgpu.wire import Ask, BadRequestError, Events, Problem, Served, Whole, quoted


class OpenAi:
    """What all of OpenAI's forms have in common."""

    def load(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The body as a JSON object."""
        return wire.read_json(body)

    def problem(self, problem: Problem) -> bytes:
        """An error object as OpenAI has it."""
        return wire.error(problem.message, problem.kind, problem.code, problem.param)


def stream_options(data: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stream is asked for, and whether with usage."""
    stream = data.get("stream")
    if not (stream is None or isinstance(stream, bool)):
        raise BadRequestError(f"stream is {wire.shown(stream)}, expected true or false", "stream")
    options = data.get("stream_options")
    return stream is True, isinstance(options, dict) and options.get("include_usage") is True


def _head(ask: Ask, served: Served, kind: str) -> str:
    """The beginning of every answer and event, up to its choices."""
    return (
        f'{{"id": "{wire.id_of(served.tag)}", "object": "{kind}", "created": {served.created}, '
        f'"model": {quoted(ask.model)}, "backend": {quoted(served.backend)}, '
    )


def _end(ask: Ask, served: Served, head: str) -> bytes:
    """The end of a stream: usage, where it was asked for, and the sign that nothing follows."""
    if not ask.include_usage:
        return b"data: [DONE]\n\n"
    return f'data: {head}"choices": [], "usage": {wire.usage(ask, served)}}}\n\ndata: [DONE]\n\n'.encode()


class Completions(OpenAi):
    """``POST /v1/completions``."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Its seed and its prompt."""
        return data.get("seed"), data.get("prompt")

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> Ask:
        """Headers win over the body; without ``max_tokens`` it is OpenAI's 16."""
        wire.only_one(data, "n", "best_of")
        prompt = data.get("prompt")
        if prompt is None:
            prompt = ""
        # Always counted: what is no prompt must not pass because a header says how long it is.
        words = wire.words_in(prompt)
        output_tokens = wire.limit_of(data, "max_tokens")
        stream, include_usage = stream_options(data)
        return Ask(
            wire.model_of(headers, data.get("model", "")),
            wire.count_of(headers, "x-prompt-tokens", lambda: words),
            wire.DEFAULT_OUTPUT_TOKENS if output_tokens is None else output_tokens,
            stream,
            include_usage,
            wire.text_in(prompt),
        )

    def whole(self, ask: Ask, served: Served) -> Whole:
        """A text_completion."""
        return Whole(
            (
                f'{_head(ask, served, "text_completion")}"choices": [{{"index": 0, '
                f'"text": "{wire.WORD * ask.output_tokens}", "logprobs": null, "finish_reason": "{ask.finish}"}}], '
                f'"usage": {wire.usage(ask, served)}}}'
            ).encode()
        )

    def events(self, ask: Ask, served: Served) -> Events:
        """text_completion events; the last token's has the finish reason."""
        head = _head(ask, served, "text_completion")
        choice = f'"choices": [{{"index": 0, "text": "{wire.WORD}", "logprobs": null, "finish_reason": '
        return Events(
            before=f'data: {head}"token": '.encode(),
            after=f", {choice}null}}]}}\n\n".encode(),
            last_after=f', {choice}"{ask.finish}"}}]}}\n\n'.encode(),
            closing=_end(ask, served, head),
        )


class AnswerByGet(Completions):
    """``GET /v1/models/{model}/answer``: a completion for which headers say all there is to say."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """No body counts."""
        return None, None

    def load(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """Nothing: a GET has no body that means anything."""
        return {}

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> Ask:
        """The model is in the path, the sizes in ``x-prompt-tokens`` and ``x-output-tokens``."""
        return Ask(
            wire.model_of(headers, named),
            wire.count_of(headers, "x-prompt-tokens", lambda: 0),
            wire.count_of(headers, "x-output-tokens", lambda: wire.DEFAULT_OUTPUT_TOKENS),
        )


class Chat(OpenAi):
    """``POST /v1/chat/completions``."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Its seed and the text of its last message."""
        messages = data.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        try:
            return data.get("seed"), _content(last) if isinstance(last, dict) else None
        except BadRequestError:
            return data.get("seed"), None

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> Ask:
        """``max_completion_tokens`` wins over ``max_tokens``; without either the mock stops by itself after 16."""
        wire.only_one(data, "n")
        prompt = conversation(data.get("messages"), "messages")
        words = len(prompt.split())
        output_tokens = wire.limit_of(data, "max_completion_tokens", "max_tokens")
        stream, include_usage = stream_options(data)
        return Ask(
            wire.model_of(headers, data.get("model", "")),
            wire.count_of(headers, "x-prompt-tokens", lambda: words),
            wire.DEFAULT_OUTPUT_TOKENS if output_tokens is None else output_tokens,
            stream,
            include_usage,
            prompt,
            "stop" if output_tokens is None else "length",
        )

    def whole(self, ask: Ask, served: Served) -> Whole:
        """A chat.completion."""
        return Whole(
            (
                f'{_head(ask, served, "chat.completion")}"choices": [{{"index": 0, "message": {{"role": "assistant", '
                f'"content": "{wire.WORD * ask.output_tokens}", "refusal": null}}, "logprobs": null, '
                f'"finish_reason": "{ask.finish}"}}], "usage": {wire.usage(ask, served)}}}'
            ).encode()
        )

    def events(self, ask: Ask, served: Served) -> Events:
        """chat.completion.chunk events: the role, then a delta per token; the last one has the finish reason."""
        head = _head(ask, served, "chat.completion.chunk")
        delta = f'"choices": [{{"index": 0, "delta": {{"content": "{wire.WORD}"}}, "logprobs": null, "finish_reason": '
        role = '"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, '
        opening = f'data: {head}{role}"finish_reason": null}}]}}\n\n'.encode()
        return Events(
            before=f'data: {head}"token": '.encode(),
            after=f", {delta}null}}]}}\n\n".encode(),
            last_after=f', {delta}"{ask.finish}"}}]}}\n\n'.encode(),
            closing=_end(ask, served, head),
            opening=opening,
            empty=f'data: {head}{role}"finish_reason": "{ask.finish}"}}]}}\n\n'.encode(),
        )


def conversation(messages: object, name: str) -> str:
    """The text of a list of messages, a line for each; raises BadRequestError naming ``name``."""
    if not isinstance(messages, list) or not messages:
        raise BadRequestError(f"{name} is {wire.shown(messages)}, expected a list of at least one message", name)
    lines = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role", "user"), str):
            raise BadRequestError(f"{name} holds {wire.shown(message)}, expected an object with a role", name)
        lines.append(f"{message.get('role', 'user')}: {_content(message)}")
    return "\n".join(lines)


def _content(message: Mapping[str, Any]) -> str:
    """The text of one message: its content, or the texts of its parts; what is no text counts nothing."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise BadRequestError(f"content is {wire.shown(content)}, expected text or a list of parts", "content")
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return " ".join(text for text in texts if isinstance(text, str))
