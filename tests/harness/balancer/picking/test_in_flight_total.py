"""A group's size and load, maintained incrementally."""

from __future__ import annotations

from harness.balancer.picking.in_flight_total import InFlightTotal


def test_it_counts_who_is_in() -> None:
    tally = InFlightTotal()
    assert (tally.put("a", 3), tally.put("b", 0), tally.put("a", 3)) == (True, True, False)
    assert (len(tally), tally.total, tally.backends) == (2, 3, {"a", "b"})
    assert (tally.drop("a", 3), tally.drop("a", 3), tally.drop("c", 9)) == (True, False, False)
    assert (len(tally), tally.total, tally.backends) == (1, 0, {"b"})


def test_it_follows_requests_of_the_group_alone() -> None:
    tally = InFlightTotal()
    tally.put("a", 1)
    for backend, change in (("a", 1), ("b", 1), ("a", -1), ("b", -1), ("a", -1)):
        tally.count(backend, change)
    assert tally.total == 0
    tally.count("a", 2)
    tally.drop("a", 2)
    assert (len(tally), tally.total) == (0, 0)
