"""Triton's own HTTP client against a mock backend, in a separate process because the client uses gevent.

Usage: ``python triton_calls.py PORT``; exit code 0 on success.
"""

from __future__ import annotations

import sys

import numpy
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def refused(call: object, *words: object, **more: object) -> str:
    """The message of the client error that this call raises."""
    assert callable(call)
    try:
        call(*words, **more)
    except InferenceServerException as error:
        return str(error)
    raise AssertionError(f"{call} was not refused")


def text_input(text: str, binary: bool) -> triton.InferInput:
    """The prompt."""
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(numpy.array([text.encode()], dtype=object), binary_data=binary)
    return tensor


def limit(tokens: int) -> triton.InferInput:
    """The limit of output tokens, binary."""
    tensor = triton.InferInput("max_tokens", [1], "INT32")
    tensor.set_data_from_numpy(numpy.array([tokens], dtype=numpy.int32))
    return tensor


def main() -> None:
    """All calls."""
    client = triton.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("tiny")["inputs"][0]["name"] == "text_input"
    assert client.get_model_config("tiny")["max_batch_size"] == 0

    assert not client.is_model_ready("tiny")
    client.load_model("tiny")
    assert client.is_model_ready("tiny", "1")
    assert [(entry["name"], entry["state"]) for entry in client.get_model_repository_index()] == [("tiny", "READY")]

    for binary in (True, False):
        outputs = [triton.InferRequestedOutput("text_output", binary_data=binary)]
        inputs = [text_input("one two ü", binary), limit(3)]
        result = client.infer("tiny", inputs, outputs=outputs, request_id="mine")
        assert result.as_numpy("text_output").tolist() == [b" the the the" if binary else " the the the"]
        assert result.get_response()["id"] == "mine"
    statistics = client.get_inference_statistics("tiny")["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] == 2

    assert "expected 'text_output'" in refused(
        client.infer, "tiny", [text_input("a", True)], outputs=[triton.InferRequestedOutput("logits")]
    )
    assert "version 7 is not found" in refused(client.infer, "tiny", [text_input("a", True)], model_version="7")
    client.unload_model("tiny")
    assert not client.is_model_ready("tiny")
    assert "does not exist" in refused(client.infer, "tiny", [text_input("a", True)])
    client.load_model("tiny")
    assert client.is_model_ready("tiny")
    client.close()


if __name__ == "__main__":
    main()
