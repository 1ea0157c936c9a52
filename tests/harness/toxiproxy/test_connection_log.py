"""The connection log."""

from __future__ import annotations

from harness.toxiproxy.connection_log import CloseCause, ConnectionLog


def test_entries_of_one_proxy_or_of_all_in_order() -> None:
    log = ConnectionLog()
    for number, proxy in enumerate("aba"):
        log.open(proxy, float(number))
    assert [entry.opened_s for entry in log.entries()] == [0.0, 1.0, 2.0]
    assert [entry.opened_s for entry in log.entries("a")] == [0.0, 2.0]


def test_the_log_is_bounded_and_says_what_it_forgot() -> None:
    log = ConnectionLog(max_entries=2)
    for number in range(5):
        log.open("a", float(number))
    assert [entry.opened_s for entry in log.entries()] == [3.0, 4.0]
    assert log.forgotten == 3


def test_clearing_keeps_what_is_still_open() -> None:
    log = ConnectionLog(max_entries=2)
    for number in range(3):
        log.open("a", float(number))
    ended = next(log.entries())
    ended.closed_s, ended.ended = 9.0, CloseCause.CLIENT
    log.clear()
    assert [entry.opened_s for entry in log.entries()] == [2.0]
    assert log.forgotten == 0
