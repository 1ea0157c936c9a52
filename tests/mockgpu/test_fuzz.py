"""Any input on a backend's port is answered with 2xx, or with 4xx or 503 and a JSON error, and the backend survives."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from mockgpu.faults.decisions import Change
from mockgpu.faults.json_form import HERE
from mockgpu.faults.kinds import CutOff, FailingStatus, NotReady, OverCapacity, RequestFault, Slow
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import AttemptLog
from mockgpu.server.clock import Clock
from mockgpu.server.server import MockBackend

SETUP = Setup(
    Gpu("box", 1_000, 4, 4, kv_share=0.5, max_adapters=1, sleep_s=(0.0, 0.0), wake_s=(0.0, 0.0), refuse_asleep=True),
    Model("any", 0, 0.0, 1e12, 0.0, kv_bytes_per_token=100_000),
    (Model("large", 300, 0.0, 1e12, 0.0), Model("whale", 5_000, 0.0, 1e12, 0.0)),
)
PATHS = [
    "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/updates", "/v1/models",
    "/v1/models/any", "/v1/models/any/answer", "/v1/models/", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready",
    "/v2/models/any", "/v2/models/large/infer", "/v2/models/any/versions/1/infer", "/v2/models/any/versions/x/ready",
    "/v2/models//infer", "/v2/models/large/stats", "/v2/models/large/config", "/v2/repository/index",
    "/v2/repository/models/large/load", "/v2/repository/models/whale/load", "/v2/repository/models/large/unload",
    "/v2/repository/models//load", "/health", "/ready", "/ping", "/metrics", "/version", "/server_info", "/loads",
    "/tokenize", "/detokenize", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep?level=1", "/sleep?level=x",
    "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/mock/ping", "/mock/log", "/mock/faults", "/mock/reset",
    "/mock/evict", "/mock/pin", "/mock/x", "/", "*", "/%ff%00", "//", "/v1/completions/", "/?a=%zz",
]  # fmt: skip
METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"]
NAMES = [
    "model", "prompt", "messages", "role", "content", "input", "inputs", "name", "shape", "datatype", "data", "outputs",
    "parameters", "binary_data_size", "binary_data_output", "max_tokens", "max_completion_tokens", "max_output_tokens",
    "stream", "stream_options", "include_usage", "n", "seed", "dimensions", "encoding_format", "tokens", "lora_name",
    "base_model_name", "pinned", "nonce", "set", "clear", "kind", "status", "first", "share", "rate_per_s", "burst",
    "factor", "after_tokens", "ready", "text", "type", "id", "stop", "echo", "logprobs", "temperature", "tools", "user",
]  # fmt: skip
WORDS = [
    "any", "large", "whale", "", "a b c", "user", "BYTES", "INT32", "FP32", "text_input", "text_output", "max_tokens",
    "base64", "status", "slow", "cut", "capacity", "not-ready", "all", "#sy-0000000000001", "ü\ud800", "x" * 300,
]  # fmt: skip
HEADERS = [
    "x-model-id", "x-prompt-tokens", "x-output-tokens", "x-mock-tag", "x-request-id", "x-update", "x-mock-token",
    "x-stainless-retry-count", "Inference-Header-Content-Length", "Content-Type", "Expect", "Accept-Encoding",
    "Content-Encoding",
]  # fmt: skip

# A hanging request would hang this test; other tests cover it.
FAULTS: list[RequestFault] = [
    FailingStatus(*HERE, 429, retry_after_s=0.5),
    FailingStatus(*HERE, 503, share=0.5),
    CutOff(*HERE, 0),
    CutOff(*HERE, 3),
    OverCapacity(*HERE, 0.0, 1),
    Slow(*HERE, 2.0),
    NotReady(*HERE),
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.sampled_from([2**31, 2**63, 2**52 - 1, 10**30, -1, 0.5, 1e308, -0.0])
    | st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
MODELS = st.sampled_from(["any", "large", "whale"]) | SCALARS
COUNTS = st.integers(0, 20) | SCALARS
TEXTS = st.sampled_from(["a b c", "w " * 40]) | VALUES
FLAGS = st.booleans() | SCALARS
MESSAGES = st.fixed_dictionaries({"role": st.just("user") | SCALARS, "content": TEXTS})
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["text_input", "max_tokens"]) | SCALARS,
        "shape": st.just([1]) | st.lists(st.integers(-1, 3), max_size=3),
        "datatype": st.sampled_from(["BYTES", "INT32"]) | SCALARS,
    },
    optional={"data": st.sampled_from([["a b"], [3]]) | VALUES, "parameters": VALUES},
)
# Bodies that pass the first checks: correct in form, with arbitrary values in some fields.
SHAPED = st.one_of(
    st.fixed_dictionaries(
        {"model": MODELS, "prompt": TEXTS, "max_tokens": COUNTS},
        optional={"stream": FLAGS, "stream_options": VALUES, "seed": SCALARS, "n": COUNTS},
    ),
    st.fixed_dictionaries(
        {"model": MODELS, "messages": st.lists(MESSAGES, min_size=1, max_size=3)},
        optional={"stream": FLAGS, "max_completion_tokens": COUNTS},
    ),
    st.fixed_dictionaries(
        {"input": TEXTS},
        optional={"dimensions": COUNTS, "encoding_format": SCALARS, "stream": FLAGS, "max_output_tokens": COUNTS},
    ),
    st.fixed_dictionaries(
        {"inputs": st.lists(TENSORS, min_size=1, max_size=2)},
        optional={"outputs": VALUES, "parameters": VALUES, "id": SCALARS},
    ),
    st.fixed_dictionaries(
        {}, optional={"set": st.lists(st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=4)), "clear": VALUES}
    ),
    st.fixed_dictionaries({"lora_name": SCALARS}, optional={"base_model_name": MODELS}),
)
BODIES = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    VALUES.map(lambda value: json.dumps(value).encode()),
    SHAPED.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"[" * 100_000, b'{"prompt": "' + b"a " * 50_000 + b'"}', b"\xff\xfe", b"{}", b'{"a": NaN}']),
)
HEADER_TEXTS = st.sampled_from(
    ["", "5", "0", "99999999999", "-1", "any", "large", "weights", "\xff", "gzip", "deflate", "br", "identity", "²"]
) | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@dataclass
class Running:
    """A backend in its own thread, and the errors that it logged."""

    port: int
    backend: MockBackend
    loop: asyncio.AbstractEventLoop
    complaints: list[str]

    def reset(self) -> None:
        """Reset: no faults, empty memory."""
        done = threading.Event()

        def reset() -> None:
            self.backend.reset(0)
            done.set()

        self.loop.call_soon_threadsafe(reset)
        assert done.wait(10)


class _Ear(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(self.format(record))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("fuzz") / "log"
    begun: Any = asyncio.Queue()
    ready = threading.Event()
    complaints: list[str] = []
    made: list[Running] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        clock, log = Clock(loop), AttemptLog(path, 100_000)
        backend = MockBackend("gpu-0", SETUP, clock, log)
        made.append(Running(await backend.start("127.0.0.1", 0), backend, loop, complaints))
        ready.set()
        await begun.get()
        await backend.close()
        clock.close()
        log.close()

    ear = _Ear(complaints)
    logging.getLogger().addHandler(ear)
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield made[0]
    made[0].loop.call_soon_threadsafe(begun.put_nowait, None)
    thread.join(10)
    logging.getLogger().removeHandler(ear)


def answer_to(port: int, data: bytes) -> bytes:
    """All bytes received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        parts = []
        try:
            connection.sendall(data)
            while part := connection.recv(65_536):
                parts.append(part)
        except ConnectionError:
            pass  # the server may refuse without reading to the end, and faults may cut the connection
        return b"".join(parts)


