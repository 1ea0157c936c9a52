"""Chaos as a table: fault plans × checks. A new promise is one entry here, a new plan one `PlannedRun`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from textwrap import fill

from harness.claims.features import FEATURES, Claims, Failover
from harness.property.declare import Check, MakeScenario, Property, declare
from harness.scenario.model import Scenario, World
from suites.chaos.checks import answers_belong, contained, crowd_keeps_its_pace, nothing_lost, recovers
from suites.chaos.scenarios import blackhole, node_crash, planned

LINE = 116
"""Width to which the paragraphs of a promise are wrapped, as in a docstring."""


@dataclass(frozen=True)
class PlannedRun:
    """One row: a named fault plan, its scenario, and the checks of its run with the promise that each one stands for.

    All checks of a row share one run. Node crash, blackhole and grey failure run live too; `steelyard chaos --plan NAME
    --world live` plays the others live.
    """

    plan: str
    scenario: MakeScenario
    promises: Mapping[Check, str]
    worlds: Iterable[World] = (World.SIM,)

    def properties(self) -> tuple[Property, ...]:
        """One property for each check, called `chaos.PLAN.CHECK`."""
        return tuple(
            declare(
                f"chaos.{self.plan}.{check.__name__.replace('_', '-')}",
                needs=(Failover,),
                scenario=self.scenario,
                worlds=self.worlds,
                doc="\n\n".join(fill(paragraph, LINE) for paragraph in cleandoc(promise).split("\n\n")),
                module=__name__,
            )(check)
            for check, promise in self.promises.items()
        )


TABLE = (
    PlannedRun(
        "node-crash",
        node_crash,
        {
            recovers: """After a crashed backend has returned, every request sent later than the claimed time is
            answered.

            The claimed time is the longest of failover, open breaker, ejection and health checks. Observed is the send
            time of the last lost request, in seconds after the return. No request may be lost before the crash either;
            otherwise the run proves little.
            """,
            contained: """A crash costs at most the crashed backend's share of requests for as long as it is away.

            A balancer without health information loses that much. A balancer that loses more lets the failure of one
            backend spread to the others: by retries without a budget, by a breaker shared by all backends, or by
            blocked workers.
            """,
            answers_belong: """Through a crash and a return, every answer belongs to its request and no update reaches a
            backend twice.

            Connections break during answers, and the balancer sends requests again; that is when answers get mixed up.
            Checked as in `integrity.answer-belongs-to-request`.
            """,
            crowd_keeps_its_pace: """Virtual users send requests at their former pace once the claimed time after the
            return has passed.

            A closed loop can suffer without any lost request, because a user that waits longer sends less. A balancer
            answers everything and still serves less if it keeps trying a dead backend first, has lost request slots
            together with the backend, or limits its traffic after the crash. The counts are compared allowing for
            chance, at nine tenths of the pace.
            """,
        },
        worlds=(World.SIM, World.LIVE),
    ),
    PlannedRun(
        "blackhole",
        blackhole,
        {
            recovers: """After a silent backend answers again, every request sent later than the claimed time is
            answered.

            Requests sent during the silence fail only at their timeout, which is after the fault has healed. A balancer
            that counts those failures excludes a healthy backend; that does no harm while other backends serve.
            """,
            contained: """A silent backend costs at most its own share of requests.

            Requests that wait for it must not delay others. A connection pool, a queue or a number of workers shared by
            all backends fills up with hanging requests.
            """,
            answers_belong: """Through a silence and its end, every answer belongs to its request and no update reaches
            a backend twice.

            A connection abandoned during the silence may still deliver its answer later; if it is reused, another
            client gets that answer.
            """,
        },
        worlds=(World.SIM, World.LIVE),
    ),
    PlannedRun(
        "grey-failure",
        planned("grey-failure", 3),
        {
            recovers: """After a slow backend is fast again, every request sent later than the claimed time is answered.

            No request fails, so the balancer can observe the recovery only by the response times of requests that it
            still sends there.
            """,
            nothing_lost: """A slow but live backend costs no request.

            It answers all its requests, well within the clients' timeouts. A balancer may send it fewer requests or
            none. It may not abandon requests that are being served, or reject others because one backend is slow.
            """,
            answers_belong: """While one backend is slow, every answer belongs to its request and no update reaches a
            backend twice.

            Hedges and timeouts abandon attempts whose answers arrive later; no client may get those answers.
            """,
        },
        worlds=(World.SIM, World.LIVE),
    ),
    PlannedRun(
        "flapping",
        planned("flapping", 4),
        {
            recovers: (
                "After a backend has stopped flapping, every request sent later than the claimed time is answered."
            ),
            contained: """A flapping backend costs at most its own share of requests.

            Each return attracts requests and each outage loses them again. A balancer that reopens its connections to
            all backends at every change also disturbs requests for the other backends.
            """,
            answers_belong: (
                "While a backend flaps, every answer belongs to its request and no update reaches a backend twice."
            ),
        },
    ),
    PlannedRun(
        "brown-out",
        planned("brown-out", 4),
        {
            recovers: (
                "After a brown-out of half the fleet, every request sent later than the claimed time is answered."
            ),
            contained: """A brown-out of half the fleet costs at most the requests of that half.

            The other half goes on serving. Seen elsewhere: retries of requests rejected by the degraded half overload
            the healthy half, and the whole fleet fails.
            """,
            answers_belong: (
                "While half of the fleet rejects requests, every answer belongs to its request and no "
                "update reaches a backend twice."
            ),
        },
    ),
    PlannedRun(
        "rolling-restart",
        planned("rolling-restart", 4, for_s=4.0),
        {
            recovers: """After every backend has restarted in turn, every request sent later than the claimed time is
            answered.

            A balancer that never readmits a restarted backend has no backend left at the end.
            """,
            answers_belong: (
                "Through a rolling restart, every answer belongs to its request and no update reaches a backend twice."
            ),
        },
    ),
    PlannedRun(
        "packet-misery",
        planned("packet-misery", 4),
        {
            recovers: "After the network has recovered, every request sent later than the claimed time is answered.",
            nothing_lost: """A network with high latency, low bandwidth and sliced answers costs no request.

            It loses no byte. Every backend is affected, so a balancer that excludes slow backends has none left.
            """,
            answers_belong: (
                "Over a bad network, every answer belongs to its request and no update reaches a backend twice."
            ),
        },
    ),
    PlannedRun(
        "thundering-return",
        planned("thundering-return", 4, for_s=1.0),
        {
            recovers: """After all backends have returned at once, every request sent later than the claimed time is
            answered.

            Requests lost during the outage had no backend to go to. Later losses are the balancer's: retries that
            outlast the outage, breakers that open again under the rush, or no backend that counts as healthy.
            """,
            answers_belong: (
                "Through an outage and return of all backends, every answer belongs to its request and no "
                "update reaches a backend twice."
            ),
        },
    ),
)

PROPERTIES = tuple(item for row in TABLE for item in row.properties())


def under_any(scenario: Scenario) -> tuple[Property, ...]:
    """The two properties that hold under any fault plan, for this scenario; they share one run.

    The features in the scenario's `off` are switched off where the target can.
    """
    off = tuple(FEATURES[name] for name in sorted(scenario.off))

    def given_scenario(claims: Claims) -> Scenario:
        return scenario

    name = scenario.name
    return (
        declare(f"chaos.{name}.recovers", scenario=given_scenario, off=off)(recovers),
        declare(f"chaos.{name}.answers-belong", scenario=given_scenario, off=off)(answers_belong),
    )
