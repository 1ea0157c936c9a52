"""The light background load of `steelyard up`: an open loop in a thread.

Requests are sent at a constant rate, independent of earlier ones; latency counts from the intended send time.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import deque
from contextlib import suppress

import aiohttp

from harness.live.statistics import ObservedRequest
from harness.load.wire import request_of
from harness.scenario.arrivals import Arrival
from harness.scenario.model import Kind, Method

PROMPT_TOKENS, OUTPUT_TOKENS = 32, 16
TIMEOUT_S = 10.0
KEPT_S = 60.0
NONCE = 1
NUMBERS = 1 << 21
"""Request numbers restart at 0 after this many: a tag has room for no more."""


class BackgroundLoad:
    """Sends `rate_per_s` requests to `url`, each for one of `models` model names (or keys) at random."""

    def __init__(self, url: str, rate_per_s: float, models: int, key_carrier: str, protocol: str, seed: int) -> None:
        self._url = url.rstrip("/")
        self._rate_per_s = rate_per_s
        self._models = models
        self._key_carrier = key_carrier
        self._protocol = protocol
        self._seed = seed
        self._random = random.Random(f"up/{seed}")
        self._results: deque[ObservedRequest] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._main: asyncio.Task[None] | None = None
        self.failed: BaseException | None = None

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and cancel requests in flight."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # its loop has ended in the meantime
                self._loop.call_soon_threadsafe(lambda: self._main.cancel() if self._main else None)
            self._thread.join()

    def answered(self, since_s: float) -> list[ObservedRequest]:
        """Requests that ended at `since_s` (CLOCK_MONOTONIC) or later, at most `KEPT_S` back."""
        return [item for item in list(self._results) if item.end_s >= since_s]

    def _run(self) -> None:
        try:
            self._main = self._loop.create_task(self._send_all())
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            return
        except Exception as error:  # raised by Environment.check
            self.failed = error
        finally:
            self._loop.close()

    async def _send_all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
            asyncio.TaskGroup() as group,
        ):
            start_s, number = time.monotonic(), 0
            while True:
                due_s = start_s + number / self._rate_per_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                group.create_task(self._send(session, number, due_s))
                number += 1

    async def _send(self, session: aiohttp.ClientSession, number: int, due_s: float) -> None:
        wire = request_of(self._arrival(number), self._key_carrier, self._seed, NONCE, self._protocol)
        status, backend = 0, ""
        try:
            async with session.request(
                wire.method, self._url + wire.path, headers=dict(wire.headers), data=wire.body
            ) as response:
                body = await response.read()
            status, backend = response.status, _backend_in(body)
        except (aiohttp.ClientError, OSError, TimeoutError):
            status = 0
        now_s = time.monotonic()
        self._results.append(ObservedRequest(now_s, now_s - due_s, status, backend))
        while self._results[0].end_s < now_s - KEPT_S:
            self._results.popleft()

    def _arrival(self, number: int) -> Arrival:
        return Arrival(
            number=number % NUMBERS,
            stream=0,
            at_s=0.0,
            kind=Kind.INFERENCE,
            method=Method.POST,
            key=self._random.randrange(self._models),
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            connection=-1,
            fresh=False,
            timeout_s=TIMEOUT_S,
        )


def _backend_in(body: bytes) -> str:
    """The backend named in an answer; empty if there is none."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    name = answer.get("backend", "") if isinstance(answer, dict) else ""
    return name if isinstance(name, str) else ""
