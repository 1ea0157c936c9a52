"""Mixed loads: the simulator's balancer gets each request as parsed from its bytes."""

from __future__ import annotations

from dataclasses import replace

from harness.claims.features import Claims
from harness.gateway.protocol import Request
from harness.scenario.arrival_rates import OnOff
from harness.scenario.arrivals import draw
from harness.scenario.model import Failure, Keys, Load, Scenario, Stream
from harness.scenario.request_mix import Content, Fixed, LongTail, Sessions
from harness.sim.clients import Reader
from harness.sim.world import play
from harness.targets.reference import ReferenceTarget

CONTENT = Content(
    prompt=LongTail(40),
    output=Fixed(3),
    sessions=Sessions(4, 5),
    high_share=0.3,
    critical_share=0.1,
    update_share=0.2,
    payload_bytes=LongTail(4000),
)
STREAM = Stream("talk", 0.0, 1.0, 1, keys=Keys(3), shape=OnOff(80.0, 1.0, 1.0, 4.0), content=CONTENT)


def test_a_gateway_is_told_what_each_request_says() -> None:
    load = Load((STREAM,))
    read = Reader(load.key_carrier, Claims(), 1)
    arrivals = draw(load, 1)
    parsed: list[Request] = [read(arrival, 0) for arrival in arrivals]
    assert {request.urgency for request in parsed} == {"normal", "high", "critical"}
    for arrival, request in zip(arrivals, parsed, strict=True):
        assert (request.kind, request.urgency) == (arrival.kind, arrival.urgency)
        assert bool(request.session) == (arrival.session >= 0)
        assert request.payload_bytes >= arrival.payload_bytes
    sessions = {arrival.session: request.session for arrival, request in zip(arrivals, parsed, strict=True)}
    assert len(set(sessions.values())) == len(sessions)


def test_requests_that_differ_in_one_thing_alone_are_told_apart() -> None:
    for content in (
        Content(high_share=0.5),
        Content(update_share=0.5),
        Content(prompt=LongTail(40)),
        Content(payload_bytes=LongTail(4000)),
        Content(sessions=Sessions(9, 1)),
    ):
        load = Load((Stream("one", 0.0, 50.0, 50, content=content),))
        read = Reader(load.key_carrier, Claims(), 1)
        for arrival in draw(load, 1):
            alone = Reader(load.key_carrier, Claims(), 1)(arrival, 0)
            assert read(arrival, 0) == alone


def test_shapes_and_content_are_played() -> None:
    scenario = Scenario("talk", backends=2, load=Load((STREAM,)))
    history = play(ReferenceTarget(), scenario, 1)
    assert history.digest() == play(ReferenceTarget(), scenario, 1).digest()
    assert len(history.requests) > 100
    assert history.answered().all()


def test_a_client_gives_up_when_it_said() -> None:
    content = Content(output=Fixed(400), abort_share=0.5, abort_after_s=0.1)  # 400 tokens take 0.2 s
    stream = Stream("hasty", 0.0, 5.0, 30, keys=Keys(3), content=content)
    history = play(ReferenceTarget(), Scenario("hasty", backends=2, load=Load((stream,))), 1)
    aborted = [arrival.abort_after_s is not None for arrival in draw(Load((stream,)), 1)]
    assert 5 < sum(aborted) < 25
    assert (history.requests["failure"] == Failure.TIMEOUT).tolist() == aborted
    patient = play(ReferenceTarget(), Scenario("p", 2, Load((replace(stream, content=None, output_tokens=400),))), 1)
    assert patient.answered().all()
