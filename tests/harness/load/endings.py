"""One table of the ways in which an exchange can end, with the result that each load engine records."""

from __future__ import annotations

from dataclasses import dataclass

from harness.evidence import records
from harness.scenario.model import Failure
from tests.harness.load.conftest import LoadProcess, RawServer, Reply, assert_never_early, failures, stream

REQUESTS = 6
FULL = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODY = b"0123456789"

Result = tuple[Failure, int]
"""Recorded failure and status."""


@dataclass(frozen=True)
class Ending:
    """An ending: the server's `reply` (None: it does not listen) and the result that both engines record.

    `aiohttp`: the result of the aiohttp engine if its parser makes a difference (harness.load.asyncio_engine.client).
    """

    name: str
    reply: Reply | None
    result: Result
    aiohttp: Result | None = None

    def __str__(self) -> str:
        return self.name


ENDINGS = (
    Ending("refused", None, (Failure.REFUSED, 0)),
    Ending("reset", Reply(then="reset"), (Failure.RESET, 0)),
    Ending("closed", Reply(then="close"), (Failure.CLOSED, 0)),
    Ending("cut in the body", Reply(FULL + b"half", "close"), (Failure.TRUNCATED, 200)),
    Ending("cut after the head", Reply(FULL, "close"), (Failure.TRUNCATED, 200)),
    Ending("cut in the chunks", Reply(CHUNKED + b"4\r\nhalf\r\n", "close"), (Failure.TRUNCATED, 200)),
    Ending(
        "cut in the head",
        Reply(b"HTTP/1.1 200 OK\r\nConte", "close"),
        (Failure.TRUNCATED, 0),
        aiohttp=(Failure.CLOSED, 0),
    ),
    Ending(
        "cut after an interim answer", Reply(CONTINUE, "close"), (Failure.TRUNCATED, 0), aiohttp=(Failure.CLOSED, 0)
    ),
    Ending("timeout before the head", Reply(then="hang"), (Failure.TIMEOUT, 0)),
    Ending("timeout in the body", Reply(FULL + b"half", "hang"), (Failure.TIMEOUT, 200)),
    Ending("not HTTP", Reply(b"no HTTP at all\r\n\r\n", "hang"), (Failure.OTHER, 0)),
    Ending("two answers", Reply((FULL + BODY) * 2, "hang"), (Failure.OTHER, 200), aiohttp=(Failure.NONE, 200)),
    Ending("body until the close", Reply(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", "close"), (Failure.NONE, 200)),
    Ending("interim answer", Reply(CONTINUE + FULL + BODY), (Failure.NONE, 200)),
    Ending("chunks", Reply(CHUNKED + b"4\r\nhalf\r\n0\r\n\r\n"), (Failure.NONE, 200)),
    Ending(
        "redirect",
        Reply(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"),
        (Failure.NONE, 302),
    ),
)


def assert_recorded_once(process: LoadProcess, server: RawServer, ending: Ending, expected: Result) -> records.Rows:
    """Run requests that all end like this: each is sent once and recorded as `expected`. Returns their rows."""
    reply = ending.reply
    if reply is None:
        server.close()
    else:
        server.reply = lambda _: reply
    hangs = reply is not None and reply.then == "hang"
    answer, rows = process.run(server.url, stream(REQUESTS, 400.0, timeout_s=0.4 if hangs else 5.0))
    failure, status = expected
    assert failures(rows) == {failure}
    assert set(rows["status"]) == {status}
    assert len(rows) == answer["sent"] == REQUESTS
    assert len(server.requests) == (0 if reply is None else REQUESTS)
    assert answer["failed"] == (0 if failure is Failure.NONE else REQUESTS)
    assert_never_early(rows)
    return rows
