"""The control API of a running environment: a small HTTP server on loopback, which `steelyard fault` calls.

- ``GET /stage``: name, version and URLs of the balancer, names of the backends
- ``GET /faults``: the active faults
- ``POST /faults`` with ``{"backend", "kind", "words"}``: set a fault; answers after a probe of its effect
- ``POST /faults/clear`` with ``{"backend", "kind"}``, either or both null

Each call must carry the environment's token, readable only by its user, in `x-steelyard-token`. Errors of the user are
answered 400, internal errors 500, both as ``{"error": ...}``.
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
    """Serves the control API of `environment` in its own threads until `close`."""

    def __init__(self, environment: Environment) -> None:
        self.token = secrets.token_urlsafe(18)
        self._server = _Server(environment, self.token)
        self.url = f"http://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a call waiting for a probe must not delay the shutdown

    def __init__(self, environment: Environment, token: str) -> None:
        self.environment = environment
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
        """Discard: the terminal belongs to the view."""

    def _respond(self) -> None:
        if not hmac.compare_digest(self.headers.get(TOKEN, "").encode(), self.server.token.encode()):
            self._send_json(403, {"error": f"header {TOKEN} is missing or wrong"})
            return
        try:
            answer = self._answer()
        except ClaimsError as error:
            self._send_json(400, {"error": str(error)})
        except SteelyardError as error:
            self._send_json(500, {"error": str(error)})
        else:
            if answer is None:
                self._send_json(404, {"error": f"no such path: {self.path}"})
            else:
                self._send_json(200, answer)

    def _answer(self) -> Any:
        """The answer as a JSON value; None for an unknown path."""
        environment = self.server.environment
        match self.command, self.path:
            case "GET", "/stage":
                return {
                    "target": environment.target.name,
                    "version": environment.target.version,
                    "url": environment.url,
                    "admin": environment.admin,
                    "backends": environment.names,
                }
            case "GET", "/faults":
                return environment.listed()
            case "POST", "/faults":
                body = self._read_body()
                backend, kind, words = body.get("backend"), body.get("kind"), body.get("words", [])
                if not (isinstance(backend, str) and isinstance(kind, str) and _is_list_of_text(words)):
                    raise ClaimsError('expected {"backend": "gpu-0", "kind": "latency", "words": ["--latency", "1s"]}')
                effective, line = environment.add(backend, kind, words)
                return {"effective": effective, "told": line}
            case "POST", "/faults/clear":
                body = self._read_body()
                which = body.get("backend"), body.get("kind")
                if not all(item is None or isinstance(item, str) for item in which):
                    raise ClaimsError('expected {"backend": "gpu-0", "kind": "latency"}, either or both null')
                return {"told": environment.clear(*which)}
        return None

    def _read_body(self) -> dict[str, Any]:
        length = self.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LONGEST_BODY:
            raise ClaimsError(f"content-length {length!r}: expected up to {LONGEST_BODY}")
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except ValueError as error:
            raise ClaimsError(f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise ClaimsError("the body is not a JSON object")
        return body

    def _send_json(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the caller left; its request was carried out


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
