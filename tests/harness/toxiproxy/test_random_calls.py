"""Ten thousand random calls, many of them invalid, while connections open, send data and close."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from harness.toxiproxy.client import FaultProxy
from harness.toxiproxy.toxics import TOXIC_TYPES
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import GARBAGE, Backend, ServerProcess

FIXED, DRAWN, EXAMPLES = 4000, 6000, 4
ANSWER_TIMEOUT_S = 3.0  # for an answer of the API, on a busy machine


class Caller:
    """Makes random calls for a few proxies, from a seed; many of them are invalid."""

    NAMES = ("a", "b", "c")
    NUMBERS = (0, 0, 1, 2, 10, 100, 1000, 65536, -1, -(2**63), 2**63 - 1, 2**63, 0.5, None, "1", True)

    def __init__(self, seed: int, upstreams: list[str], listens: list[str]) -> None:
        self._random = Random(seed)
        self._upstreams = upstreams
        self._listens = listens

    def call(self) -> tuple[str, str, bytes | None]:
        """Draw a call: method, path and body."""
        draw = self._random
        proxy = f"/proxies/{draw.choice(self.NAMES)}"
        toxic = f"{proxy}/toxics/{draw.choice(tuple(TOXIC_TYPES))}_{draw.choice(('upstream', 'downstream'))}"
        match draw.randrange(16):
            case 0:
                return (
                    "POST",
                    draw.choice(("/proxies", "/populate", proxy, f"{proxy}/toxics", toxic)),
                    draw.choice(GARBAGE),
                )
            case 1:
                return (
                    draw.choice(("GET", "PUT", "HEAD", "DELETE")),
                    draw.choice(("/proxies", "/reset", "/x", toxic)),
                    None,
                )
            case 2:
                return "POST", "/reset", None
            case 3:
                return "DELETE", proxy, None
            case 4:
                return "POST", "/populate", json.dumps([self._proxy() for _ in range(draw.randrange(4))]).encode()
            case 5 | 6:
                return "POST", "/proxies", json.dumps(self._proxy()).encode()
            case 7 | 8:
                fields = draw.sample(("enabled", "enabled", "enabled", "upstream", "listen"), 1)
                update = {key: value for key, value in self._proxy().items() if key in fields}
                return "PATCH", proxy, json.dumps(update).encode()
            case 9 | 10:
                return (
                    "PATCH",
                    toxic,
                    json.dumps({"attributes": self._attributes(), "toxicity": self._toxicity()}).encode(),
                )
            case 11:
                return "DELETE", toxic, None
            case _:
                return "POST", f"{proxy}/toxics", json.dumps(self._toxic()).encode()

    def _proxy(self) -> dict[str, Any]:
        draw = self._random
        return {
            "name": draw.choice(self.NAMES),
            "upstream": draw.choice(self._upstreams),
            "listen": draw.choice(self._listens),
            "enabled": draw.random() < 0.8,
        }

    def _toxic(self) -> dict[str, Any]:
        draw = self._random
        return {
            "type": draw.choice(tuple(TOXIC_TYPES)),
            "stream": draw.choice(("upstream", "downstream", "upstream", "downstream", "sideways")),
            "toxicity": self._toxicity(),
            "attributes": self._attributes(),
        }

    def _toxicity(self) -> object:
        return self._random.choice((0, 0.5, 1, 1, 1, -1, 2.5, 1e39, "x"))

    def _attributes(self) -> Mapping[str, object]:
        names = {name for toxic_type in TOXIC_TYPES.values() for name in toxic_type.attribute_names}
        if self._random.random() < 0.7:  # valid values, otherwise almost no toxic would be created
            return {name: self._random.choice((1, 5, 50, 2000)) for name in sorted(names)} | {"size_variation": 0}
        return {name: self._random.choice(self.NUMBERS) for name in sorted(names)}


def make_calls(seed: int, calls: int) -> dict[int, int]:
    """Make `calls` calls to a server while clients send data through it; returns the number of answers by status.

    Checks that each call is answered in time, with success or a refusal that names the cause, that clients were served
    meanwhile, and that a new proxy works after all proxies were deleted.
    """
    stop = threading.Event()
    exchanges = [0]

    def send_data(ports: list[int], seed: int) -> None:
        draw = Random(seed)
        while not stop.is_set():
            with contextlib.suppress(OSError), rig.connect(draw.choice(ports)) as client:
                client.settimeout(0.05)
                for _ in range(50):
                    client.sendall(bytes(draw.choice((1, 1000, 100_000))))
                    exchanges[0] += bool(client.recv(65536))
                    stop.wait(0.002)  # leaves the interpreter to the calling thread

    ports = list(rig.free_ports(3))
    with (
        contextlib.closing(Backend(rig.echo)) as backend,
        ServerProcess("--seed", f"{seed}", "--proxy-metrics") as server,
    ):
        caller = Caller(
            seed,
            [f"127.0.0.1:{backend.port}"] * 3 + ["127.0.0.1:1", "nonsense"],
            [f"127.0.0.1:{port}" for port in ports] * 2 + ["127.0.0.1:0", "nonsense", ""],
        )
        threads = [threading.Thread(target=send_data, args=(ports, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        statuses: dict[int, int] = {}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_TIMEOUT_S)
        try:
            for _ in range(calls):
                call = caller.call()
                connection.request(*call)
                answer = connection.getresponse()
                text = answer.read()
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
                assert answer.status < 500 or b"listen" in text or b"address" in text or b"port" in text, (call, text)
        finally:
            stop.set()
            connection.close()
            for thread in threads:
                thread.join()
        assert exchanges[0] > calls // 50
        client = FaultProxy("127.0.0.1", server.port)
        client.delete_all()
        rig.wait_until(lambda: all(entry.ended for entry in client.connections()), "every connection to end")
        created = client.create("a", "127.0.0.1:0", f"127.0.0.1:{backend.port}")
        with rig.connect(int(created.listen.rpartition(":")[2])) as echoed:
            rig.round_trip_s(echoed)
    return statuses


@pytest.mark.slow
def test_four_thousand_calls_get_every_status() -> None:
    statuses = make_calls(3, FIXED)
    assert set(statuses) == {200, 201, 204, 400, 404, 405, 409, 500}, statuses
    assert min(statuses.values()) >= 20, statuses


@pytest.mark.slow
@settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # a smaller seed is no simpler
@given(st.integers(0, 2**32 - 1))
def test_six_thousand_calls_from_random_seeds(seed: int) -> None:
    assert sum(make_calls(seed, DRAWN // EXAMPLES).values()) == DRAWN // EXAMPLES
