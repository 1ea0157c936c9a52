"""One adapter per balancer, and the registry that makes a target from the text `NAME[:ARGUMENT]` of `--target`.

Other packages register adapters under the entry-point group `steelyard.targets` (docs/targets.md). An adapter is
imported when its name is used, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NamedTuple

from harness.gateway.crash_report import crash_line
from harness.scenario.model import AdapterError, ClaimsError, SteelyardError, TargetError
from harness.scenario.validation import nearest
from harness.targets.base import Adapter, Target
from harness.targets.checked import checked

GROUP = "steelyard.targets"
SHIPPED = {
    "file": "harness.targets.file:ADAPTER",
    "nginx": "harness.targets.nginx:ADAPTER",
    "python": "harness.targets.python:ADAPTER",
    "reference": "harness.targets.reference:ADAPTER",
}
"""Our own entries, in the form of an entry point; a table, so that a clone needs no new installation."""

CLAIMS_FILE = ".toml"
"""Ending of a claims file: `FILE.toml` is short for `file:FILE.toml`."""


class TargetRow(NamedTuple):
    """One adapter in `steelyard targets`: how it is named, and what it makes without an argument, if it can.

    `state`: the version, or why there is none on this machine; empty for an adapter that needs an argument.
    """

    usage: str
    summary: str
    state: str = ""
    worlds: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()


Entries = Mapping[str, Sequence[EntryPoint]]


def resolve(text: str) -> Target:
    """The target that `text` names: `NAME[:ARGUMENT]`, or a claims file (`FILE.toml`).

    ClaimsError for a wrong name, argument or file; TargetError if the adapter cannot be used or its balancer is
    missing.

    >>> resolve("reference").name
    'reference'
    """
    entries = _entries()
    name, colon, argument = text.partition(":")
    if name not in entries:
        if not text.endswith(CLAIMS_FILE) or (colon and not Path(text).exists()):
            raise ClaimsError(
                f"no target {name!r}; {nearest(name, entries)} (or a claims file, FILE.toml); steelyard targets"
                " lists them"
            )
        name, argument = "file", text
    adapter = _adapter(name, entries)
    if argument and not adapter.argument:
        raise ClaimsError(f"target {text!r}: {name} takes no argument; expected {name}")
    if not argument and (colon or adapter.required):
        raise ClaimsError(f"target {text!r}: expected {adapter.usage(name)}, {adapter.summary}")
    return _made(adapter, text, argument)


def listing() -> list[TargetRow]:
    """All adapters by name; one that cannot be used says so in its state."""
    entries = _entries()
    return [_row(name, entries) for name in sorted(entries)]


def _entries() -> Entries:
    """Our own entries and those of installed distributions, by name. More than one: the name cannot be used."""
    found = {name: [EntryPoint(name, value, GROUP)] for name, value in SHIPPED.items()}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


def _adapter(name: str, entries: Entries) -> Adapter:
    """Import the adapter `name`. TargetError if that fails, or if more than one distribution registers the name."""
    entry, *others = entries[name]
    distribution = _distribution(entry)
    if others:
        owners = " and ".join([distribution, *map(_distribution, others)])
        raise TargetError(f"target {name!r} is registered by {owners}; expected one: uninstall the others")
    try:
        loaded = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an adapter that calls sys.exit when imported must not end pytest
        raise TargetError(
            f"target {name!r}: {entry.value} of {distribution} cannot be imported: {crash_line(error)}; repair or"
            f" uninstall {distribution}"
        ) from None
    if not isinstance(loaded, Adapter):
        raise TargetError(
            f"target {name!r}: {entry.value} of {distribution} is {type(loaded).__name__}; expected a"
            f" harness.targets.base.Adapter: repair or uninstall {distribution}"
        )
    return loaded


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "steelyard"


def _made(adapter: Adapter, text: str, argument: str) -> Target:
    try:
        made = adapter.make(argument)
    except (SteelyardError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise AdapterError(f"target {text!r}: its adapter raised {crash_line(error)}") from None
    return checked(made, text)


def _row(name: str, entries: Entries) -> TargetRow:
    try:
        adapter = _adapter(name, entries)
    except TargetError as error:
        return TargetRow(name, "", f"broken: {error}")
    row = TargetRow(adapter.usage(name), adapter.summary)
    if adapter.required:
        return row
    try:
        target = _made(adapter, name, "")
    except AdapterError as error:
        return row._replace(state=f"broken: {error}")
    except SteelyardError as error:
        return row._replace(state=f"missing: {error}")
    worlds = tuple(sorted(world.value for world in target.worlds))
    return row._replace(state=target.version, worlds=worlds, claims=target.claims.names)
