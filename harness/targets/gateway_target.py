"""Targets whose balancer is a gateway without I/O: run by the simulator directly, live by the shell process."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from random import Random

from harness.balancer.core.loading import gateway_from
from harness.gateway.protocol import Gateway, NowFunction
from harness.scenario.model import World
from harness.targets.base import AdminCall, ChangeStep, Deployment, Launch, Target

SHELL_CONFIG = "balancer.json"
HASH_SEED = "PYTHONHASHSEED"
"""Python's hashes of text, and with them the order of its sets, differ between processes unless this is set."""


class GatewayTarget(Target):
    """Base of the reference and of `python:` targets; `spec(off)` names the gateway as text."""

    worlds = frozenset({World.SIM, World.LIVE})

    def spec(self, off: frozenset[str]) -> str:
        """What `harness.balancer.core.loading.gateway_from` makes the gateway of."""
        raise NotImplementedError

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        """The gateway itself."""
        return gateway_from(self.spec(off), now, generator)

    def launch(self, place: Deployment) -> Launch:
        """The live shell as a process, told by a JSON file what to run where."""
        config = {
            "spec": self.spec(place.off),
            "host": place.host,
            "port": place.port,
            "admin_port": place.admin_port,
            "health_path": self.health_path,
            "key_carrier": self.claims.key_carrier,
            "seed": place.seed,
            "backends": _backends(place),
        }
        path = str(place.workdir / SHELL_CONFIG)
        return Launch(
            files={SHELL_CONFIG: json.dumps(config, indent=1)},
            start=(sys.executable, "-m", "harness.proxy.serve", "--wait", path),
            environment={HASH_SEED: "0"},
            early=True,
        )

    def change(self, place: Deployment) -> tuple[ChangeStep, ...]:
        """One call to the shell's admin interface; it answers when the gateway has been told."""
        url = f"http://{place.host}:{place.admin_port}/backends"
        return (AdminCall("PUT", url, json.dumps(_backends(place))),)


def _backends(place: Deployment) -> list[dict[str, object]]:
    return [asdict(item) for item in place.backends]