def check(answer: bytes, method: str) -> int:
    """The status of a well-formed answer; 0 for no answer, as after a cut."""
    if not answer:
        return 0
    if answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status < 400 or method == "HEAD":
        return status
    assert b"application/json" in head, answer[:300]
    # Readiness answers with an empty body or with 503.
    said = json.loads(body) if body else {"ready": False}
    assert said.get("error") or said.get("ready") is False, answer[:300]
    return status


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    method=st.sampled_from([*METHODS, *["POST"] * 8, *["GET"] * 3]),
    path=st.sampled_from(PATHS),
    body=BODIES,
    headers=st.dictionaries(st.sampled_from(HEADERS), HEADER_TEXTS, max_size=4),
    faults=st.just([]) | st.lists(st.sampled_from(FAULTS), max_size=3),
)
def test_no_request_is_too_odd(
    running: Running, method: str, path: str, body: bytes, headers: dict[str, str], faults: list[RequestFault]
) -> None:
    running.backend.change_faults(Change(tuple(faults)))
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    try:
        answer = answer_to(running.port, "\r\n".join(lines).encode("latin-1", errors="replace") + b"\r\n\r\n" + body)
        status = check(answer, method)
        event(f"status {status}")
        assert status < 500 or status == 503, answer[:300]
        assert running.complaints == []
    finally:
        running.reset()
        running.complaints.clear()
    assert check(answer_to(running.port, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "GET") == 200


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(["", *PATHS]), data=st.binary(max_size=300))
def test_no_bytes_are_too_odd(running: Running, path: str, data: bytes) -> None:
    if path:
        data = b"POST " + path.encode() + b" HTTP/1.1\r\n" + data
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        try:
            while part := connection.recv(65_536):
                parts.append(part)
        except ConnectionError:
            pass
    status = check(b"".join(parts), "POST")
    assert status < 500 or status == 503
    assert running.complaints == []


