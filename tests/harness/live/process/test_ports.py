"""The block of ports: a function of the seed, below the kernel's range, and free."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from unittest.mock import MagicMock

import pytest

from harness.claims.file import MOST_LISTEN
from harness.live.process import ports
from harness.live.process.ports import BLOCK, BLOCKS, FIRST_PORT, HOST, MOST_BACKENDS, PortBlock, is_free, port_block
from harness.scenario.model import HarnessError
from tests.harness.live.helpers import free_block


@pytest.fixture
def taken() -> set[int]:
    """Ports that count as taken during the test."""
    return set()


@pytest.fixture
def only_these(taken: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the ports in `taken` count as taken, independent of this machine."""
    monkeypatch.setattr(ports, "is_free", lambda port: port not in taken)
    monkeypatch.setattr(ports, "bound", lambda port: None if port in taken else MagicMock())


@pytest.mark.usefixtures("only_these")
def test_the_same_seed_gives_the_same_block_and_seeds_differ() -> None:
    assert free_block(7, 4) == free_block(7, 4)
    assert free_block(7, 4) == free_block(7, MOST_BACKENDS)
    assert len({free_block(seed, 4).base for seed in range(100)}) > 50


def numbers_of(block: PortBlock, backends: int) -> list[int]:
    own = [block.balancer, block.admin, block.fault_control, block.fleet_control, block.lock]
    return own + [block.proxy(n) for n in range(backends)] + [block.backend(n) for n in range(backends)]


@pytest.mark.usefixtures("only_these")
def test_all_ports_differ_and_lie_in_their_block_below_the_kernels_range() -> None:
    for seed in range(500):
        block = free_block(seed, MOST_BACKENDS)
        numbers = numbers_of(block, MOST_BACKENDS)
        assert len(set(numbers)) == len(numbers)
        assert FIRST_PORT <= block.base <= min(numbers)
        assert max(numbers) < block.base + BLOCK <= 32768
        assert (block.base - FIRST_PORT) % BLOCK == 0


@pytest.mark.usefixtures("only_these")
@pytest.mark.parametrize("position", range(5 + 2 * 3))
def test_one_taken_port_moves_to_the_next_block(taken: set[int], position: int) -> None:
    first = free_block(7, 3)
    taken.add(numbers_of(first, 3)[position])
    assert free_block(7, 3).base == FIRST_PORT + (first.base - FIRST_PORT + BLOCK) % (BLOCK * BLOCKS)


@pytest.mark.usefixtures("only_these")
def test_a_port_of_a_backend_that_is_not_there_does_not_count(taken: set[int]) -> None:
    first = free_block(7, 3)
    taken |= {first.proxy(3), first.backend(3)}
    assert free_block(7, 3) == first


@pytest.mark.usefixtures("only_these")
def test_after_the_last_block_comes_the_first(taken: set[int]) -> None:
    taken |= set(range(FIRST_PORT + BLOCK, 32768))
    assert {free_block(seed, 2).base for seed in range(50)} == {FIRST_PORT}


@pytest.mark.usefixtures("only_these")
def test_none_free_is_one_line(taken: set[int]) -> None:
    taken |= set(range(65536))
    with pytest.raises(
        HarnessError, match=r"^no 64 free ports in a row between 20000 and 32160 on 127\.0\.0\.1"
    ) as caught:
        free_block(7, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("only_these")
def test_more_backends_than_ports() -> None:
    with pytest.raises(HarnessError, match="29 backends: a live run has ports for 28"):
        free_block(7, MOST_BACKENDS + 1)


def test_a_claims_file_may_name_as_many_backends_as_there_are_ports() -> None:
    assert MOST_LISTEN == MOST_BACKENDS


# --- held ---------------------------------------------------------------------------------------------------

HOLDS = """
import sys, time
from harness.live.process.ports import port_block
with port_block(int(sys.argv[1]), 2) as block:
    print(block.base, flush=True)
    time.sleep(600)
"""


def test_a_held_block_is_nobody_elses_until_it_is_let_go() -> None:
    with port_block(77, 2) as first:
        with port_block(77, 2) as second:
            assert second != first, "though nothing listens in the first"
        assert free_block(77, 2) == second
    assert free_block(77, 2) == first


def test_an_error_lets_go() -> None:
    before = free_block(77, 2)
    with pytest.raises(ZeroDivisionError), port_block(77, 2):
        _ = 1 / 0
    assert free_block(77, 2) == before


def test_a_killed_process_lets_go() -> None:
    before = free_block(77, 2)
    with subprocess.Popen([sys.executable, "-c", HOLDS, "77"], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert int(holder.stdout.readline()) == before.base
            assert free_block(77, 2) != before
        finally:
            holder.kill()
    assert free_block(77, 2) == before


def test_really_taken_and_free_again() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_taken_on_all_addresses_is_taken() -> None:
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen(1)
        assert not is_free(server.getsockname()[1])


def test_bound_but_not_listening_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        assert not is_free(holder.getsockname()[1])


def test_time_wait_does_not_count() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((HOST, 0)))
        port = server.getsockname()[1]
        client = stack.enter_context(socket.create_connection((HOST, port)))
        accepted, _ = server.accept()
        accepted.close()  # first to close: its end, on the server's port, goes to TIME_WAIT
        assert client.recv(1) == b""
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind((HOST, port))
    assert is_free(port)
