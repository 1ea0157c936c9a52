"""Any balancer as a target: a claims file says where it listens, or how to start, reload and stop it."""

from __future__ import annotations

import re
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.claims.validation import nearest
from harness.claims.file import ClaimsFile, RunSection, address_of
from harness.scenario.model import ClaimsError, TargetError, UnsupportedError
from harness.targets.base import ChangeStep, Deployment, Launch, RunCommand, Target, WriteFile

OWN_CARRIER = "header:x-mock-tag"
"""Steelyard's private header: tried whatever the file says, for it costs nothing where it gets lost."""
PLACEHOLDERS = ("workdir", "config", "host", "port", "admin_port")
PLACEHOLDER = re.compile(r"\{(\w+)\}")


class FileTarget(Target):
    """The balancer that a claims file describes (README, `harness.claims.features.ClaimsFile`).

    With `[run]` it is started from a rendered template; without, it runs already at `url` and its backends are those
    of `listen`. ClaimsError for an address or a `{name}` in a command that makes no sense.
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

    def launch(self, place: Deployment) -> Launch:
        """The rendered template and the `check` and `start` commands; nothing at all where there is no `[run]`."""
        run = self._file.run
        if run is None:
            return Launch(files={}, start=())
        if run.reload:
            self._command(run.reload, run, place)  # a missing reload command shows before the run, not in its middle
        return Launch(
            files={_config_name(run): self._render(run, place)},
            start=self._command(run.start, run, place),
            check=self._command(run.check, run, place) if run.check else (),
        )

    def change(self, place: Deployment) -> tuple[ChangeStep, ...]:
        """The newly rendered template and the `reload` command.

        UnsupportedError where the file gives none, or where weights or draining are asked for and the template leaves
        them out, so that the balancer would never hear of them.
        """
        run = self._file.run
        if run is None or not run.reload:
            raise UnsupportedError("cannot change membership")
        text = self._render(run, place)
        plain = {
            "draining": tuple(replace(item, draining=False) for item in place.backends),
            "weight": tuple(replace(item, weight=1) for item in place.backends),
        }
        for name, backends in plain.items():
            if backends != place.backends and self._render(run, replace(place, backends=backends)) == text:
                raise UnsupportedError(f"the template does not use {name} of its backends")
        return (WriteFile(_config_name(run), text), RunCommand(self._command(run.reload, run, place)))

    def scaled(self, factor: float) -> Target | None:
        """Settings are the file's, and fixed."""
        return None

    def _render(self, run: RunSection, place: Deployment) -> str:
        template = (self._file.folder / run.config).resolve()
        if not template.is_file():
            raise TargetError(f"{template}: no such template; [run] config is relative to the claims file")
        environment = Environment(
            loader=FileSystemLoader(template.parent), undefined=StrictUndefined, keep_trailing_newline=True
        )
        try:
            return environment.get_template(template.name).render(
                workdir=str(place.workdir),
                host=place.host,
                port=place.port,
                admin_port=place.admin_port,
                backends=place.backends,
                off=sorted(place.off),
            )
        except Exception as error:  # a template is the user's code: it can raise anything
            raise TargetError(f"template {_where(error, template)}: {_one_line(error)}") from None

    def _command(self, words: tuple[str, ...], run: RunSection, place: Deployment) -> tuple[str, ...]:
        """`words` with values in them; a program given as a relative path lies relative to the claims file."""
        values = {
            "workdir": str(place.workdir),
            "config": str(place.workdir / _config_name(run)),
            "host": place.host,
            "port": str(place.port),
            "admin_port": str(place.admin_port),
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
    """File and line at fault: jinja2 rewrites tracebacks so that lines of templates stand in them."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(template.parent):
            return f"{frame.filename}:{frame.lineno}"
    return str(template)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
