"""The seam between adapters and the rest: what a target says and returns is checked where it is first used.

The judge takes a target from `checked`, the simulator from `for_sim`, live runs from `for_live`. So an adapter that
breaks the interface of harness.targets.base is an AdapterError of one line, not a crash far from its cause. Actions of
gateways are checked by harness.gateway.checked_gateway.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from random import Random
from typing import Any

from harness.balancer.core.bare import BareGateway
from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.settings import SWITCHES
from harness.claims.features import FEATURES, PROTOCOLS, Claims
from harness.gateway.checked_gateway import CheckedGateway
from harness.gateway.crash_report import crash_line
from harness.gateway.protocol import Gateway, NowFunction
from harness.scenario.model import AdapterError, SteelyardError, TargetError, World
from harness.targets.base import (
    CARRIERS,
    AdminCall,
    AwaitNewWorkers,
    ChangeStep,
    Deployment,
    Launch,
    LiveTarget,
    RunCommand,
    Signal,
    SimTarget,
    Target,
    WriteFile,
)

LONGEST = 120
"""Longest text of a wrong value in a message."""

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
URL = re.compile(r"https?://[^/\s]+.*")
OWN_URL = re.compile(r"http://[^/\s]*:\d+/?")
"""The port is needed to find out whether it is free."""


def checked(target: object, name: str = "") -> Target:
    """`target`, if what it says of itself is valid: AdapterError otherwise. `name`: how the user named it.

    >>> checked("gateway", "acme")
    Traceback (most recent call last):
        ...
    harness.scenario.model.AdapterError: target acme: make() returned 'gateway'; expected a harness.targets.base.Target
    """
    if not isinstance(target, Target):
        raise _wrong(name, "make() returned", target, "a harness.targets.base.Target")
    own: object = getattr(target, "name", None)
    says = _Says(name or (own if own and isinstance(own, str) else type(target).__name__), target)
    says.must("name", lambda value: isinstance(value, str) and value != "", "a text")
    says.must("version", lambda value: isinstance(value, str), "a text")
    says.must("claims", _is_claims, "harness.claims.features.Claims with features of that module, each once")
    says.must("switches", _is_switches, f"a frozenset of names among {', '.join(sorted({*FEATURES, *SWITCHES}))}")
    says.must("health_path", lambda value: isinstance(value, str) and value[:1] == "/", "a path such as /health")
    says.must("worlds", _is_worlds, "a class with the methods of SimTarget or LiveTarget, or of both")
    for world in sorted(target.worlds):
        prefix = _called(target.name, "repeat_prefix", target.repeat_prefix, world)
        if not _texts(prefix) or not all(ASSIGNMENT.fullmatch(word) for word in prefix):
            raise _wrong(target.name, "repeat_prefix() returned", prefix, "a tuple of texts NAME=VALUE")
    if isinstance(target, LiveTarget):
        says.must("correlate", lambda value: _texts(value) and set(value) <= {*CARRIERS}, f"some of {CARRIERS}")
        says.must("stop_signal", lambda value: isinstance(value, signal.Signals), "a signal.Signals")
        says.must("logs", lambda value: _texts(value) and all(map(_is_inside, value)), "paths inside the workdir")
        says.must("url", lambda value: value is None or _matches(OWN_URL, value), "None or http://HOST:PORT")
        says.must("listen", _is_listen, "a tuple of (host, port)")
    return target


def scaled(target: Target, factor: float) -> Target | None:
    """`target.scaled(factor)`, checked."""
    result: object = _called(target.name, "scaled", target.scaled, factor)
    if result is not None and not (isinstance(result, Target) and result.worlds == target.worlds):
        raise _wrong(target.name, "scaled() returned", result, "None or a target of the same worlds")
    return None if result is None else checked(result)


def for_sim(target: Target) -> SimTarget:
    """`target` for the simulator, its gateway checked. TargetError if it runs live only."""
    checked(target)
    if not isinstance(target, SimTarget):
        raise TargetError(f"target {target.name} runs in live only; the simulator needs one with a gateway (SimTarget)")
    return _CheckedSim(target)


def for_live(target: Target) -> LiveTarget:
    """`target` for live runs, its files, commands and steps checked. TargetError if it runs in sim only."""
    checked(target)
    if not isinstance(target, LiveTarget):
        raise TargetError(f"target {target.name} runs in sim only; a live run needs one with a process (LiveTarget)")
    return _CheckedLive(target)


class _CheckedSim(SimTarget):
    """A simulator's target whose answers are checked."""

    def __init__(self, target: SimTarget) -> None:
        self._target = target
        _copy(target, self)

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        made = _called(self.name, "gateway", self._target.gateway, off, now, generator)
        if not callable(getattr(made, "handle", None)):
            raise _wrong(self.name, "gateway() returned", made, "an object with handle(event, now_s)")
        own: bool = type(made) in (BareGateway, CheckedGateway, ReferenceGateway)
        return made if own else CheckedGateway(made)


