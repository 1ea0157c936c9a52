"""Cache: affinity pays when models stay resident in GPU memory instead of being loaded again and again."""

from __future__ import annotations

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.model import Keys, Load, ModelServer, Scenario, Stream, UnsupportedError
from harness.stats import ALPHA
from suites.scenarios import CALM, ENOUGH, KEY_MOVERS, key_carrier

MODELS_PER_BACKEND = 6
FITTING = 12
"""Models that fit one GPU: twice the mean of a backend's share, so that a ring's uneven shares fit as well."""

WEIGHTS_MB = 100
AT_MOST = 0.5


def more_models_than_fit_one(claims: Claims) -> Scenario:
    """Six models for each backend, twelve fit one: more than one GPU holds, half of what the fleet holds."""
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
    off=CALM,
    scenario=more_models_than_fit_one,
    baselines=("round_robin",),
    attempts=False,
)
def affinity_hit_rate(history: History, claims: Claims) -> Findings:
    """Affinity keeps models resident: at most half of the cold loads that round robin needs for the same arrivals.

    A conforming ring needs about one load for each model; it goes over the bound for fewer than one seed in 10,000,
    since each GPU holds twice its fair share. Random picks need as many as round robin.
    """
    baseline = history.baseline("round_robin").cold_loads()
    if not baseline:
        return
    loads = history.cold_loads()
    requests = int(history.answered().sum())
    if requests < ENOUGH * len(history.requests):
        yield undecided(f"only {requests} of {len(history.requests)} requests were answered")
        return
    note = f"{loads} cold loads, round robin {baseline}, models {MODELS_PER_BACKEND * history.scenario.backends}"
    bound = AT_MOST * baseline
    yield held(loads <= bound, at_s=0.0, observed=loads, bound=bound, sample=requests, alpha=ALPHA, note=note)
