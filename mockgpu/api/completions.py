"""OpenAI's completions and chat completions, and a completion by GET, as bytes.

The output repeats one word, which is one token. Every event of a stream also has the field ``token``, its number in
the answer, and every answer ``backend``, so that lost, duplicated or foreign parts can be detected; clients ignore
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mockgpu.api import fields, wire
from mockgpu.api.wire import BadRequestError, Events, ParsedRequest, Problem, Served, WholeAnswer, quoted


class OpenAi:
    """Base of OpenAI's wire formats."""

    def decode(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The body as a JSON object."""
        return wire.read_json(body)

    def prepare(self, request: ParsedRequest) -> Iterable[None]:
        """Nothing to prepare: the output is generated fast enough."""
        return ()

    def problem(self, problem: Problem) -> bytes:
        """An error object in OpenAI's form."""
        return wire.error(problem.message, problem.kind, problem.code, problem.param)

    def error_event(self, problem: Problem, number: int) -> bytes:
        """The error as an event, then the end marker, as in vLLM and SGLang."""
        return b"data: %b\n\ndata: [DONE]\n\n" % self.problem(problem)


def stream_options(data: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stream is requested, and whether with usage; ``fields.check`` must have passed."""
    stream = data.get("stream")
    if not (stream is None or isinstance(stream, bool)):
        raise BadRequestError(f"stream is {wire.shown(stream)}, expected true or false", "stream")
    options = data.get("stream_options")
    if options is None:
        return stream is True, False
    usage = options.get("include_usage")
    if not (usage is None or isinstance(usage, bool)):
        raise BadRequestError(f"include_usage is {wire.shown(usage)}, expected true or false", "stream_options")
    return stream is True, usage is True


def _head(request: ParsedRequest, served: Served, kind: str) -> str:
    """The start of an answer or event, up to its choices."""
    return (
        f'{{"id": "{wire.id_of(served.tag)}", "object": "{kind}", "created": {served.created}, '
        f'"model": {quoted(request.model)}, "backend": {quoted(served.backend)}, '
    )


def _repeated(request: ParsedRequest, choice: str) -> str:
    """The choice repeated for each requested choice, with its index."""
    if request.choices == 1:
        return f'{{"index": 0, {choice}}}'
    return ", ".join([f'{{"index": {index}, {choice}}}' for index in range(request.choices)])


def _token_suffixes(request: ParsedRequest, choice: str) -> list[tuple[bytes, bytes]]:
    """For each choice the text after a token's number in an event, and in the last event."""
    reasons = ("null", f'"{request.finish}"')
    return [
        (
            f', "choices": [{{"index": {index}, {choice}, "finish_reason": {reasons[0]}}}]}}\n\n'.encode(),
            f', "choices": [{{"index": {index}, {choice}, "finish_reason": {reasons[1]}}}]}}\n\n'.encode(),
        )
        for index in range(request.choices)
    ]


def _closing(request: ParsedRequest, served: Served, head: str) -> bytes:
    """The end of a stream: usage if requested, and the end marker."""
    if not request.include_usage:
        return b"data: [DONE]\n\n"
    return f'data: {head}"choices": [], "usage": {wire.usage(request, served)}}}\n\ndata: [DONE]\n\n'.encode()


class Completions(OpenAi):
    """``POST /v1/completions``. The body is required; without ``prompt`` the prompt is empty."""

    def decode(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The body as a JSON object."""
        if not body:
            raise BadRequestError("the body is empty, expected a JSON object with a prompt", "prompt")
        return wire.read_json(body)

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """The seed and the last prompt."""
        return data.get("seed"), fields.last_of(data.get("prompt"))

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """Headers override the body; ``max_tokens`` defaults to 16, as in OpenAI. ``best_of`` must be ``n``.

        Several prompts are one job with ``n`` choices for each; only a single prompt uses the prefix cache.
        """
        fields.check(data, fields.COMPLETION)
        prompt = data.get("prompt")
        # Checked even if a header gives the prompt's length.
        prompts = ("",) if prompt is None else fields.prompts_of(prompt)
        count = len(prompts)
        output_tokens = wire.limit_of(data, "max_tokens")
        if output_tokens is None:
            output_tokens = wire.DEFAULT_OUTPUT_TOKENS
        stream, include_usage = stream_options(data)
        choices = wire.choices_of(data, output_tokens, count)
        each = choices // count
        if data.get("best_of") not in (None, each):
            given = wire.shown(data["best_of"])
            raise BadRequestError(f"best_of is {given}, expected n ({each}): all choices are returned", "best_of")
        stopped = fields.stops_at_once(data.get("stop"), output_tokens)
        return ParsedRequest(
            wire.model_of(headers, data.get("model", "")),
            wire.count_of(headers, "x-prompt-tokens", lambda: fields.words_in(prompts)),
            0 if stopped else output_tokens,
            stream,
            include_usage,
            prompts[0] if count == 1 else "",
            "stop" if stopped else "length",
            choices=choices,
        )

    def whole(self, request: ParsedRequest, served: Served) -> WholeAnswer:
        """A text_completion object."""
        choice = f'"text": "{wire.WORD * request.output_tokens}", "logprobs": null, "finish_reason": "{request.finish}"'
        return WholeAnswer(
            (
                f'{_head(request, served, "text_completion")}"choices": [{_repeated(request, choice)}], '
                f'"usage": {wire.usage(request, served)}}}'
            ).encode()
        )

    def events(self, request: ParsedRequest, served: Served) -> Events:
        """text_completion events; the last one has the finish reason."""
        head = _head(request, served, "text_completion")
        first, *further = _token_suffixes(request, f'"text": "{wire.WORD}", "logprobs": null')
        empty = [
            f'data: {head}"choices": [{{"index": {index}, "text": "", "logprobs": null, '
            f'"finish_reason": "{request.finish}"}}]}}\n\n'
            for index in range(request.choices)
        ]
        return Events(
            before=f'data: {head}"token": '.encode(),
            after=first[0],
            last_after=first[1],
            closing=_closing(request, served, head),
            empty="".join(empty).encode(),
            further=tuple(further),
        )


class AnswerByGet(Completions):
    """``GET /v1/models/{model}/answer``: a completion whose parameters are in headers."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """No carriers in a body."""
        return None, None

    def decode(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """Empty: the body of a GET is ignored."""
        return {}

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """The model is in the path, the sizes in ``x-prompt-tokens`` and ``x-output-tokens``."""
        return ParsedRequest(
            wire.model_of(headers, path_model),
            wire.count_of(headers, "x-prompt-tokens", lambda: 0),
            wire.count_of(headers, "x-output-tokens", lambda: wire.DEFAULT_OUTPUT_TOKENS),
        )


class ChatCompletions(OpenAi):
    """``POST /v1/chat/completions``."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """The seed and the text of the last message."""
        messages = data.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        try:
            return data.get("seed"), _content(last) if isinstance(last, dict) else None
        except BadRequestError:
            return data.get("seed"), None

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``max_completion_tokens`` takes precedence over ``max_tokens``; without either the output has 16 tokens."""
        fields.check(data, fields.CHAT)
        prompt = conversation(data.get("messages"), "messages")
        words = len(prompt.split())
        limit = wire.limit_of(data, "max_completion_tokens", "max_tokens")
        output_tokens = wire.DEFAULT_OUTPUT_TOKENS if limit is None else limit
        stream, include_usage = stream_options(data)
        stopped = fields.stops_at_once(data.get("stop"), output_tokens)
        return ParsedRequest(
            wire.model_of(headers, data.get("model", "")),
            wire.count_of(headers, "x-prompt-tokens", lambda: words),
            0 if stopped else output_tokens,
            stream,
            include_usage,
            prompt,
            "stop" if stopped or limit is None else "length",
            choices=wire.choices_of(data, output_tokens),
        )

    def whole(self, request: ParsedRequest, served: Served) -> WholeAnswer:
        """A chat.completion object."""
        choice = (
            f'"message": {{"role": "assistant", "content": "{wire.WORD * request.output_tokens}", "refusal": null}}, '
            f'"logprobs": null, "finish_reason": "{request.finish}"'
        )
        return WholeAnswer(
            (
                f'{_head(request, served, "chat.completion")}"choices": [{_repeated(request, choice)}], '
                f'"usage": {wire.usage(request, served)}}}'
            ).encode()
        )

    def events(self, request: ParsedRequest, served: Served) -> Events:
        """chat.completion.chunk events: the role, then a delta per token; the last has the finish reason."""
        head = _head(request, served, "chat.completion.chunk")
        first, *further = _token_suffixes(request, f'"delta": {{"content": "{wire.WORD}"}}, "logprobs": null')
        roles = [
            f'data: {head}"choices": [{{"index": {index}, "delta": {{"role": "assistant", "content": ""}}, '
            f'"logprobs": null, "finish_reason": '
            for index in range(request.choices)
        ]
        return Events(
            before=f'data: {head}"token": '.encode(),
            after=first[0],
            last_after=first[1],
            closing=_closing(request, served, head),
            opening="".join([f"{role}null}}]}}\n\n" for role in roles]).encode(),
            empty="".join([f'{role}"{request.finish}"}}]}}\n\n' for role in roles]).encode(),
            further=tuple(further),
        )


def conversation(messages: object, name: str) -> str:
    """The text of a list of messages, one per line; raises BadRequestError for the parameter ``name``."""
    if not isinstance(messages, list) or not messages:
        raise BadRequestError(f"{name} is {wire.shown(messages)}, expected a list of at least one message", name)
    lines = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role", "user"), str):
            raise BadRequestError(f"{name} holds {wire.shown(message)}, expected an object with a role", name)
        lines.append(f"{message.get('role', 'user')}: {_content(message)}")
    return "\n".join(lines)


def _content(message: Mapping[str, Any]) -> str:
    """The text of one message: its content, or the texts of its parts; other parts are ignored."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise BadRequestError(f"content is {wire.shown(content)}, expected text or a list of parts", "content")
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return " ".join(text for text in texts if isinstance(text, str))
