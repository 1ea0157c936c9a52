"""Any balancer as a target, from a claims file with its URL, or with commands to start and reload it."""

from __future__ import annotations

import re
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.claims.file import ClaimsFile, RunSection, address_of, claims_file
from harness.scenario.model import ClaimsError, TargetError, UnsupportedError
from harness.scenario.validation import nearest
from harness.targets.base import Adapter, ChangeStep, Deployment, Launch, LiveTarget, RunCommand, WriteFile
from harness.targets.python import PythonTarget

OWN_CARRIER = "header:x-mock-tag"
"""Steelyard's private header, always tried in addition to the file's carriers; losing it does no harm."""
PLACEHOLDERS = ("workdir", "config", "host", "port", "admin_port")
PLACEHOLDER = re.compile(r"\{(\w+)\}")


class FileTarget(LiveTarget):
    """The balancer that a claims file describes (README, `harness.claims.file.ClaimsFile`).

    With `[run]` it is started from a rendered template. Without, it already runs at `url` with the backends of
    `listen`. ClaimsError for an invalid address or an unknown `{name}` in a command.
    """

    def __init__(self, file: ClaimsFile) -> None:
        self._file = file
        self.name = file.name
        self.version = file.version
        self.claims = file.claims
        self.correlate = tuple(dict.fromkeys((OWN_CARRIER, *file.correlate)))
        self.health_path = file.health_path
        self.listen = tuple(address_of(address) for address in file.listen)
        self.url = file.url
        if file.run:
            self.switches = frozenset(file.run.switches)
            for word in (*file.run.check, *file.run.start, *file.run.reload):
                _check_placeholders(word, file.name)

    def launch(self, deployment: Deployment) -> Launch:
        """The rendered template and the `check` and `start` commands; empty without `[run]`."""
        run = self._file.run
        if run is None:
            return Launch(files={}, start=())
        if run.reload:
            self._command(run.reload, run, deployment)  # a missing reload command fails before the run, not during it
        return Launch(
            files={_config_name(run): self._render(run, deployment)},
            start=self._command(run.start, run, deployment),
            check=self._command(run.check, run, deployment) if run.check else (),
        )

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        """The re-rendered template and the `reload` command.

        UnsupportedError without a `reload` command, or if weights or draining are requested and the template ignores
        them.
        """
        run = self._file.run
        if run is None or not run.reload:
            raise UnsupportedError("cannot change membership")
        text = self._render(run, deployment)
        plain = {
            "draining": tuple(replace(item, draining=False) for item in deployment.backends),
            "weight": tuple(replace(item, weight=1) for item in deployment.backends),
        }
        for name, backends in plain.items():
            if backends != deployment.backends and self._render(run, replace(deployment, backends=backends)) == text:
                raise UnsupportedError(f"the template does not use {name} of its backends")
        return (WriteFile(_config_name(run), text), RunCommand(self._command(run.reload, run, deployment)))

    def _render(self, run: RunSection, deployment: Deployment) -> str:
        template = (self._file.folder / run.config).resolve()
        if not template.is_file():
            raise TargetError(f"{template}: no such template; [run] config is relative to the claims file")
        environment = Environment(
            loader=FileSystemLoader(template.parent), undefined=StrictUndefined, keep_trailing_newline=True
        )
        try:
            return environment.get_template(template.name).render(
                workdir=str(deployment.workdir),
                host=deployment.host,
                port=deployment.port,
                admin_port=deployment.admin_port,
                backends=deployment.backends,
                off=sorted(deployment.off),
            )
        except Exception as error:  # templates are user code and can raise anything
            raise TargetError(f"template {_where(error, template)}: {_one_line(error)}") from None

    def _command(self, words: tuple[str, ...], run: RunSection, deployment: Deployment) -> tuple[str, ...]:
        """`words` with placeholders filled in; a relative program path is relative to the claims file."""
        values = {
            "workdir": str(deployment.workdir),
            "config": str(deployment.workdir / _config_name(run)),
            "host": deployment.host,
            "port": str(deployment.port),
            "admin_port": str(deployment.admin_port),
        }
        program, *rest = (_filled(word, values) for word in words)
        if "/" in program:
            program = str(self._file.folder / program)
        if shutil.which(program) is None:
            raise TargetError(f"{self.name}: no command {program!r}; expected an executable on PATH or a path to one")
        return (program, *rest)


def _config_name(run: RunSection) -> str:
    return Path(run.config).name.removesuffix(".j2")


def _filled(word: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values[found[1]], word)


def _check_placeholders(word: str, name: str) -> None:
    for found in PLACEHOLDER.finditer(word):
        if found[1] not in PLACEHOLDERS:
            raise ClaimsError(f"{name}: [run] {word!r}: unknown {found[0]}; {nearest(found[1], PLACEHOLDERS)}")


def _where(error: Exception, template: Path) -> str:
    """File and line of the error; jinja2 rewrites tracebacks to contain template lines."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(template.parent):
            return f"{frame.filename}:{frame.lineno}"
    return str(template)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _made(path: str) -> LiveTarget:
    file = claims_file(Path(path))
    return PythonTarget(file.python, file) if file.python else FileTarget(file)


ADAPTER = Adapter(_made, "any balancer that a claims file describes", "FILE.toml", required=True)
