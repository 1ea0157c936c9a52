"""The control interface of a running stage: a small HTTP server on loopback, which `steelyard fault` calls.

- ``GET /stage``: name, version and URLs of the balancer, names of the backends
- ``GET /faults``: what is in force
- ``POST /faults`` with ``{"backend", "kind", "words"}``: set a fault; answers when it was seen to take effect or not
- ``POST /faults/clear`` with ``{"backend", "kind"}``, either or both null

Every call carries the stage's token in `x-steelyard-token`, which only its user can read. What the user got wrong is
answered 400, what went wrong here 500, both as ``{"error": ...}``.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness.live.environment import Environment
from harness.live.process.ports import HOST
from harness.scenario.model import ClaimsError, SteelyardError
from harness.up.run_lock import TOKEN

LONGEST_BODY = 64 * 2**10


class Control:
    """Serves the control interface of `stage` from threads of its own until `close`."""

    def __init__(self, stage: Environment) -> None:
        self.token = secrets.token_urlsafe(18)
        self._server = _Server(stage, self.token)
        self.url = f"http://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more calls."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a call that waits for a probe must not hold up the end

    def __init__(self, stage: Environment, token: str) -> None:
        self.stage = stage
        self.token = token
        super().__init__((HOST, 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is the view's."""

    def _respond(self) -> None:
        if not hmac.compare_digest(self.headers.get(TOKEN, "").encode(), self.server.token.encode()):
            self._say(403, {"error": f"header {TOKEN} is missing or wrong"})
            return
        try:
            told = self._told()
        except ClaimsError as error:
            self._say(400, {"error": str(error)})
        except SteelyardError as error:
            self._say(500, {"error": str(error)})
        else:
            self._say(404 if told is None else 200, {"error": f"no such path: {self.path}"} if told is None else told)

    def _told(self) -> Any:
        """What is answered; None if there is no such path."""
        stage = self.server.stage
        match self.command, self.path:
            case "GET", "/stage":
                return {
                    "target": stage.target.name,
                    "version": stage.target.version,
                    "url": stage.url,
                    "admin": stage.admin,
                    "backends": stage.names,
                }
            case "GET", "/faults":
                return stage.listed()
            case "POST", "/faults":
                asked = self._asked()
                backend, kind, words = asked.get("backend"), asked.get("kind"), asked.get("words", [])
                if not (isinstance(backend, str) and isinstance(kind, str) and _are_texts(words)):
                    raise ClaimsError('expected {"backend": "gpu-0", "kind": "latency", "words": ["--latency", "1s"]}')
                effective, line = stage.add(backend, kind, words)
                return {"effective": effective, "told": line}
            case "POST", "/faults/clear":
                asked = self._asked()
                which = asked.get("backend"), asked.get("kind")
                if not all(item is None or isinstance(item, str) for item in which):
                    raise ClaimsError('expected {"backend": "gpu-0", "kind": "latency"}, either or both null')
                return {"told": stage.clear(*which)}
        return None

    def _asked(self) -> dict[str, Any]:
        length = self.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LONGEST_BODY:
            raise ClaimsError(f"content-length {length!r}: expected up to {LONGEST_BODY}")
        try:
            asked = json.loads(self.rfile.read(int(length)) or b"{}")
        except ValueError as error:
            raise ClaimsError(f"the body is no JSON: {error}") from None
        if not isinstance(asked, dict):
            raise ClaimsError("the body is no JSON object")
        return asked

    def _say(self, status: int, told: Any) -> None:
        body = json.dumps(told).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the caller did not wait; what it asked for is done all the same


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