class _CheckedLive(LiveTarget):
    """A live target whose answers are checked."""

    def __init__(self, target: LiveTarget) -> None:
        self._target = target
        _copy(target, self)
        self.correlate = target.correlate
        self.stop_signal = target.stop_signal
        self.logs = target.logs
        self.url = target.url
        self.listen = target.listen

    def launch(self, deployment: Deployment) -> Launch:
        launch = _called(self.name, "launch", self._target.launch, deployment)
        if not isinstance(launch, Launch):
            raise _wrong(self.name, "launch() returned", launch, "a Launch")
        for part, valid, expected in (
            ("files", _is_files, "texts by relative paths inside the workdir"),
            ("start", _texts, "a tuple of texts"),
            ("check", _texts, "a tuple of texts"),
            ("environment", _is_environment, "texts by name"),
            ("unset", _texts, "a tuple of names"),
        ):
            value = getattr(launch, part)
            if not valid(value):
                raise _wrong(self.name, f"launch() returned {part} =", value, expected)
        return launch

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        steps = _called(self.name, "change", self._target.change, deployment)
        if not isinstance(steps, tuple):
            raise _wrong(self.name, "change() returned", steps, "a tuple of steps")
        for step in steps:
            expected = _expected_of(step)
            if expected:
                raise _wrong(self.name, "change() returned", step, expected)
        return steps


def _copy(target: Target, wrapper: Target) -> None:
    wrapper.name, wrapper.version, wrapper.claims = target.name, target.version, target.claims
    wrapper.switches, wrapper.health_path = target.switches, target.health_path


def _expected_of(step: object) -> str:
    """What was expected instead of a step of a change; empty if it is valid."""
    match step:
        case WriteFile(path, text):
            return "" if _is_files({path: text}) else "WriteFile(relative path inside the workdir, text)"
        case Signal(number):
            return "" if isinstance(number, signal.Signals) else "Signal(signal.Signals)"
        case RunCommand(words):
            return "" if words and _texts(words) else "RunCommand(a tuple of texts)"
        case AdminCall(method, url, body):
            valid = _texts((method, url, body)) and method.isupper() and _matches(URL, url)
            return "" if valid else "AdminCall(method, http URL, text)"
        case AwaitNewWorkers():
            return ""
    return "a step: WriteFile, Signal, RunCommand, AdminCall or AwaitNewWorkers"


# --- valid values -----------------------------------------------------------------------------------------


class _Says:
    """Checks attributes of a target, known to the user as `name`."""

    def __init__(self, name: str, target: Target) -> None:
        self._name = name
        self._target = target

    def must(self, attribute: str, valid: Callable[[Any], bool], expected: str) -> None:
        """AdapterError unless the attribute exists and is valid."""
        missing = object()
        try:
            value = getattr(self._target, attribute, missing)
        except (SteelyardError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise AdapterError(f"target {self._name}: {attribute} raised {crash_line(error)}") from None
        if value is missing:
            raise AdapterError(f"target {self._name}: there is no attribute {attribute}; expected {expected}")
        if not valid(value):
            raise _wrong(self._name, f"{attribute} is", value, expected)


def _wrong(name: str, what: str, seen: object, expected: str) -> AdapterError:
    try:
        text = " ".join(repr(seen).split())
    except Exception:
        text = f"an object of {type(seen).__name__}"
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return AdapterError(f"target {name}: {what} {text}; expected {expected}")


def _called(name: str, method: str, function: Callable[..., object], *arguments: object) -> Any:
    """The result of a target's method; AdapterError, one line, for an exception that is none of Steelyard's."""
    try:
        return function(*arguments)
    except (SteelyardError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an adapter that calls sys.exit must not end pytest
        raise AdapterError(f"target {name}: {method}() raised {crash_line(error)}") from None


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(word, str) and "\0" not in word for word in value)


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_inside(path: object) -> bool:
    """Whether `path` is a relative path that does not leave the folder it is relative to."""
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    parts = PurePosixPath(path)
    return bool(parts.parts) and not parts.is_absolute() and ".." not in parts.parts


def _is_files(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_inside(path) and isinstance(text, str) for path, text in value.items()
    )


def _is_environment(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _texts((name, text)) and name and "=" not in name for name, text in value.items()
    )


def _is_claims(value: object) -> bool:
    if not isinstance(value, Claims) or not isinstance(value.features, tuple) or value.protocol not in PROTOCOLS:
        return False
    known = all(isinstance(feature, tuple(FEATURES.values())) for feature in value.features)
    return known and len(set(value.names)) == len(value.features)


def _is_switches(value: object) -> bool:
    return isinstance(value, frozenset) and value <= {*FEATURES, *SWITCHES}


def _is_worlds(value: object) -> bool:
    return isinstance(value, frozenset) and bool(value) and all(isinstance(world, World) for world in value)


def _is_listen(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(item, tuple)
        and len(item) == 2
        and isinstance(item[0], str)
        and isinstance(item[1], int)
        and 0 < item[1] < 65536
        for item in value
    )
