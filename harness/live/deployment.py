"""Addresses of a live balancer's backends, and its deployment after membership changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.live.process.ports import HOST, PortBlock, is_free
from harness.scenario.faults import Membership
from harness.scenario.model import Scenario, TargetError
from harness.targets.base import Address, Deployment, LiveTarget


def proxy_addresses(target: LiveTarget, block: PortBlock, backends: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Listen address of each backend's fault proxy: from the target's fixed configuration, else from the port block.

    TargetError if the configuration names too few addresses, or an address in use.
    """
    if not target.listen:
        return {name: (HOST, block.proxy(number)) for number, name in enumerate(backends)}
    if len(backends) > len(target.listen):
        raise TargetError(f"{target.name} names {len(target.listen)} backends, the scenario needs {len(backends)}")
    found = dict(zip(backends, target.listen, strict=False))
    for host, port in found.values():
        if not is_free(port):
            raise TargetError(f"{host}:{port} is taken; [backends] listen needs it for our own backend: free it")
    return found


def deployment_after(
    changes: Sequence[Membership],
    scenario: Scenario,
    listen: Mapping[str, tuple[str, int]],
    block: PortBlock,
    workdir: Path,
    seed: int,
) -> Deployment:
    """The balancer's deployment with the members, weights and drains that result from these membership changes."""
    weights, drained = scenario.weights(changes), scenario.drained(changes)
    return Deployment(
        workdir=workdir,
        host=HOST,
        port=block.balancer,
        admin_port=block.admin,
        backends=tuple(
            Address(name, *listen[name], weight=weights[name], draining=name in drained)
            for name in scenario.members(changes)
        ),
        off=scenario.off,
        seed=seed,
    )
