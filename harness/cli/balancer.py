"""`steelyard balancer`: the reference balancer as a reverse proxy in front of real backends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

ANY_SEED = 2**31

Backends = Annotated[
    list[str],
    typer.Option(
        "--backend", metavar="URL", help="http://HOST:PORT, or NAME=URL, or URL#weight=2; repeat it for each backend."
    ),
]
Host = Annotated[str, typer.Option(help="Address for clients.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port for clients; 0: any free one.")]
AdminPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port of /backends and /metrics, on 127.0.0.1; --port + 1 by default."),
]
WithAdmin = Annotated[bool, typer.Option("--admin/--no-admin", help="Serve /backends and /metrics.")]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Mechanisms to switch off, as in retry,hedge; may be repeated."),
]
SettingsFile = Annotated[Path | None, typer.Option(help="TOML file with numbers of the mechanisms.")]
HealthPath = Annotated[str, typer.Option(help="Route of the backends that answers 200 when ready.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of all random choices; drawn by default.")]
DrainDeadline = Annotated[
    float | None,
    typer.Option(help="Longest wait for answers on a shutdown, drain or leave, 30 by default; what is left is cut."),
]
MaxAge = Annotated[float | None, typer.Option(help="Age at which a client connection gets its last answer.")]
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
    """Balance requests over backends as the reference balancer does, until SIGTERM or Ctrl-C.

    Limits, ejection, slow start and breakers that trip on slowness are off unless --settings gives their numbers; all
    else is on.

    When it listens, one line says so: ready, and JSON with the URLs. Health checks ask each backend's --health-path; a
    backend without one needs --without health-checks.
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
        raise ClaimsError(f"--admin-port {admin_port}: expected another one than --port")
    made = _settings(settings, without or [], drain_deadline_s)
    serving = Serving(
        spec=reference_spec(made),
        host=host,
        port=port,
        admin_port=admin_port if admin else None,
        health_path=health_path,
        key_carrier="header:x-model-id",
        seed=secrets.randbelow(ANY_SEED) if seed is None else seed,
        backends=_places(backend),
        drain_deadline_s=made.drain_deadline_s,
        limits=limits,
    )

    def ready(listening: Listening) -> None:
        told = {"url": listening.url, "admin": listening.admin, "backends": [place.id for place in serving.backends]}
        print(f"ready {json.dumps(told)}", flush=True)

    try:
        asyncio.run(run(serving, ready))
    except OSError as error:
        raise TargetError(f"cannot listen on {host}: {error}; give another --port, --admin-port or --host") from None


def _checked(age_s: float | None, requests: int | None, drain_s: float | None) -> Any:
    """The limits of client connections. ClaimsError for numbers that make no sense."""
    from harness.proxy.client_connections import ConnectionLimits
    from harness.scenario.model import ClaimsError

    if drain_s is not None and not 0 < drain_s < float("inf"):
        raise ClaimsError(f"--drain-deadline-s {drain_s:g}: expected above 0")
    try:
        return ConnectionLimits(age_s, requests)
    except ValueError as error:
        raise ClaimsError(f"--max-connection-{str(error).replace('_', '-', 1)}") from None


def _places(texts: list[str]) -> tuple[Any, ...]:
    """The backends. ClaimsError for one that cannot be, or two of one name or address."""
    from harness.proxy.upstreams import place_from
    from harness.scenario.model import ClaimsError

    places = []
    try:
        places = [place_from(text) for text in texts]
    except ValueError as error:
        raise ClaimsError(str(error)) from None
    for what in ("id", "address"):
        seen = [getattr(place, what) for place in places]
        twice = next((value for value in seen if seen.count(value) > 1), None)
        if twice is not None:
            raise ClaimsError(f"--backend {twice} is there twice; expected different names and addresses")
    return tuple(places)


def _settings(path: Path | None, without: list[str], drain_deadline_s: float | None) -> Any:
    """The reference's settings for real use, with those of a file, of options, and without what is switched off."""
    from dataclasses import replace

    from harness.balancer.core.settings_file import settings_from
    from harness.claims.validation import nearest
    from harness.proxy.settings import live_settings
    from harness.scenario.model import ClaimsError
    from harness.targets.reference import ReferenceTarget

    off = [name.strip().replace("-", "_") for item in without for name in item.split(",")]
    for name in off:
        if name not in ReferenceTarget.switches:
            raise ClaimsError(f"--without {name!r} is unknown; {nearest(name, ReferenceTarget.switches)}")
    made = live_settings() if path is None else settings_from(path, live_settings())
    made = made if drain_deadline_s is None else replace(made, drain_deadline_s=drain_deadline_s)
    return made.without(frozenset(off))
