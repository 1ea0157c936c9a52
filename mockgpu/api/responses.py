"""OpenAI's Responses with one text message as output, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mockgpu.api import fields, wire
from mockgpu.api.completions import OpenAi, conversation, stream_options
from mockgpu.api.wire import Events, ParsedRequest, Problem, Served, WholeAnswer


class Responses(OpenAi):
    """``POST /v1/responses``."""

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """The seed (not part of OpenAI's Responses, but forwarded by routers) and the last text."""
        given = data.get("input")
        if isinstance(given, list) and given and isinstance(given[-1], dict):
            given = given[-1].get("content")
            if isinstance(given, list) and given and isinstance(given[-1], dict):
                given = given[-1].get("text")
        return data.get("seed"), given

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``input`` is a text or a list of messages; without ``max_output_tokens`` the output has 16 tokens."""
        fields.check(data, fields.RESPONSE)
        given = data.get("input")
        prompt = given if isinstance(given, str) else conversation(given, "input")
        instructions = data.get("instructions")
        if isinstance(instructions, str):
            prompt = f"{instructions}\n{prompt}"
        words = len(prompt.split())
        output_tokens = wire.limit_of(data, "max_output_tokens")
        return ParsedRequest(
            wire.model_of(headers, data.get("model", "")),
            wire.count_of(headers, "x-prompt-tokens", lambda: words),
            wire.DEFAULT_OUTPUT_TOKENS if output_tokens is None else output_tokens,
            stream=stream_options(data)[0],
            prompt=prompt,
            finish="stop",
            details=output_tokens,
        )

    def error_event(self, problem: Problem, number: int) -> bytes:
        """An ``error`` event, the last one of the stream."""
        return _event(number, "error", {"code": str(problem.code), "message": problem.message, "param": problem.param})

    def whole(self, request: ParsedRequest, served: Served) -> WholeAnswer:
        """A completed response, or an incomplete one if ``max_output_tokens`` was given."""
        return WholeAnswer(json.dumps(_response(request, served, _end_of(request))).encode())

    def events(self, request: ParsedRequest, served: Served) -> Events:
        """OpenAI's sequence of events, numbered consecutively: four before the text, one per token, four after it."""
        response = _response(request, served, "in_progress")
        item = _item(request, served, "in_progress")
        location = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        opening = (
            _event(0, "response.created", {"response": response})
            + _event(1, "response.in_progress", {"response": response})
            + _event(2, "response.output_item.added", {"output_index": 0, "item": item})
            + _event(3, "response.content_part.added", {**location, "part": _part("")})
        )
        after, end = 4 + request.output_tokens, _end_of(request)
        text = wire.WORD * request.output_tokens
        closing = (
            _event(after, "response.output_text.done", {**location, "text": text, "logprobs": []})
            + _event(after + 1, "response.content_part.done", {**location, "part": _part(text)})
            + _event(after + 2, "response.output_item.done", {"output_index": 0, "item": _item(request, served, end)})
            + _event(after + 3, f"response.{end}", {"response": _response(request, served, end)})
        )
        delta = json.dumps({**location, "delta": wire.WORD, "logprobs": [], "backend": served.backend})[1:]
        kind = "response.output_text.delta"
        return Events(
            before=f'event: {kind}\ndata: {{"type": "{kind}", "sequence_number": '.encode(),
            after=f", {delta}\n\n".encode(),
            last_after=f", {delta}\n\n".encode(),
            closing=closing,
            opening=opening,
            empty=opening,
            first_number=4,
        )


def _end_of(request: ParsedRequest) -> str:
    """The final status: ``incomplete`` if a limit was given, since the output always reaches it."""
    return "completed" if request.details is None else "incomplete"


def _event(number: int, kind: str, fields: Mapping[str, Any]) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(request: ParsedRequest, served: Served, status: str) -> dict[str, Any]:
    content = [_part(wire.WORD * request.output_tokens)] if status != "in_progress" else []
    message = {"id": f"msg-{wire.id_of(served.tag)}", "type": "message", "role": "assistant"}
    return {**message, "status": status, "content": content}


def _response(request: ParsedRequest, served: Served, status: str) -> dict[str, Any]:
    done = status != "in_progress"
    usage = {
        "input_tokens": request.prompt_tokens,
        "input_tokens_details": {"cached_tokens": max(0, served.cached_tokens)},
        "output_tokens": request.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": request.prompt_tokens + request.output_tokens,
    }
    return {
        "id": wire.id_of(served.tag),
        "object": "response",
        "created_at": served.created,
        "status": status,
        "model": request.model,
        "backend": served.backend,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": request.details,
        "metadata": {},
        "output": [_item(request, served, status)] if done else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if done else None,
    }
