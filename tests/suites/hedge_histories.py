"""Hand-written histories of hedged requests: each request with its legs, as backends and clients saw them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harness.claims.features import Claims, Hedge
from harness.evidence.history import History, empty_requests
from harness.evidence.tables import ATTEMPT
from harness.scenario.model import Ending, Failure, Keys, Kind, Load, Phase, Scenario, Stream

NAN = float("nan")
CLAIMS = Claims((Hedge(quantile=0.5, share=0.25, window=4, minimum=3),))
"""The delay is the 2nd of 3 latencies, or the 3rd of 4: ranks ceil(.5 x 4) and ceil(.5 x 5)."""

STREAMS = (
    Stream("short", 0.0, 10.0, 1, Keys(2), timeout_s=9.0),
    Stream("impatient", 0.0, 10.0, 1, timeout_s=0.5),
    Stream("updates", 0.0, 10.0, 1, kind=Kind.UPDATE),
)
SCENARIO = Scenario(
    "by hand",
    backends=3,
    load=Load(STREAMS),
    phases=(Phase("stalls", 0.0, 100.0),),
    intervals_s=(0.1,),
)


@dataclass(frozen=True, slots=True)
class Leg:
    """One attempt: its backend, start, end and outcome."""

    backend: int
    start_s: float
    end_s: float
    status: int = 200
    ending: Ending = Ending.ANSWERED


def left(backend: int, start_s: float, end_s: float) -> Leg:
    """A leg that the balancer abandoned."""
    return Leg(backend, start_s, end_s, 0, Ending.CLIENT_GONE)


@dataclass
class Story:
    """Requests, added one by one in the order in which they are sent."""

    rows: list[dict[str, object]] = field(default_factory=list)
    legs: list[tuple[int, Kind, Leg]] = field(default_factory=list)

    def ask(
        self,
        sent_s: float,
        *legs: Leg,
        got: int = 0,
        end_s: float | None = None,
        status: int = 200,
        failure: Failure = Failure.NONE,
        key: int = 0,
        stream: int = 0,
    ) -> Story:
        """Add a request and its legs. Its client got the answer of backend `got` at the end of that backend's first
        leg."""
        kind = Kind.UPDATE if stream == 2 else Kind.INFERENCE
        ends = [leg.end_s for leg in legs if leg.backend == got]
        self.rows.append(
            {
                "sent_s": sent_s,
                "intended_s": sent_s,
                "end_s": end_s if end_s is not None else ends[0],
                "status": status,
                "failure": failure,
                "answered_by": got,
                "key": key,
                "stream": stream,
                "kind": kind,
            }
        )
        self.legs += [(len(self.rows) - 1, kind, leg) for leg in legs]
        return self

    def quick(self, latencies_s: list[float], at_s: float = 0.0, key: int = 0, stream: int = 0) -> Story:
        """Add one request each second from `at_s` on, answered by gpu-0 with these latencies."""
        for turn, latency_s in enumerate(latencies_s):
            sent_s = at_s + turn
            self.ask(sent_s, Leg(0, sent_s, sent_s + latency_s), key=key, stream=stream)
        return self

    def history(self) -> History:
        """The history of all requests."""
        requests = empty_requests(len(self.rows))
        for number, fields in enumerate(self.rows):
            for name, value in fields.items():
                requests[number][name] = value
        requests["first_byte_s"] = np.where(requests["failure"] == Failure.NONE, requests["end_s"], NAN)
        attempts = np.zeros(len(self.legs), dtype=ATTEMPT)
        for row, (request, kind, leg) in zip(
            attempts, sorted(self.legs, key=lambda item: item[2].start_s), strict=True
        ):
            row["request"], row["kind"], row["backend"] = request, kind, leg.backend
            row["start_s"], row["end_s"], row["status"], row["ending"] = leg.start_s, leg.end_s, leg.status, leg.ending
            row["first_byte_s"] = leg.end_s if leg.status else NAN
        return History(SCENARIO, 1, requests, attempts, slack_s=np.zeros(101))
