"""The control API of the embedded server, and of a real one if installed, against recorded answers of Toxiproxy 2.12.0.

`recorded/control_api_2.12.0.jsonl` has one exchange per line: `req` (method and path), `in` (body), `status`, `hdr`,
`body`. `<P0>` to `<P9>` stand for ten free ports, `<EPH>` for any other. Status, media type and JSON body are
compared, except `Logger`, the decoder's texts after `bad request body`, texts of 500s other than
`address already in use`, the version, and bodies of 301, 404 and 405 that are not JSON.
"""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import ServerProcess, free_ports

RECORDED = Path(__file__).parent / "recorded" / "control_api_2.12.0.jsonl"

# The transcript does not record these.
USER_AGENTS = {
    "ua-block": "Mozilla/5.0 (X11)",
    "ua-block-version": "Mozilla/5.0 (X11)",
    "ua-lower": "mozilla/5.0",
    "ua-prefix": "x Mozilla/5.0",
    "ua-bare": "Mozilla",
    "ua-404": "Mozilla/5.0 (X11)",
    "ua-405": "Mozilla/5.0 (X11)",
}
NOT_A_REQUEST = "pop-port0-replaced"  # a remark of the recorder on two populates with port 0

LOOPBACK_INSTEAD_OF_ALL = ("create-nolisten", "create-any0", "create-colon0")
NO_SUCH_TOXIC = ("tox-show", "tox-del")  # requests for the refused slicer

AFTER_RESET = "index3"
LISTENS_EVERYWHERE = (*LOOPBACK_INSTEAD_OF_ALL, "del-nl", "del-any", "del-col")
"""Not sent to a real server, which would listen on all interfaces."""


def expected_here(label: str, real: dict[str, Any]) -> dict[str, Any]:
    """The expected answer of the embedded server: the real one, except for deliberate differences."""
    if label in LOOPBACK_INSTEAD_OF_ALL:
        return {**real, "body": {**real["body"], "listen": "127.0.0.1:<EPH>"}}
    if label == "tox-add-slicer":  # average_size 0 would crash the real server at the first data
        return {"status": 400, "media": "text/plain", "body": {"error": "bad request body", "status": 400}}
    if label in NO_SUCH_TOXIC:
        return {"status": 404, "media": "text/plain", "body": {"error": "toxic not found", "status": 404}}
    if label == "tox-index":
        return {**real, "body": [toxic for toxic in real["body"] if toxic["type"] != "slicer"]}
    return real


def forget_order_of_reset(*listings: dict[str, Any]) -> None:
    """A real server resets proxies in Go's random map order, and stops at a port conflict of two proxies."""
    for listing in listings:
        assert {listing[name].pop("enabled") for name in ("dis", "f1")} == {True, False}
        del listing["new"]["enabled"]  # started before the stop, or not


class Replayer:
    """Sends recorded requests to a server and returns its answers in comparable form."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ports = {f"<P{index}>": str(port) for index, port in enumerate(free_ports(10))}

    def send(self, label: str, request: str, body: str | None) -> dict[str, Any]:
        method, path = request.split(" ", 1)
        for mark, port in self._ports.items():
            body = body.replace(mark, port) if body else body
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            headers = {"User-Agent": USER_AGENTS.get(label, "replay/1")}
            connection.request(method, path, body.encode() if body else None, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        request_id = response.headers.get("X-Toxiproxy-Request-Id")
        assert request_id is None or re.fullmatch("[0-9a-v]{20}", request_id)
        return {
            **comparable(response.status, response.headers.get("Content-Type", ""), self._with_port_marks(text)),
            "request_id": request_id is not None,
        }

    def _with_port_marks(self, text: str) -> str:
        for mark, port in self._ports.items():
            text = text.replace(port, mark)
        return re.sub(r"(127\.0\.0\.1|\[::1?\]):\d{4,5}", r"\1:<EPH>", text)


def comparable(status: int, content_type: str, text: str) -> dict[str, Any]:
    """An answer without irrelevant differences."""
    try:
        body = json.loads(text, object_hook=lambda fields: {k: v for k, v in fields.items() if k != "Logger"})
    except ValueError:
        body = text.strip()
    if isinstance(body, dict) and isinstance(body.get("error"), str):
        body["error"] = comparable_error(status, body["error"])
    if isinstance(body, dict) and "version" in body:
        body["version"] = "any"
    if status in (301, 404, 405) and isinstance(body, str):
        return {"status": status, "media": "any", "body": "any"}
    return {"status": status, "media": content_type.split(";")[0], "body": body}


def comparable_error(status: int, text: str) -> str:
    if text.startswith("bad request body"):
        return "bad request body"
    if status != 500:
        return text
    return "address already in use" if "address already in use" in text else "any"


@pytest.mark.parametrize("kind", rig.KINDS)
def test_answers_as_recorded(kind: str) -> None:
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 186
    differences = []
    with rig.start_server(kind) as server:
        replayer = Replayer(server.port)
        for line in lines:
            label = line["label"]
            if label == NOT_A_REQUEST or (kind == "real" and label in LISTENS_EVERYWHERE):
                continue
            real = comparable(line["status"], line["hdr"].get("content-type", ""), line["body"])
            expected = {**(expected_here(label, real) if kind == "embedded" else real), "request_id": line["rid"]}
            observed = replayer.send(label, line["req"], line["in"])
            if kind == "real" and label == AFTER_RESET:
                forget_order_of_reset(expected["body"], observed["body"])
            if observed != expected:
                differences.append(f"{label}: {line['req']} {line['in']}\n  expected {expected}\n  saw      {observed}")
    assert not differences, "\n".join(differences)


def test_populating_port_0_replaces_the_proxy_each_time(server: ServerProcess) -> None:
    replayer = Replayer(server.port)
    body = json.dumps([{"name": "z0", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}])

    def listen() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", "/populate", body)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return str(answer["proxies"][0]["listen"])

    assert listen() != listen()
    replayer.send("", "DELETE /proxies/z0", None)
