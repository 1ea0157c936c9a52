"""Cache: with affinity, models stay resident in GPU memory instead of being loaded repeatedly."""

from __future__ import annotations

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.model import Keys, Load, ModelServer, Scenario, Stream, UnsupportedError
from harness.stats import ALPHA
from suites.scenarios import DISTURBING, ENOUGH, KEY_MOVERS, key_carrier

MODELS_PER_BACKEND = 6
FITTING = 12
"""Models that fit one GPU: twice a backend's mean share, so that the uneven shares of a ring fit too."""

WEIGHTS_MB = 100
AT_MOST = 0.5


def more_models_than_fit_one(claims: Claims) -> Scenario:
    """Six models per backend, and each GPU holds twelve: more than fit one GPU, half of what fits the fleet."""
    if not claims[Affinity].key_is_model:
        raise UnsupportedError(f"the affinity key {claims[Affinity].key} is not the model")
    backends = claims.fleet(4, at_least=3)
    traffic = Stream(
        name="traffic",
        start_s=0.1,
        rate_per_s=320.0,
        requests=1000,
        keys=Keys(MODELS_PER_BACKEND * backends, "uniform"),
        arrivals="poisson",
    )
    server = ModelServer(memory_mb=FITTING * WEIGHTS_MB, weights_mb=WEIGHTS_MB, load_s=0.01)
    return Scenario(
        name="more-models-than-fit-one", backends=backends, load=Load((traffic,), key_carrier(claims)), server=server
    )


@declare(
    "cache.affinity.hit-rate",
    needs=(Affinity,),
    without=KEY_MOVERS,
    off=DISTURBING,
    scenario=more_models_than_fit_one,
    baselines=("round_robin",),
    attempts=False,
)
def affinity_hit_rate(history: History, claims: Claims) -> Findings:
    """Affinity needs at most half of the cold loads that round robin needs for the same arrivals.

    A conforming ring needs about one load for each model. It exceeds the bound for fewer than one seed in 10,000,
    because each GPU holds twice its fair share. Random picks need as many loads as round robin.
    """
    baseline = history.baseline("round_robin").cold_loads()
    if not baseline:
        return
    loads = history.cold_loads()
    requests = len(history.all_requests().answered())
    if requests < ENOUGH * len(history.requests):
        yield undecided(f"only {requests} of {len(history.requests)} requests were answered")
        return
    note = f"{loads} cold loads, round robin {baseline}, models {MODELS_PER_BACKEND * history.scenario.backends}"
    bound = AT_MOST * baseline
    yield held(loads <= bound, at_s=0.0, observed=loads, bound=bound, sample=requests, alpha=ALPHA, note=note)
