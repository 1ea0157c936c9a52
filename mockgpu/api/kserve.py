"""KServe's open inference protocol v2 in Triton's variant: inference and model metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mockgpu.api import wire
from mockgpu.api.metrics import Sums
from mockgpu.api.tensors import HEADER_LENGTH, packed_text, read_inputs, split_body
from mockgpu.api.wire import BadRequestError, Events, ParsedRequest, Problem, Served, WholeAnswer

VERSION = "1"
PROMPT, LIMIT, OUTPUT = "text_input", "max_tokens", "text_output"
EXTENSIONS = ["model_repository", "model_configuration", "statistics", "binary_tensor_data"]
_RAW = "\0raw"  # key of the raw bytes after the JSON in a decoded body; see ``Infer.decode``


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A parsed path below ``/v2/models/``; an empty ``version`` means any."""

    model: str
    version: str
    action: str


def parse_model_path(path: str) -> ModelPath:
    """Parse ``{model}[/versions/{version}][/{action}]``; a model's name may contain slashes."""
    rest, slash, action = path.rpartition("/")
    if not slash or action not in ("ready", "infer", "config", "stats"):
        rest, action = path, ""
    model, versions, version = rest.rpartition("/versions/")
    return ModelPath(model, version, action) if versions else ModelPath(rest, "", action)


@dataclass(frozen=True, slots=True)
class _InferOptions:
    version: str
    id: str
    binary: bool


