"""Targets whose balancer is a gateway without I/O: run by the simulator, or live by the HTTP driver."""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from dataclasses import asdict
from random import Random

from harness.balancer.core.loading import gateway_from
from harness.gateway.protocol import Gateway, NowFunction
from harness.targets.base import AdminCall, ChangeStep, Deployment, Launch, LiveTarget, SimTarget

DRIVER_CONFIG = "balancer.json"
HASH_SEED = "PYTHONHASHSEED"
"""Fixes Python's string hashes, and so the order of sets, which otherwise differ between processes."""


class GatewayTarget(SimTarget, LiveTarget):
    """Base of the reference and of `python:` targets; `spec(off)` is the gateway's specification as text."""

    @abstractmethod
    def spec(self, off: frozenset[str]) -> str:
        """The specification that `harness.balancer.core.loading.gateway_from` builds the gateway from."""

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        """A new gateway."""
        return gateway_from(self.spec(off), now, generator)

    def launch(self, deployment: Deployment) -> Launch:
        """The HTTP driver as a process (harness.proxy.serve), configured by a JSON file."""
        config = {
            "spec": self.spec(deployment.off),
            "host": deployment.host,
            "port": deployment.port,
            "admin_port": deployment.admin_port,
            "health_path": self.health_path,
            "key_carrier": self.claims.key_carrier,
            "seed": deployment.seed,
            "backends": _backends(deployment),
        }
        path = str(deployment.workdir / DRIVER_CONFIG)
        return Launch(
            files={DRIVER_CONFIG: json.dumps(config, indent=1)},
            start=(sys.executable, "-m", "harness.proxy.serve", "--wait", path),
            environment={HASH_SEED: "0"},
            early=True,
        )

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        """One call to the driver's admin interface, which answers after the gateway got the new members."""
        url = f"http://{deployment.host}:{deployment.admin_port}/backends"
        return (AdminCall("PUT", url, json.dumps(_backends(deployment))),)


def _backends(deployment: Deployment) -> list[dict[str, object]]:
    return [asdict(item) for item in deployment.backends]
