import subprocess
import sys
from pathlib import Path

import pytest

from mockgpu.cli import main
from mockgpu.fleet.fleet import FleetSettings
from mockgpu.gpu.catalogue import GPUS, MODELS, Model, Setup, setup_of


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mockgpu", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[FleetSettings]:
    """The fleets that would have been served."""
    requested: list[FleetSettings] = []

    def record(settings: FleetSettings, hint: str) -> None:
        requested.append(settings)
        print(hint, end="", file=sys.stderr)

    monkeypatch.setattr("mockgpu.fleet.fleet.serve_until_signal", record)
    return requested


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--gpu", "h100"], "h100-80gb"),
        (["serve", "--gpu", "l4-24gb"], "did you mean a100-40gb or h200-141gb? `mockgpu models` lists all"),
        (["serve", "--gpu", "xxyyzz"], "there are: a100-40gb, a100-80gb"),
        (["serve", "--model", "lama-8b"], "llama-8b"),
        (["serve", "--setup", "/nowhere.json"], "/nowhere.json"),
        (["serve", "--ports", "9001,x"], "9001,9002"),
        (["serve", "--ports", "9001,9001"], "to 65535; check --ports"),
        (["serve", "--port", "65530", "--backends", "10"], "to 65535; check --port and --backends"),
        (["serve", "--port", "many"], "--port"),
        (
            ["serve", "--backends", "70000"],
            "ports 9001 to 79000: expected distinct ports from 1 to 65535; check --port",
        ),
        (["serve", "--time-scale", "0"], "more than 0"),
        (["serve", "--time-scale", "1e300"], "or less"),
        (["serve", "--log-rows", "0"], "--log-rows"),
        (["serve", "--nonsense"], "--nonsense"),
        (["sevre"], "sevre"),
    ],
)
def test_what_the_user_got_wrong_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    served: list[FleetSettings],
    arguments: list[str],
    expected: str,
) -> None:
    assert run(monkeypatch, *arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    assert line.startswith("mockgpu: error: ") and expected in line
    assert served == []


def test_a_bad_setup_file_names_itself_and_the_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "setup.json"
    path.write_text(setup_of("tiny", "tiny").to_json().replace('"memory_mb"', '"memory"'))
    assert run(monkeypatch, "serve", "--setup", str(path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and "gpu.memory" in line


def test_options_become_a_fleet(monkeypatch: pytest.MonkeyPatch, served: list[FleetSettings], tmp_path: Path) -> None:
    path = tmp_path / "setup.json"
    setup = setup_of("tiny", "tiny-large")
    path.write_text(setup.to_json())
    assert run(monkeypatch, "serve", "--backends", "3", "--port", "9100") == 0
    arguments = "--ports 9003,9001 --time-scale 10 --processes --nonce 5 --control-port 9000 --token x --log-rows 77"
    assert run(monkeypatch, "serve", "--setup", str(path), *arguments.split()) == 0
    plain, rich = served
    assert (plain.ports, plain.setup) == ((9100, 9101, 9102), setup_of("h100-80gb", "llama-8b"))
    assert (rich.ports, rich.processes, rich.nonce) == ((9003, 9001), True, 5)
    assert (rich.control_port, rich.token) == (9000, "x")
    assert (plain.log_rows, rich.log_rows) == (500_000, 77)
    assert isinstance(rich.setup, Setup) and rich.setup == setup.scaled(10)


def test_long_loads_are_told_when_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], served: list[FleetSettings], tmp_path: Path
) -> None:
    assert run(monkeypatch, "serve") == 0
    out, error = capsys.readouterr()
    (line,) = error.splitlines()
    assert out == "" and line.startswith("mockgpu: ") and "waits: llama-8b 14 s; --time-scale 0.01" in line
    assert run(monkeypatch, "serve", "--time-scale", "0.01") == 0
    assert run(monkeypatch, "serve", "--model", "tiny-free") == 0
    assert capsys.readouterr().err == ""
    path = tmp_path / "setup.json"
    names = [f"m{number}" for number in range(6)]
    models = tuple(Model(name, 1, 2.0 + number, 1.0, 1.0) for number, name in enumerate(names))
    path.write_text(Setup(GPUS["tiny"], MODELS["tiny"], models).to_json())
    assert run(monkeypatch, "serve", "--setup", str(path)) == 0
    assert "waits: m5 7 s, m4 6 s, m3 5 s, m2 4 s and 2 more; " in capsys.readouterr().err
    assert len(served) == 4


def test_models_lists_the_whole_catalogue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*GPUS, *MODELS))


def test_help_and_no_arguments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    assert "serve" in capsys.readouterr().out
    assert run(monkeypatch) == 2
    assert "serve" in "".join(capsys.readouterr())


def test_the_hot_start_path_leaves_out_what_it_does_not_need() -> None:
    code = "import sys, mockgpu.cli, mockgpu.fleet.fleet; print({'pydantic', 'rich', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_model_needs_no_web_server() -> None:
    code = "import sys, mockgpu.gpu.model; print({'aiohttp', 'asyncio', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
