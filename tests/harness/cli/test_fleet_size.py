"""The number of backends that a command starts."""

from __future__ import annotations

import pytest

from harness.claims.features import Claims
from harness.cli.fleet_size import DEFAULT_SIZE, fleet_size
from harness.scenario.model import ClaimsError
from harness.targets.reference import ReferenceTarget


def named(addresses: int | None) -> ReferenceTarget:
    target = ReferenceTarget()
    target.claims = Claims(fixed_backends=addresses)
    return target


@pytest.mark.parametrize(
    ("addresses", "given", "size"), [(None, None, DEFAULT_SIZE), (None, 7, 7), (3, None, 3), (3, 3, 3), (1, None, 1)]
)
def test_the_number_of_backends(addresses: int | None, given: int | None, size: int) -> None:
    assert fleet_size(named(addresses), given) == size


@pytest.mark.parametrize("given", [1, 2, 4])
def test_another_number_than_the_files_is_refused(given: int) -> None:
    with pytest.raises(ClaimsError, match=rf"^--backends {given}: reference names 3 addresses; leave --backends out$"):
        fleet_size(named(3), given)
