"""Records that the ledger makes of answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from xxhash import xxh64_intdigest

from harness.evidence.records import REQUEST
from harness.load.results.answer import ExchangeResult, Ledger, attempts_in, spread
from harness.scenario.arrivals import draw
from harness.scenario.model import Echo, Failure, Keys, Kind, Load, Method, Stream

ARRIVALS = draw(Load((Stream("s", 1.0, 10.0, 3, keys=Keys(5, "sweep"), methods=(Method.GET,)),)), 1)
OWN = "00000000000ff"
BODY = b"so sy-00000000000ff it is"


def answered(**changes: object) -> ExchangeResult:
    fields: dict[str, object] = {
        "failure": Failure.NONE, "status": 200, "sent_s": 101.5, "first_byte_s": 102.0, "end_s": 103.0,
        "reused": True, "body": BODY, "backend": "gpu-7", "attempts": 2, **changes,
    }  # fmt: skip
    return ExchangeResult(**fields)  # type: ignore[arg-type]


def test_every_field_of_a_record() -> None:
    ledger = Ledger(100.0, open_ended=True)
    ledger.add(ARRIVALS[1], OWN, answered())
    (row,) = ledger.rows()
    wanted = {
        "number": 1, "stream": 0, "kind": Kind.INFERENCE, "method": Method.GET, "failure": Failure.NONE,
        "echo": Echo.OWN, "reused": 1, "status": 200, "attempts": 2, "key": 1, "connection": -1, "answered_by": 0,
        "bytes": len(BODY), "body_hash": xxh64_intdigest(BODY), "intended_s": 1.1, "sent_s": 1.5, "first_byte_s": 2.0,
        "end_s": 3.0, "patience_s": ARRIVALS[1].patience_s,
    }  # fmt: skip
    assert set(wanted) == set(REQUEST.names or ())
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)


def test_backends_are_numbered_as_given_or_as_they_come() -> None:
    closed, opened = Ledger(0.0, ("gpu-0", "gpu-7")), Ledger(0.0, open_ended=True)
    for ledger in (closed, opened):
        for backend in ("gpu-7", "gpu-9", "", "gpu-7"):
            ledger.add(ARRIVALS[0], OWN, answered(backend=backend))
    assert list(closed.rows()["answered_by"]) == [1, -1, -1, 1]
    assert list(opened.rows()["answered_by"]) == [0, 1, -1, 0]
    assert opened.backends == ["gpu-7", "gpu-9"]


def test_what_was_not_sent_has_its_intended_time_and_no_other() -> None:
    ledger = Ledger(50.0)
    ledger.add_unsent(ARRIVALS)
    rows = ledger.rows()
    assert set(rows["failure"]) == {Failure.NOT_SENT}
    assert set(rows["echo"]) == {Echo.NONE}
    assert list(rows["intended_s"]) == [arrival.at_s for arrival in ARRIVALS]
    for name in ("sent_s", "first_byte_s", "end_s"):
        assert np.isnan(rows[name]).all()


def test_taken_rows_are_taken_once_and_stay_in_the_ledger() -> None:
    ledger = Ledger(0.0)
    parts = []
    for arrival in ARRIVALS:
        ledger.add(arrival, OWN, answered())
        parts.append(ledger.take())
    assert ledger.take() == b""
    assert b"".join(parts) == ledger.rows().tobytes()
    assert ledger.count == 3


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), ("0", 0), ("65535", 65535), ("65536", 0), ("-1", 0), ("three", 0), ("²", 0), ("", 0), (None, 0)],
)
def test_attempts_are_read_from_a_header_that_may_hold_anything(text: object, number: int) -> None:
    assert attempts_in(text) == number
    assert attempts_in(["3", "4"]) == 0


def test_spread_of_what_was_sent() -> None:
    assert spread([]) == {"p50": 0.0, "p99": 0.0, "max": 0.0}
    assert spread([0.1, math.nan, 0.3]) == pytest.approx({"p50": 0.2, "p99": 0.298, "max": 0.3})
