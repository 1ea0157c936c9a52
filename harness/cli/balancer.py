"""`steelyard balancer`: the reference balancer as a reverse proxy in front of real backends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

ANY_SEED = 2**31

Backends = Annotated[
    list[str],
    typer.Option(
        "--backend", metavar="URL", help="http://HOST:PORT, or NAME=URL, or URL#weight=2; repeat for each backend."
    ),
]
Host = Annotated[str, typer.Option(help="Address for clients.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port for clients; 0: any free port.")]
AdminPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port of /backends and /metrics, on 127.0.0.1; --port + 1 by default."),
]
WithAdmin = Annotated[bool, typer.Option("--admin/--no-admin", help="Serve /backends and /metrics.")]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Mechanisms to switch off, such as retry,hedge; repeatable."),
]
SettingsFile = Annotated[Path | None, typer.Option(help="TOML file with the settings of the mechanisms.")]
HealthPath = Annotated[str, typer.Option(help="Route on which a ready backend answers 200.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of all random choices; random by default.")]
DrainDeadline = Annotated[
    float | None,
    typer.Option(help="Longest wait (s) for answers on shutdown, drain or leave, 30 by default; then they are cut."),
]
MaxAge = Annotated[float | None, typer.Option(help="Age (s) at which a client connection gets its last answer.")]
MaxRequests = Annotated[int | None, typer.Option(help="Requests after which a client connection is closed.")]


def balancer(
    backend: Backends,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    admin_port: AdminPort = None,
    admin: WithAdmin = True,
    without: Without = None,
    settings: SettingsFile = None,
    health_path: HealthPath = "/health",
    seed: Seed = None,
    drain_deadline_s: DrainDeadline = None,
    max_connection_age_s: MaxAge = None,
    max_connection_requests: MaxRequests = None,
) -> None:
    """Run the reference balancer in front of backends, until SIGTERM or Ctrl-C.

    Limits, ejection, slow start and latency breakers are off unless --settings gives their values; everything else is
    on.

    When it listens, it prints one line: ready, and JSON with the URLs. Health checks poll each backend's --health-path;
    backends without such a route need --without health-checks.
    """
    import asyncio
    import json
    import secrets

    from harness.balancer.core.loading import reference_spec
    from harness.proxy.serve import Listening, Serving, run
    from harness.scenario.model import ClaimsError, TargetError

    limits = _checked(max_connection_age_s, max_connection_requests, drain_deadline_s)
    if not health_path.startswith("/"):
        raise ClaimsError(f"--health-path {health_path!r}: expected a path that begins with /")
    if admin_port is None and admin:
        admin_port = port + 1 if port else 0
        if admin_port > 65_535:
            raise ClaimsError("--port 65535 leaves no port for the admin interface: add --admin-port or --no-admin")
    if admin_port == port and port and admin:
        raise ClaimsError(f"--admin-port {admin_port}: expected a port other than --port")
    effective = _settings(settings, without or [], drain_deadline_s)
    serving = Serving(
        spec=reference_spec(effective),
        host=host,
        port=port,
        admin_port=admin_port if admin else None,
        health_path=health_path,
        key_carrier="header:x-model-id",
        seed=secrets.randbelow(ANY_SEED) if seed is None else seed,
        backends=_backends(backend),
        drain_deadline_s=effective.drain_deadline_s,
        limits=limits,
    )

    def ready(listening: Listening) -> None:
        message = {"url": listening.url, "admin": listening.admin, "backends": [item.id for item in serving.backends]}
        print(f"ready {json.dumps(message)}", flush=True)

    try:
        asyncio.run(run(serving, ready))
    except OSError as error:
        raise TargetError(f"cannot listen on {host}: {error}; give another --port, --admin-port or --host") from None


def _checked(age_s: float | None, requests: int | None, drain_s: float | None) -> Any:
    """The limits of client connections. ClaimsError for invalid numbers."""
    from harness.proxy.client_connections import ConnectionLimits
    from harness.scenario.model import ClaimsError

    if drain_s is not None and not 0 < drain_s < float("inf"):
        raise ClaimsError(f"--drain-deadline-s {drain_s:g}: expected above 0")
    try:
        return ConnectionLimits(age_s, requests)
    except ValueError as error:
        raise ClaimsError(f"--max-connection-{str(error).replace('_', '-', 1)}") from None


def _backends(texts: list[str]) -> tuple[Any, ...]:
    """The backends' addresses. ClaimsError for an invalid one, or two with the same name or address."""
    from harness.proxy.upstreams import address_from_text
    from harness.scenario.model import ClaimsError

    backends = []
    try:
        backends = [address_from_text(text) for text in texts]
    except ValueError as error:
        raise ClaimsError(str(error)) from None
    for attribute in ("id", "address"):
        values = [getattr(item, attribute) for item in backends]
        duplicate = next((value for value in values if values.count(value) > 1), None)
        if duplicate is not None:
            raise ClaimsError(f"--backend {duplicate} is given twice; expected different names and addresses")
    return tuple(backends)


def _settings(path: Path | None, without: list[str], drain_deadline_s: float | None) -> Any:
    """The reference's production settings, changed by a settings file and options, without disabled mechanisms."""
    from dataclasses import replace

    from harness.balancer.core.settings_file import settings_from
    from harness.balancer.settings import Settings
    from harness.scenario.model import ClaimsError
    from harness.scenario.validation import nearest
    from harness.targets.reference import ReferenceTarget

    off = [name.strip().replace("-", "_") for item in without for name in item.split(",")]
    for name in off:
        if name not in ReferenceTarget.switches:
            raise ClaimsError(f"--without {name!r} is unknown; {nearest(name, ReferenceTarget.switches)}")
    settings = Settings() if path is None else settings_from(path, Settings())
    if drain_deadline_s is not None:
        settings = replace(settings, drain_deadline_s=drain_deadline_s)
    return settings.without(frozenset(off))
