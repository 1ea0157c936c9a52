"""A small history for the examples in docstrings, and for trying out a check in an interpreter. Pure."""

from __future__ import annotations

import numpy as np

from harness.evidence.history import History, StepSeen, empty_requests
from harness.evidence.tables import ATTEMPT, RESIDENCY, UNSEEN
from harness.scenario.arrivals import draw
from harness.scenario.faults import Kill
from harness.scenario.model import Ending, Failure, Keys, Kind, Load, Residency, Scenario, Stream


def example_history() -> History:
    """Four requests on two backends: three chat requests, the death of gpu-1 at 0.5 s, and an update that gets 503.

    The chat requests use key 0, key 1 and key 0 again; each is answered after 50 ms. No backend receives the update.
    Slack is 2 ms in the first second and 4 ms in the second one.
    """
    chat = Stream("chat", start_s=0.0, rate_per_s=10.0, requests=3, keys=Keys(2, pick="sweep"))
    updates = Stream("updates", start_s=1.0, rate_per_s=1.0, requests=1, kind=Kind.UPDATE)
    scenario = Scenario("example", backends=2, load=Load((chat, updates)), timeline=(Kill("gpu-1", 0.5),))
    requests, attempts = empty_requests(4), np.zeros(3, dtype=ATTEMPT)
    for arrival in draw(scenario.load, seed=1):
        row = requests[arrival.number]
        row["stream"], row["kind"], row["key"] = arrival.stream, arrival.kind, arrival.key
        row["intended_s"] = row["sent_s"] = arrival.at_s
        row["first_byte_s"] = row["end_s"] = arrival.at_s + 0.05
        row["failure"] = Failure.NONE
        row["status"], row["answered_by"] = (503, UNSEEN) if arrival.kind is Kind.UPDATE else (200, arrival.key)
        if arrival.kind is Kind.INFERENCE:
            attempt = attempts[arrival.number]
            attempt["request"], attempt["backend"], attempt["status"] = arrival.number, arrival.key, 200
            attempt["start_s"], attempt["end_s"] = arrival.at_s, arrival.at_s + 0.05
            attempt["ending"] = Ending.ANSWERED
    residency = np.array([(0, Residency.LOADING, b"any", 0.0)], dtype=RESIDENCY)
    steps = (StepSeen("Kill", backend=1, asked_s=0.5, effective_s=0.51),)
    slack_s = np.array([0.002, 0.004])
    facts = {"slack_causes": ["calibration", "generator delay"]}
    return History(scenario, 1, requests, attempts, residency=residency, steps=steps, slack_s=slack_s, facts=facts)