# Every field of a body that is read, each with a deeply nested value.
DEEP = [
    *[("/v1/completions", '{"prompt": "a", "NAME": @}'.replace("NAME", name)) for name in
      ("model", "prompt", "max_tokens", "n", "best_of", "stream", "stream_options", "seed", "stop", "mock_fault",
       "temperature", "logit_bias", "suffix", "unknown")],
    ("/v1/completions", '{"prompt": "a", "stream_options": {"include_usage": @}}'),
    ("/v1/completions", '{"prompt": "a", "mock_fault": {"kind": "status", "status": @}}'),
    *[("/v1/chat/completions", text) for text in
      ('{"messages": @}', '{"messages": [@]}', '{"messages": [{"role": @}]}', '{"messages": [{"content": @}]}',
       '{"messages": [{"content": [{"text": @}]}]}', '{"messages": [{}], "tools": @}', '{"max_completion_tokens": @}')],
    *[("/v1/responses", '{"input": "a", "NAME": @}'.replace("NAME", name)) for name in
      ("input", "instructions", "max_output_tokens", "stream_options")],
    *[("/v1/embeddings", '{"input": "a", "NAME": @}'.replace("NAME", name)) for name in
      ("input", "dimensions", "encoding_format")],
    *[("/v1/updates", '{"NAME": @}'.replace("NAME", name)) for name in ("model", "prompt", "seed", "mock_fault")],
    *[("/v2/models/any/infer", text) for text in
      ('{"inputs": @}', '{"inputs": [@]}', '{"inputs": [{"name": @}]}', '{"inputs": [{"name": "a", "datatype": @}]}',
       '{"inputs": [{"name": "a", "datatype": "BYTES", "shape": @}]}',
       '{"inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": @}]}',
       '{"inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": [{"a": @}]}]}',
       '{"inputs": [{"name": "a", "datatype": "INT32", "shape": [1], "data": [{"a": @}]}]}',
       '{"inputs": [{"name": "a", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": @}}]}',
       '{"inputs": [{"name": "a", "datatype": "INT32", "shape": [1], "data": [1]}], "parameters": {"max_tokens": @}}',
       '{"inputs": [{"name": "a", "datatype": "INT32", "shape": [1], "data": [1]}], "id": @, "outputs": @}')],
    *[("/mock/faults", text) for text in
      ('{"set": @}', '{"clear": @}', '{"clear": [@]}', '{"set": {"a": @}}', '{"set": [{"kind": @}]}',
       '{"set": [{"kind": "status", "status": @}]}', '{"set": [{"kind": "slow", "factor": 2, "first": @}]}',
       '{"set": [{"kind": "out-of-memory", "dead": @}]}', '{"set": [{"kind": "metrics", "how": @}]}')],
    ("/mock/pin", '{"model": @}'), ("/mock/pin", '{"model": "any", "pinned": @}'), ("/mock/reset", '{"nonce": @}'),
    ("/tokenize", '{"prompt": @}'), ("/detokenize", '{"tokens": @}'), ("/v2/repository/index", '{"ready": @}'),
    ("/v1/load_lora_adapter", '{"lora_name": @}'),
    ("/v1/load_lora_adapter", '{"lora_name": "a", "base_model_name": @}'),
]  # fmt: skip
DEPTHS = [300, 500, 800, 900, 930, 945, 955, 960, 963, 966, 969, 972, 975, 978, 981, 984, 987, 990]


@pytest.mark.parametrize(("path", "body"), DEEP, ids=[f"{path} {body}" for path, body in DEEP])
def test_nothing_is_nested_too_deep(running: Running, path: str, body: str) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)) as connection:
        for depth in DEPTHS:
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                connection.request("POST", path, body.replace("@", opening * depth + "1" + closing * depth))
                answer = connection.getresponse()
                text = answer.read()
                assert answer.status in (200, 400), (depth, text[:300])
                assert answer.status == 200 or json.loads(text)["error"], (depth, text[:300])
    complaints = running.complaints[:]
    running.complaints.clear()
    running.reset()
    assert complaints == []


@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/tokenize", "/mock/faults"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP, identity", "junk"])
def test_an_encoded_body_is_refused(running: Running, path: str, encoding: str) -> None:
    whole = gzip.compress(b'{"prompt": "a"}')
    for body in (whole, whole[:-6], b"xxxx", b"\x1f\x8b\x08\x00junk"):
        lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
        head = "\r\n".join([*lines, f"Content-Encoding: {encoding}"]).encode() + b"\r\n\r\n"
        answer = answer_to(running.port, head + body)
        assert check(answer, "POST") == 415, answer
        assert b"expected identity" in answer
    assert running.complaints == []


def test_the_ear_hears(running: Running, tmp_path: Path) -> None:
    logging.getLogger("mockgpu.server.listening").error("planted")
    assert running.complaints == ["planted"]
    running.complaints.clear()
