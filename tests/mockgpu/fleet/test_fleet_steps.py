"""Stop, start, pause and restart of single backends of a fleet."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mockgpu.api.tags import tag_of
from mockgpu.server.attempt_log import RowOutcome
from tests.mockgpu.fleet.test_fleet import NONCE, accepts, call, fleet, until


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_stop_start_and_restart(tmp_path: Path, options: tuple[str, ...]) -> None:
    with fleet(tmp_path, *options) as it:
        it.complete(0, number=1)
        assert it.step("/fleet/gpu-0/start") == 409
        assert it.step("/fleet/gpu-0/stop") == 200
        assert not accepts(it.ports[0])
        assert it.states() == ["dead", "alive"]
        assert it.step("/fleet/gpu-0/stop") == 409
        assert it.step("/fleet/gpu-0/faults", {"set": [{"kind": "hang"}]}) == 409
        assert it.complete(1)["backend"] == "gpu-1"

        assert it.step("/fleet/gpu-0/start") == 200
        assert accepts(it.ports[0])
        it.complete(0, number=2)
        # A restart kills the process: its row must be complete before.
        until(lambda: len(it.rows(0)) == 2 and it.rows(0)[-1].outcome is RowOutcome.ANSWERED)
        assert it.step("/fleet/gpu-0/restart") == 200
        it.complete(0, number=3)
        until(lambda: len(it.rows(0)) == 3 and it.rows(0)[-1].outcome is RowOutcome.ANSWERED)
        rows = it.rows(0)
        assert [row.tag for row in rows] == [tag_of(NONCE, number) for number in (1, 2, 3)]
        # Each process starts with empty memory.
        assert [row.cold for row in rows] == [1, 1, 1]
        assert it.step("/fleet/gpu-0/dance") == 404


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_a_stop_cuts_what_is_inside(tmp_path: Path, options: tuple[str, ...]) -> None:
    with fleet(tmp_path, *options) as it, ThreadPoolExecutor() as pool:
        cut = pool.submit(it.complete, 0, number=1, max_tokens=1_000_000)
        until(lambda: len(it.rows(0)) == 1)
        assert it.step("/fleet/gpu-0/stop") == 200
        assert cut.exception(20) is not None


def test_a_paused_backend_accepts_and_says_nothing(tmp_path: Path) -> None:
    with fleet(tmp_path, "--processes") as it, ThreadPoolExecutor() as pool:
        assert it.step("/fleet/gpu-0/pause") == 200
        assert it.states() == ["paused", "alive"]
        assert accepts(it.ports[0])
        waiting = pool.submit(it.complete, 0)
        assert it.complete(1)["backend"] == "gpu-1"
        assert it.step("/fleet/gpu-0/faults", {"set": [{"kind": "hang"}]}) == 409
        assert not waiting.done()
        assert it.step("/fleet/gpu-0/resume") == 200
        assert waiting.result(20)["backend"] == "gpu-0"
        assert it.step("/fleet/gpu-0/resume") == 200
        assert it.states() == ["alive", "alive"]

        assert it.step("/fleet/gpu-0/pause") == 200
        assert it.step("/fleet/gpu-1/pause") == 200
        # A run begins with all backends resumed.
        assert it.step("/fleet/reset", {"nonce": NONCE}) == 200
        assert it.states() == ["alive", "alive"]
        assert it.complete(0)["backend"] == "gpu-0"

        assert it.step("/fleet/gpu-0/pause") == 200
        assert it.step("/fleet/gpu-0/kill") == 200
        assert it.step("/fleet/gpu-0/pause") == 409
        assert it.step("/fleet/gpu-0/resume") == 409
        assert it.step("/fleet/gpu-0/restart") == 200
        assert it.states() == ["alive", "alive"]
        assert it.step("/fleet/gpu-1/pause") == 200  # a paused backend is ended too


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_strict_models_reach_every_backend(tmp_path: Path, options: tuple[str, ...]) -> None:
    with fleet(tmp_path, "--strict-models", *options) as it:
        status, body = call(it.ports[0], "POST", "/v1/completions", {"model": "gpt-9", "max_tokens": 1})
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        assert it.complete(0, model="tiny")["model"] == "tiny"
