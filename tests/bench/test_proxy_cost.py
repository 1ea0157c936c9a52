"""What the live balancer costs: CPU time per request, beside that of a bare reverse proxy made of the same library.

Both stand in front of the same backend, take the same load in turns, and are compared in the same run; so the machine
and its other work matter little. The balancer has every mechanism on and eight backends to choose from.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.bench.quiet import Gate
from tests.harness.live.balancers import balancing
from tests.harness.live.helpers import HOST, ROOT

MOST = 2.5
ROUNDS = 5
REQUESTS = 1_500
CONNECTIONS = 16
BACKENDS = 8
HERE = Path(__file__).parent
BACKEND = ROOT / "tests" / "harness" / "load" / "lean_server.py"


@contextmanager
def printing_its_port(*words: str) -> Iterator[tuple[int, int]]:
    """Process id and port of a Python script that prints its port, and leaves at the end of its input."""
    child = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    try:
        yield child.pid, int(child.stdout.readline())
    finally:
        child.stdin.close()
        child.stdout.close()
        assert child.wait(20) == 0


def cpu_s(pid: int) -> float:
    """Time that a process has used the processor so far, in user and system mode."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def cost_s(pid: int, port: int, requests: int) -> float:
    """CPU time of a process per request that it passes on."""
    words = [sys.executable, str(HERE / "load_client.py"), str(port), str(CONNECTIONS), str(requests)]
    before_s = cpu_s(pid)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    after_s = cpu_s(pid)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "0", "wrong answers"
    return (after_s - before_s) / requests


def test_a_request_costs_little_more_than_through_a_bare_proxy(tmp_path: Path, gate: Gate) -> None:
    costs: dict[str, list[float]] = {"bare": [], "balancer": []}
    with ExitStack() as stack:
        _, backend_port = stack.enter_context(printing_its_port(str(BACKEND)))
        backend = f"http://{HOST}:{backend_port}"
        bare = stack.enter_context(printing_its_port(str(HERE / "bare_proxy.py"), backend))
        balancer = stack.enter_context(balancing(tmp_path, [backend]))
        for number in range(1, BACKENDS):  # one server under several names: only the choice grows
            assert balancer.ask("POST", "/backends", {"id": f"more-{number}", "url": backend})[0] == 201
        for turn in range(ROUNDS + 1):
            for name, (pid, port) in {"bare": bare, "balancer": (balancer.child.pid, balancer.port)}.items():
                cost = cost_s(pid, port, REQUESTS)
                if turn:  # the first one fills pools and windows
                    costs[name].append(cost)
    medians = {name: statistics.median(values) for name, values in costs.items()}
    ratio = medians["balancer"] / medians["bare"]
    print(
        f"CPU per request: {medians['balancer'] * 1e6:.0f} µs, bare {medians['bare'] * 1e6:.0f} µs, ratio {ratio:.2f}"
    )
    gate.require(ratio <= MOST, f"{ratio:.2f} of a bare proxy, at most {MOST}: {costs}")
