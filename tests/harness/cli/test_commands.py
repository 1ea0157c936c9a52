"""The `steelyard` command, run as a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import cli
from harness.property.declare import catalogue
from harness.scenario.model import TargetError
from tests.harness.targets.distributions import install

ROOT = Path(__file__).parent.parent.parent.parent


def steelyard(
    *words: str, folder: Path = ROOT, width: int = 100, site: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`; `site` is a folder of further distributions."""
    path = os.pathsep.join(map(str, (ROOT, *([site] if site else []))))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": str(width)}
    command = [sys.executable, "-c", "from harness.cli import main; main()", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_help_is_quick_and_names_all_commands() -> None:
    start_s = time.perf_counter()
    done = steelyard("--help")
    assert time.perf_counter() - start_s < 3
    assert done.returncode == 0
    for name in ("run", "catalogue", "targets", "balancer"):
        assert name in done.stdout


def test_the_command_loads_only_what_it_needs() -> None:
    unneeded = {"numpy", "pytest", "jinja2", "pydantic", "mockgpu.gpu", "mockgpu.server"}
    text = f"import sys, harness.cli; print(sorted({unneeded} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_version() -> None:
    assert steelyard("--version").stdout.startswith("steelyard ")


@pytest.mark.parametrize("words", [["bogus"], ["--bogus"], ["catalogue", "--format", "xml"], ["run", "--seed", "x"]])
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    assert steelyard(*words).returncode == 2


def test_an_empty_target_is_refused() -> None:
    """An unset variable must not select the reference."""
    done = steelyard("run", "--target", "", "-k", "affinity.repeat", "--world", "sim")
    assert done.returncode == 2
    assert "no target ''" in done.stdout + done.stderr


def test_catalogue_as_json_has_a_row_for_every_property() -> None:
    rows = json.loads(steelyard("catalogue", "--format", "json").stdout)
    assert [row["name"] for row in rows] == [item.name for item in catalogue()]


def test_catalogue_as_markdown_has_a_section_for_every_property() -> None:
    text = steelyard("catalogue", "--format", "markdown").stdout
    assert text.startswith("# ")
    for item in catalogue():
        assert f"\n## {item.family}\n" in text
        assert f"\n### `{item.name}`\n\n- **Promise:** {item.summary}\n- **Needs:** " in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize("width", [80, 120])
def test_catalogue_as_table_cuts_no_name(width: int) -> None:
    done = steelyard("catalogue", width=width)
    for item in catalogue():
        assert item.name in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= width


def test_targets() -> None:
    done = steelyard("targets")
    assert done.returncode == 0
    assert "affinity" in done.stdout
    for usage in ("file:FILE.toml", "nginx[:PATH]", "python:MODULE:CLASS", "reference[:FILE.toml]"):
        assert f"\n{usage}  " in done.stdout


def test_a_broken_target_of_another_package_is_listed(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "steelyard-acme", {"acme": "module_that_is_gone:ADAPTER"}, {})
    done = steelyard("targets", width=300, site=site)
    assert (done.returncode, done.stderr) == (0, "")
    assert "acme " in done.stdout and "of steelyard-acme cannot be imported" in done.stdout
    assert "affinity" in done.stdout
    done = steelyard("chaos", "--target", "acme", site=site)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("steelyard: error: target 'acme': module_that_is_gone:ADAPTER of steelyard-acme")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["run", "up", "chaos"])
def test_options_of_one_balancer_are_in_no_command(command: str) -> None:
    done = steelyard(command, "--nginx", "/usr/sbin/nginx")
    assert done.returncode == 2 and "No such option: --nginx" in done.stderr
    assert "nginx" not in steelyard(command, "--help").stdout


def test_run_is_pytest_on_the_shipped_suites(tmp_path: Path) -> None:
    done = steelyard("run", "--world", "sim", "-k", "affinity.repeat", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 pass." in done.stdout
    assert "affinity.repeat.same-backend" in done.stdout


def test_run_hands_on_the_exit_code(tmp_path: Path) -> None:
    done = steelyard("run", "--target", "referense", folder=tmp_path)
    assert done.returncode == 2
    assert "did you mean reference?" in done.stderr


def test_errors_of_the_user_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(**options: object) -> None:
        raise TargetError("nginx is\nmissing")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "steelyard: error: nginx is missing\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nope"], "steelyard: error: No such command 'nope'; see steelyard --help"),
        (["load"], "steelyard: error: Missing option '--target'; see steelyard load --help"),
        (["fault", "clear", "--nope"], "steelyard: error: No such option: --nope; see steelyard fault clear --help"),
    ],
)
def test_usage_errors_have_the_same_prefix(tmp_path: Path, words: list[str], line: str) -> None:
    done = steelyard(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.sub(r" \(Possible options?: [^)]*\)", "", done.stderr) == f"{line}\n"


@pytest.mark.parametrize("words", [[], ["fault"]])
def test_without_arguments_there_is_help(tmp_path: Path, words: list[str]) -> None:
    done = steelyard(*words, folder=tmp_path)
    assert "Usage: steelyard" in done.stdout + done.stderr and "steelyard: error" not in done.stderr
