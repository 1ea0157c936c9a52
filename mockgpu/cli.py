"""The ``mockgpu`` command: ``serve`` a fleet, list the ``models`` of the catalogue, draw a ``picture``.

Usage errors: one line ``mockgpu: error: MESSAGE`` on standard error and exit code 2.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mockgpu.gpu.catalogue import GPUS, MODELS, Setup, SetupError, setup_of
from mockgpu.server.attempt_log import LOG_ROWS

app = typer.Typer(
    help="Mock GPU model servers for testing load balancers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# Raised by typer for invalid options. Not every version of typer has a public name for the class.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


LONG_LOAD_S = 1.0
MAX_NAMED = 4
MAX_LOG_ROWS = 100_000_000


def _fail(message: str) -> NoReturn:
    print(f"mockgpu: error: {message}", file=sys.stderr, flush=True)
    raise typer.Exit(2)


@app.command()
def serve(
    backends: Annotated[int, typer.Option(min=1, help="Number of backends, on consecutive ports from --port.")] = 1,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the first backend.")] = 9001,
    ports: Annotated[str, typer.Option(help="All ports, as 9001,9002,...; instead of --backends, --port.")] = "",
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; without --token control calls must be local."),
    ] = "127.0.0.1",
    gpu: Annotated[str, typer.Option(help="GPU of the catalogue, see `mockgpu models`.")] = "h100-80gb",
    model: Annotated[str, typer.Option(help="Model of the catalogue, served under any name.")] = "llama-8b",
    setup: Annotated[Path | None, typer.Option(help="JSON file of a setup, instead of --gpu and --model.")] = None,
    time_scale: Annotated[float, typer.Option(help="Factor for all durations.")] = 1.0,
    control_port: Annotated[int, typer.Option(min=0, max=65535, help="Control port; 0: any free port.")] = 0,
    token: Annotated[str, typer.Option(envvar="MOCKGPU_TOKEN", help="x-mock-token of control calls.")] = "",
    processes: Annotated[bool, typer.Option("--processes", help="One process per backend.")] = False,
    nonce: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Run number expected in request tags.")] = 0,
    strict_models: Annotated[bool, typer.Option("--strict-models", help="404 for models not in the setup.")] = False,
    log_rows: Annotated[int, typer.Option(min=1, max=MAX_LOG_ROWS, help="Requests per log.")] = LOG_ROWS,
    with_parent: Annotated[bool, typer.Option("--with-parent", help="Stop when the parent process ends.")] = False,
) -> None:
    """Serve backends gpu-0, gpu-1, ... until SIGTERM or SIGINT.

    When all backends listen, one line is printed: `ready` and JSON with ids and ports.
    """
    if with_parent:
        from mockgpu.fleet.parent_death import die_with_parent

        # SIGTERM allows an orderly shutdown; the child processes use SIGKILL.
        die_with_parent(signal.SIGTERM)
    try:
        fleet_setup = (setup_of(gpu, model) if setup is None else _read_setup(setup)).scaled(time_scale)
        numbers = _port_numbers(ports) if ports else tuple(range(port, port + backends))
    except SetupError as error:
        _fail(str(error))
    if len(set(numbers)) < len(numbers) or not all(0 < number < 65536 for number in numbers):
        option = "--ports" if ports else "--port and --backends"
        named = ", ".join(map(str, numbers)) if len(numbers) <= MAX_NAMED else f"{numbers[0]} to {numbers[-1]}"
        _fail(f"ports {named}: expected distinct ports from 1 to 65535; check {option}")
    # Imported here to keep --help and `models` fast.
    from mockgpu.fleet.fleet import FleetSettings, serve_until_signal
    from mockgpu.fleet.members import MemberError
    from mockgpu.server.listening import PortError
    from mockgpu.server.run_state import Options

    options = Options(strict_models=strict_models)
    settings = FleetSettings(fleet_setup, numbers, host, control_port, token, processes, nonce, log_rows, options)
    try:
        serve_until_signal(settings, _hint(fleet_setup))
    except (PortError, MemberError) as error:
        _fail(str(error))


@app.command()
def picture(
    backends: Annotated[int, typer.Option(min=1, max=16, help="Backends in each of the two fleets.")] = 3,
    seconds: Annotated[int, typer.Option(min=1, max=3600, help="Simulated time.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the SVG to this file instead of standard output.")] = None,
) -> None:
    """Draw model loads and evictions in a small fleet, with and without affinity, as SVG."""
    from mockgpu.picture.drawing import picture as draw

    svg = draw(backends, seconds, seed)
    if out is None:
        print(svg, end="")
        return
    try:
        out.write_text(svg, encoding="utf-8", newline="\n")
    except OSError as error:
        _fail(f"--out {out}: {error.strerror}; give a writable file")


@app.command()
def models() -> None:
    """List the GPUs and models of the catalogue, with sizes and speeds."""
    from rich.console import Console
    from rich.table import Table

    gpus = Table(title="GPUs")
    for heading in ("gpu", "memory MB", "running", "queue", "update s"):
        gpus.add_column(heading, justify="left" if heading == "gpu" else "right")
    for gpu in GPUS.values():
        limit = "no limit" if gpu.queue_limit is None else str(gpu.queue_limit)
        gpus.add_row(gpu.name, str(gpu.memory_mb), str(gpu.max_running), limit, f"{gpu.update_s:g}")
    table = Table(title="Models, at batch size 1 on an H100")
    for heading in ("model", "MB", "load s", "prefill/s", "step ms", "+ ms per job", "KV KiB"):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=heading == "model")
    for model in MODELS.values():
        table.add_row(
            model.name,
            str(model.weights_mb),
            f"{model.load_s:g}",
            f"{model.prefill_tokens_per_s:g}",
            f"{model.decode_step_s * 1000:g}",
            f"{model.decode_slope_s * 1000:g}",
            f"{model.kv_bytes_per_token / 1024:.4g}",
        )
    console = Console()
    console.print(gpus)
    console.print(table)


def _hint(setup: Setup) -> str:
    """Note on slow first answers; "" if no model takes 1 s or more to load."""
    loads = {model.name: model.load_s for model in (setup.default_model, *setup.models) if model.load_s >= LONG_LOAD_S}
    if not loads:
        return ""
    slowest = sorted(loads, key=lambda name: -loads[name])[:MAX_NAMED]
    named = ", ".join(f"{name} {loads[name]:.3g} s" for name in slowest)
    rest = f" and {len(loads) - MAX_NAMED} more" if len(loads) > MAX_NAMED else ""
    return (
        f"mockgpu: a model loads on its first request, which waits: {named}{rest}; "
        "--time-scale 0.01 divides every duration by 100, --model tiny-free needs no load"
    )


def _read_setup(path: Path) -> Setup:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SetupError(f"setup file {path}: {error.strerror}; expected a readable JSON file") from None
    try:
        return Setup.from_json(text)
    except SetupError as error:
        raise SetupError(f"setup file {path}: {str(error).removeprefix('setup: ')}") from None


def _port_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SetupError(f"--ports {text!r}: expected comma-separated numbers, as 9001,9002") from None


def main() -> None:
    """Entry point of the ``mockgpu`` command."""
    try:
        code = app(standalone_mode=False)
    except _USAGE_ERROR as error:
        message = getattr(error, "format_message", error.__str__)()
        if message:  # empty if the help was printed
            print(f"mockgpu: error: {message.rstrip('.')}; see --help", file=sys.stderr)
        code = 2
    sys.exit(code or 0)
