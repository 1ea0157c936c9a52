"""Creates a balancer without I/O from a text: the reference with its settings, or a user's Python class.

Used by the targets and by the live driver, a separate process that receives its balancer as text.
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
from harness.gateway.checked_gateway import CheckedGateway
from harness.gateway.crash_report import crash_line
from harness.gateway.protocol import Gateway, NowFunction
from harness.scenario.model import ClaimsError
from harness.scenario.validation import nearest

REFERENCE = "reference:"
PYTHON = "python:"


def reference_spec(settings: Settings) -> str:
    """The text from which `gateway_from` creates a reference balancer with these settings."""
    return REFERENCE + settings_adapter().dump_json(settings).decode()


def gateway_from(spec: str, now: NowFunction, generator: Random) -> Gateway:
    """The balancer named by `spec`: `reference:{settings as JSON}` or `python:package.module:Class`.

    ClaimsError, one line, if the class does not exist, is no balancer or cannot be instantiated.
    """
    if spec.startswith(REFERENCE):
        return ReferenceGateway(settings_adapter().validate_json(spec.removeprefix(REFERENCE)), generator)
    target_class = load_class(spec)
    try:
        made = target_class(**_constructor_arguments(target_class, now, generator))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a constructor that calls sys.exit must not end pytest
        raise ClaimsError(
            f"target {spec!r} cannot be created: {crash_line(error)}; a constructor may have the parameters now and"
            " random; all others need defaults"
        ) from None
    return CheckedGateway(made) if hasattr(made, "handle") else BareGateway(made)


@functools.cache
def settings_adapter() -> TypeAdapter[Settings]:
    """Parser and serialiser of the settings. Creating it takes 40 ms, so it is cached and can be created early."""
    return TypeAdapter(Settings)


def load_class(spec: str) -> Any:
    """The class named by `python:package.module:Class`. ClaimsError if it does not exist or is no balancer."""
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
    target_class = getattr(module, class_name, None)
    if target_class is None:
        names = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ClaimsError(f"target {spec!r}: {module_name} has no class {class_name}; {nearest(class_name, names)}")
    missing = [name for name in ("pick", "update_backends", "report_result") if not hasattr(target_class, name)]
    if missing and not hasattr(target_class, "handle"):
        raise ClaimsError(
            f"target {spec!r}: {class_name} lacks {', '.join(missing)}; expected a policy with pick, update_backends"
            " and report_result, or a gateway with handle"
        )
    return target_class


def _constructor_arguments(target_class: Any, now: NowFunction, generator: Random) -> dict[str, Any]:
    """The arguments that the constructor has parameters for: `now` (the world's clock) and `random` (seeded)."""
    names = inspect.signature(target_class).parameters
    offered = {"now": now, "random": generator}
    return {name: value for name, value in offered.items() if name in names}
