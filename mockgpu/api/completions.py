"""OpenAI's completions and chat completions, and the same service by GET, as bytes.

The mock's own words are all alike, one token each. Every event of a stream also bears ``token``, its number in the
answer, and every answer ``backend``: so a lost, doubled or foreign part betrays itself; clients pass over both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mockgpu.api import fields, wire
from mockgpu.api.wire import BadRequestError, Events, ParsedRequest, Problem, Served, WholeAnswer, quoted


class OpenAi:
    """What all of OpenAI's forms have in common."""

    def load(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The body as a JSON object."""
        return wire.read_json(body)

    def build(self, ask: ParsedRequest) -> Iterable[None]:
        """Nothing: words are made fast enough."""
        return ()

    def problem(self, problem: Problem) -> bytes:
        """An error object as OpenAI has it."""
        return wire.error(problem.message, problem.kind, problem.code, problem.param)

    def broken(self, problem: Problem, number: int) -> bytes:
        """The error as an event, and the sign that nothing follows, as vLLM and SGLang have it."""
        return b"data: %b\n\ndata: [DONE]\n\n" % self.problem(problem)


def stream_options(data: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stream is asked for, and whether with usage; ``fields.check`` has seen the options."""
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


def _head(ask: ParsedRequest, served: Served, kind: str) -> str:
    """The beginning of every answer and event, up to its choices."""
    return (
        f'{{"id": "{wire.id_of(served.tag)}", "object": "{kind}", "created": {served.created}, '
        f'"model": {quoted(ask.model)}, "backend": {quoted(served.backend)}, '
    )


def _each(ask: ParsedRequest, choice: str) -> str:
    """The same choice as often as it is asked for, each time with its index."""
    if ask.choices == 1:
        return f'{{"index": 0, {choice}}}'
    return ", ".join([f'{{"index": {index}, {choice}}}' for index in range(ask.choices)])


def _afters(ask: ParsedRequest, choice: str) -> list[tuple[bytes, bytes]]:
    """What follows a token's number in the events of each choice, and in the last ones."""
    ends = ("null", f'"{ask.finish}"')
    return [
        (
            f', "choices": [{{"index": {index}, {choice}, "finish_reason": {ends[0]}}}]}}\n\n'.encode(),
            f', "choices": [{{"index": {index}, {choice}, "finish_reason": {ends[1]}}}]}}\n\n'.encode(),
        )
        for index in range(ask.choices)
    ]


def _end(ask: ParsedRequest, served: Served, head: str) -> bytes:
    """The end of a stream: usage, where it was asked for, and the sign that nothing follows."""
    if not ask.include_usage:
        return b"data: [DONE]\n\n"
    return f'data: {head}"choices": [], "usage": {wire.usage(ask, served)}}}\n\ndata: [DONE]\n\n'.encode()


class Completions(OpenAi):
    """``POST /v1/completions``. A body without a prompt has an empty one, but there must be a body."""

    def load(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The body as a JSON object."""
        if not body:
            raise BadRequestError("the body is empty, expected a JSON object with a prompt", "prompt")
        return wire.read_json(body)

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Its seed and its last prompt."""
        return data.get("seed"), fields.last_of(data.get("prompt"))

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> ParsedRequest:
        """Headers win over the body; without ``max_tokens`` it is OpenAI's 16. ``best_of`` must be ``n``.

        Several prompts are one job, and each has ``n`` choices; the prefix cache is for those that come alone.
        """
        fields.check(data, fields.COMPLETION)
        prompt = data.get("prompt")
        # Always read: what is no prompt must not pass because a header says how long it is.
        prompts = ("",) if prompt is None else fields.prompts_of(prompt)
        count = len(prompts)
        output_tokens = wire.limit_of(data, "max_tokens")
        if output_tokens is None:
            output_tokens = wire.DEFAULT_OUTPUT_TOKENS
        stream, include_usage = stream_options(data)
        choices = wire.choices_of(data, output_tokens, count)
        each = choices // count
        if data.get("best_of") not in (None, each):
            seen = wire.shown(data["best_of"])
            raise BadRequestError(f"best_of is {seen}, expected n, here {each}: all that is made is given", "best_of")
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

    def whole(self, ask: ParsedRequest, served: Served) -> WholeAnswer:
        """A text_completion."""
        choice = f'"text": "{wire.WORD * ask.output_tokens}", "logprobs": null, "finish_reason": "{ask.finish}"'
        return WholeAnswer(
            (
                f'{_head(ask, served, "text_completion")}"choices": [{_each(ask, choice)}], '
                f'"usage": {wire.usage(ask, served)}}}'
            ).encode()
        )

    def events(self, ask: ParsedRequest, served: Served) -> Events:
        """text_completion events; the last token's has the finish reason."""
        head = _head(ask, served, "text_completion")
        first, *further = _afters(ask, f'"text": "{wire.WORD}", "logprobs": null')
        nothing = [
            f'data: {head}"choices": [{{"index": {index}, "text": "", "logprobs": null, '
            f'"finish_reason": "{ask.finish}"}}]}}\n\n'
            for index in range(ask.choices)
        ]
        return Events(
            before=f'data: {head}"token": '.encode(),
            after=first[0],
            last_after=first[1],
            closing=_end(ask, served, head),
            empty="".join(nothing).encode(),
            further=tuple(further),
        )


class AnswerByGet(Completions):
    """``GET /v1/models/{model}/answer``: a completion for which headers say all there is to say."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """No body counts."""
        return None, None

    def load(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """Nothing: a GET has no body that means anything."""
        return {}

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> ParsedRequest:
        """The model is in the path, the sizes in ``x-prompt-tokens`` and ``x-output-tokens``."""
        return ParsedRequest(
            wire.model_of(headers, named),
            wire.count_of(headers, "x-prompt-tokens", lambda: 0),
            wire.count_of(headers, "x-output-tokens", lambda: wire.DEFAULT_OUTPUT_TOKENS),
        )


class ChatCompletions(OpenAi):
    """``POST /v1/chat/completions``."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """Its seed and the text of its last message."""
        messages = data.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        try:
            return data.get("seed"), _content(last) if isinstance(last, dict) else None
        except BadRequestError:
            return data.get("seed"), None

    def ask(self, headers: Mapping[str, str], named: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``max_completion_tokens`` wins over ``max_tokens``; without either the mock stops by itself after 16."""
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

    def whole(self, ask: ParsedRequest, served: Served) -> WholeAnswer:
        """A chat.completion."""
        choice = (
            f'"message": {{"role": "assistant", "content": "{wire.WORD * ask.output_tokens}", "refusal": null}}, '
            f'"logprobs": null, "finish_reason": "{ask.finish}"'
        )
        return WholeAnswer(
            (
                f'{_head(ask, served, "chat.completion")}"choices": [{_each(ask, choice)}], '
                f'"usage": {wire.usage(ask, served)}}}'
            ).encode()
        )

    def events(self, ask: ParsedRequest, served: Served) -> Events:
        """chat.completion.chunk events: the role, then a delta per token; the last one has the finish reason."""
        head = _head(ask, served, "chat.completion.chunk")
        first, *further = _afters(ask, f'"delta": {{"content": "{wire.WORD}"}}, "logprobs": null')
        roles = [
            f'data: {head}"choices": [{{"index": {index}, "delta": {{"role": "assistant", "content": ""}}, '
            f'"logprobs": null, "finish_reason": '
            for index in range(ask.choices)
        ]
        return Events(
            before=f'data: {head}"token": '.encode(),
            after=first[0],
            last_after=first[1],
            closing=_end(ask, served, head),
            opening="".join([f"{role}null}}]}}\n\n" for role in roles]).encode(),
            empty="".join([f'{role}"{ask.finish}"}}]}}\n\n' for role in roles]).encode(),
            further=tuple(further),
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