class Infer:
    """``POST /v2/models/{model}[/versions/{version}]/infer``.

    Any inputs are accepted. The first one of BYTES is the prompt, else every element counts as a token; ``max_tokens``
    is an input of one whole number or a parameter. There is one output, ``text_output``.
    """

    def decode(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """The JSON part, with the raw bytes added under ``_RAW``, which replaces a client's field of that name."""
        data, raw = split_body(headers, body)
        return {**data, _RAW: raw}

    def carriers(self, data: Mapping[str, Any]) -> tuple[object, object]:
        """The parameter ``seed``, and the last text of the first input of BYTES."""
        try:
            texts = _texts(read_inputs(data, data[_RAW]))
        except BadRequestError:
            texts = ()
        return _parameters(data).get("seed"), texts[-1] if texts else None

    def parse(self, headers: Mapping[str, str], path_model: str, data: Mapping[str, Any]) -> ParsedRequest:
        """``path_model`` is the path below ``/v2/models/``."""
        path = parse_model_path(path_model)
        if not path.model or path.action != "infer":
            raise BadRequestError("Request for unknown model: the path names none", status=404, code="model_not_found")
        if path.version not in ("", VERSION):
            problem = f"Request for unknown model: '{path.model}' version {path.version} is not found"
            raise BadRequestError(problem, status=404, code="model_not_found")
        inputs = read_inputs(data, data[_RAW])
        parameters = _parameters(data)
        texts = _texts(inputs)
        words = sum(len(text.split()) for text in texts)
        others = sum(tensor.elements for tensor in inputs if tensor.name != LIMIT)
        limit = next((tensor for tensor in inputs if tensor.name == LIMIT), None)
        if limit is not None and limit.number is None:
            raise BadRequestError(f"input {LIMIT} is no single whole number, expected an INT32 of shape [1]", LIMIT)
        output_tokens = wire.limit_of({LIMIT: limit.number} if limit else parameters, LIMIT)
        given_id = data.get("id")
        return ParsedRequest(
            wire.model_of(headers, path.model),
            wire.count_of(headers, "x-prompt-tokens", lambda: words if texts else others),
            wire.DEFAULT_OUTPUT_TOKENS if output_tokens is None else output_tokens,
            prompt="\n".join(texts),
            details=_InferOptions(VERSION, wire.clean(given_id) if isinstance(given_id, str) else "", _binary(data)),
        )

    def prepare(self, request: ParsedRequest) -> Iterable[None]:
        """Nothing to prepare: the output is generated fast enough."""
        return ()

    def whole(self, request: ParsedRequest, served: Served) -> WholeAnswer:
        """The answer, binary if requested."""
        options: _InferOptions = request.details
        text = wire.WORD * request.output_tokens
        output: dict[str, Any] = {"name": OUTPUT, "datatype": "BYTES", "shape": [1]}
        answer = {
            "model_name": request.model,
            "model_version": options.version,
            "id": options.id or wire.id_of(served.tag),
            "parameters": {"backend": served.backend},
            "outputs": [output],
        }
        if not options.binary:
            output["data"] = [text]
            return WholeAnswer(json.dumps(answer).encode())
        raw = packed_text(text)
        output["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps(answer).encode()
        return WholeAnswer(head + raw, "application/octet-stream", {HEADER_LENGTH: str(len(head))})

    def events(self, request: ParsedRequest, served: Served) -> Events:
        """The protocol has no streaming."""
        raise BadRequestError("an inference of KServe v2 can't be streamed")

    def problem(self, problem: Problem) -> bytes:
        """An error in Triton's form: the text only."""
        return error(problem.message)

    def error_event(self, problem: Problem, number: int) -> bytes:
        """The protocol has no streaming."""
        raise BadRequestError("an inference of KServe v2 can't be streamed")


def _parameters(data: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = data.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _texts(inputs: list[Any]) -> tuple[str, ...]:
    return next((tensor.texts for tensor in inputs if tensor.datatype == "BYTES"), ())


def _binary(data: Mapping[str, Any]) -> bool:
    """Whether the output is binary: by the output's own parameter, else by that of the request."""
    outputs = data.get("outputs")
    if outputs is not None and not isinstance(outputs, list):
        raise BadRequestError(f"outputs is {wire.shown(outputs)}, expected a list", "outputs")
    binary = _parameters(data).get("binary_data_output") is True
    for output in outputs or []:
        if not isinstance(output, dict) or output.get("name") != OUTPUT:
            name = output.get("name") if isinstance(output, dict) else output
            raise BadRequestError(f"unexpected inference output {wire.shown(name)}, expected '{OUTPUT}'", "outputs")
        binary = _parameters(output).get("binary_data", binary) is True
    return binary


def error(message: str) -> bytes:
    """The body of an error."""
    return json.dumps({"error": message}).encode()


def server_metadata(name: str, version: str) -> bytes:
    """``GET /v2``."""
    return json.dumps({"name": name, "version": version, "extensions": EXTENSIONS}).encode()


def model_metadata(model: str) -> bytes:
    """``GET /v2/models/{model}``."""
    return json.dumps(
        {
            "name": model,
            "versions": [VERSION],
            "platform": "mockgpu",
            "inputs": [
                {"name": PROMPT, "datatype": "BYTES", "shape": [1]},
                {"name": LIMIT, "datatype": "INT32", "shape": [1]},
            ],
            "outputs": [{"name": OUTPUT, "datatype": "BYTES", "shape": [1]}],
        }
    ).encode()


def model_config(model: str, max_running: int) -> bytes:
    """``GET /v2/models/{model}/config``."""
    return json.dumps(
        {
            "name": model,
            "platform": "mockgpu",
            "backend": "mockgpu",
            "max_batch_size": 0,
            "version_policy": {"latest": {"num_versions": 1}},
            "input": [
                {"name": PROMPT, "data_type": "TYPE_STRING", "dims": [1]},
                {"name": LIMIT, "data_type": "TYPE_INT32", "dims": [1], "optional": True},
            ],
            "output": [{"name": OUTPUT, "data_type": "TYPE_STRING", "dims": [1]}],
            "instance_group": [{"name": f"{model}_0", "kind": "KIND_GPU", "count": 1, "gpus": [0]}],
            "model_transaction_policy": {"decoupled": False},
            "parameters": {"max_running": {"string_value": str(max_running)}},
        }
    ).encode()


def model_stats(model: str, sums: Sums) -> bytes:
    """``GET /v2/models/{model}/stats``; an execution is one request, since continuous batches have no start or end."""

    def duration(count: int, seconds: float) -> dict[str, int]:
        return {"count": count, "ns": round(seconds * 1e9)}

    answered = sums.answered
    return json.dumps(
        {
            "model_stats": [
                {
                    "name": model,
                    "version": VERSION,
                    "inference_count": answered,
                    "execution_count": answered,
                    "inference_stats": {
                        "success": duration(answered, sums.whole_s),
                        "fail": duration(sums.failed, sums.failed_s),
                        "queue": duration(answered, sums.queue_s),
                        "compute_input": duration(answered, 0.0),
                        "compute_infer": duration(answered, sums.service_s),
                        "compute_output": duration(answered, 0.0),
                        "cache_hit": duration(0, 0.0),
                        "cache_miss": duration(0, 0.0),
                    },
                    "batch_stats": [],
                }
            ]
        }
    ).encode()


def index(states: Mapping[str, str], only_ready: bool) -> bytes:
    """``POST /v2/repository/index``: the models of the repository and their states (``GpuServer.model_states``)."""
    entries = []
    for name, state in states.items():
        if state == "ready":
            entries.append({"name": name, "version": VERSION, "state": "READY", "reason": ""})
        elif not only_ready:
            reason = "unloaded" if state == "unavailable" else ""
            entries.append({"name": name, "version": VERSION, "state": state.upper(), "reason": reason})
    return json.dumps(entries).encode()


def no_room(model: str) -> str:
    """Triton's message when a model does not fit; the status is 400."""
    reason = "Internal: unable to allocate GPU memory"
    return f"load failed for model '{model}': version {VERSION} is at UNAVAILABLE state: {reason};"
