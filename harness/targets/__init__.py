"""One adapter per balancer, and the registry that resolves names to targets."""

from __future__ import annotations

from pathlib import Path

from harness.balancer.core.loading import PYTHON, REFERENCE
from harness.claims.file import claims_file
from harness.scenario.model import ClaimsError, TargetError
from harness.scenario.validation import nearest
from harness.targets.base import Target

NAMES = ("nginx", "reference")


def resolve(name: str, nginx: str | None = None) -> Target:
    """The target `name`: a shipped one, a claims file (`*.toml`), or `python:package.module:Class`.

    `reference:FILE.toml` is the reference in its suite profile, changed by a file. `nginx` is the path of an nginx
    binary to use instead of the pip package's. ClaimsError for a wrong name or file, TargetError if the balancer's
    binary is missing.
    """
    if name.startswith(PYTHON):
        from harness.targets.python import PythonTarget

        return PythonTarget(name)
    if name.startswith(REFERENCE):
        return _reference_from(name)
    if name.endswith(".toml"):
        return _from_file(Path(name))
    if name == "reference":
        from harness.targets.reference import ReferenceTarget

        return ReferenceTarget()
    if name == "nginx":
        from harness.targets.nginx import NginxTarget

        return NginxTarget(nginx)
    raise ClaimsError(
        f"no target {name!r}; {nearest(name, NAMES)} (or a claims file, FILE.toml, or Python code,"
        " python:package.module:Class, or the reference with settings, reference:FILE.toml)"
    )


def _reference_from(name: str) -> Target:
    from harness.balancer.core.settings_file import settings_from
    from harness.targets.reference import SUITE_PROFILE, ReferenceTarget

    file = name.removeprefix(REFERENCE)
    if not file:
        raise ClaimsError(f"target {name!r}: expected reference:FILE.toml, a file of settings")
    target = ReferenceTarget(settings_from(Path(file), SUITE_PROFILE))
    target.name = name
    return target


def _from_file(path: Path) -> Target:
    file = claims_file(path)
    if file.python:
        from harness.targets.python import PythonTarget

        return PythonTarget(file.python, file)
    from harness.targets.file import FileTarget

    return FileTarget(file)


def listing() -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """One row per shipped target: name, version (or why it cannot run here), worlds, claimed features."""
    rows: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = []
    for name in NAMES:
        try:
            target = resolve(name)
        except TargetError as error:
            rows.append((name, f"missing: {error}", (), ()))
            continue
        worlds = tuple(sorted(world.value for world in target.worlds))
        rows.append((name, target.version, worlds, target.claims.names))
    return rows
