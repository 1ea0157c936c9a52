"""From a line of text to a balancer without I/O: the reference with its settings, or a stranger's Python class.

Used by the targets and by the live shell, which is a process of its own and is told what to run as text.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from pathlib import Path
from random import Random
from typing import Any

from pydantic import TypeAdapter

from harness.balancer.core.bare import BareGateway
from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.settings import Settings
from harness.claims.validation import nearest
from harness.gateway.crash_report import crash_line
from harness.gateway.protocol import Gateway, NowFunction
from harness.scenario.model import ClaimsError

REFERENCE = "reference:"
PYTHON = "python:"


def reference_spec(settings: Settings) -> str:
    """The text that `gateway_from` makes a reference balancer of."""
    return REFERENCE + form().dump_json(settings).decode()


def gateway_from(spec: str, now: NowFunction, generator: Random) -> Gateway:
    """The balancer that `spec` names: `reference:{settings as JSON}` or `python:package.module:Class`.

    ClaimsError of one line if the class is not there, is no balancer or cannot be made.
    """
    if spec.startswith(REFERENCE):
        return ReferenceGateway(form().validate_json(spec.removeprefix(REFERENCE)), generator)
    stranger = load_class(spec)
    try:
        made = stranger(**_wanted(stranger, now, generator))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a constructor that calls sys.exit must not end pytest
        raise ClaimsError(
            f"target {spec!r} cannot be made: {crash_line(error)}; a constructor may ask for now and random, and needs"
            " defaults for all else"
        ) from None
    if hasattr(made, "handle"):
        gateway: Gateway = made
        return gateway
    return BareGateway(made)


@functools.cache
def form() -> TypeAdapter[Settings]:
    """What reads and writes the settings; to make it takes 40 ms, for which nobody need wait."""
    return TypeAdapter(Settings)


def load_class(spec: str) -> Any:
    """The class that `python:package.module:Class` names. ClaimsError if it isn't there or is no balancer."""
    module_name, _, class_name = spec.removeprefix(PYTHON).partition(":")
    if not module_name or not class_name:
        raise ClaimsError(f"target {spec!r}: expected python:package.module:Class")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ClaimsError(f"target {spec!r}: cannot import {module_name} from {here} ({error})") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ClaimsError(f"target {spec!r}: importing {module_name} raised {crash_line(error)}") from None
    stranger = getattr(module, class_name, None)
    if stranger is None:
        names = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ClaimsError(f"target {spec!r}: {module_name} has no class {class_name}; {nearest(class_name, names)}")
    missing = [name for name in ("pick", "update_backends", "report_result") if not hasattr(stranger, name)]
    if missing and not hasattr(stranger, "handle"):
        raise ClaimsError(
            f"target {spec!r}: {class_name} lacks {', '.join(missing)}; expected a policy with pick, update_backends"
            " and report_result, or a gateway with handle"
        )
    return stranger


def _wanted(stranger: Any, now: NowFunction, generator: Random) -> dict[str, Any]:
    """What a constructor asks for by name: the world's clock and its seeded randomness."""
    names = inspect.signature(stranger).parameters
    offered = {"now": now, "random": generator}
    return {name: value for name, value in offered.items() if name in names}
