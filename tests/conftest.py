"""What holds for all tests: Hypothesis is deterministic, and tests of live parts carry the mark `live`."""

from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pytest.exit("the tests need more packages: pip install -e '.[test]'; `pytest suites/` does without", returncode=2)

from tests.laboratory import is_unchanged

# A slow moment of the machine is no fault of the code, and a test says the same of the same code each time.
settings.register_profile(
    "steelyard", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steelyard")

HERE = Path(__file__).parent
LIVE = (
    "bench",
    "harness/cli",
    "harness/live",
    "harness/load/asyncio_engine",
    "harness/load/locust_engine",
    "harness/load/results/test_progress.py",
    "harness/load/test_omission.py",
    "harness/proxy",
    "harness/targets/test_targets_live.py",
    "harness/toxiproxy",
    "harness/up",
    "mockgpu/fleet",
    "mockgpu/server",
    "mockgpu/test_aiperf.py",
    "mockgpu/test_cli.py",
    "mockgpu/test_clients_openai.py",
    "mockgpu/test_clients_triton.py",
    "mockgpu/test_failing.py",
    "mockgpu/test_fuzz.py",
    "mockgpu/test_progress.py",
    "mockgpu/test_reach.py",
    "mockgpu/test_routers.py",
    "mockgpu/test_same_trace.py",
    "mockgpu/test_streams.py",
    "test_docs_chaos.py",
    "test_docs_load.py",
    "test_docs_mockgpu.py",
    "test_live_controls.py",
    "test_readme.py",
    "test_up_page.py",
)
"""Folders and files of tests that open sockets, start processes or measure time: never two of them at once."""

SLOW = ("bench",)
"""Folders that are slow as a whole; single slow tests carry `pytest.mark.slow` themselves."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of live and slow folders; skip laboratories with nothing new to measure."""
    asked_for = "laboratory" in (config.option.markexpr or "")
    for item in items:
        path = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        for mark, places in (("live", LIVE), ("slow", SLOW)):
            if any(path == place or path.startswith(f"{place}/") for place in places):
                item.add_marker(mark)
        if (lab := item.get_closest_marker("laboratory")) is not None and not asked_for and is_unchanged(*lab.args):
            item.add_marker(pytest.mark.skip(reason=f"{lab.args[0]}: unchanged since its rows were measured"))
