"""Claims files: a complete one, and one line for each kind of mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.claims.features import (
    FEATURES,
    Affinity,
    Backoff,
    Breaker,
    Claims,
    Ejection,
    Hedge,
    Limits,
    Retry,
)
from harness.claims.file import ClaimsFile, address_of, claims_file
from harness.scenario.model import ClaimsError, UnsupportedError
from harness.scenario.validation import nearest

WHOLE = """
[balancer]
name = "acme-gateway"
version = "2.3.1"
url = "http://127.0.0.1:8080"
protocol = "openai"
correlate = ["header:x-request-id", "json:seed", "prompt-suffix"]

[backends]
listen = ["127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9004"]
health_path = "/health"

[run]
config = "nginx.conf.j2"
start = ["nginx", "-p", "{workdir}", "-c", "{config}"]
reload = ["nginx", "-p", "{workdir}", "-c", "{config}", "-s", "reload"]

[claims.affinity]
key = "header:x-model-id"
algorithm = "ring"
virtual_nodes = 150

[claims.breaker]
failures = 5
open_s = 2.0
probes = 1
backoff = { multiplier = 2.0, max_s = 60.0, jitter = 0.2 }
"""

RUNNING = """
[balancer]
url = "http://127.0.0.1:8080"

[backends]
listen = ["127.0.0.1:9001", "127.0.0.1:9002"]
"""


def read(folder: Path, text: str) -> ClaimsFile:
    """The claims file `text`, read from `folder`/mine.toml."""
    path = folder / "mine.toml"
    path.write_text(text)
    return claims_file(path)


def mistake(folder: Path, text: str) -> str:
    """The error message for the claims file `text`, without the path; always one line."""
    with pytest.raises(ClaimsError) as caught:
        read(folder, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{folder / 'mine.toml'}: ")
    return message.partition(": ")[2]


def test_a_whole_file(tmp_path: Path) -> None:
    file = read(tmp_path, WHOLE)
    assert (file.name, file.version, file.url) == ("acme-gateway", "2.3.1", "http://127.0.0.1:8080")
    assert file.folder == tmp_path.resolve()
    assert file.correlate == ("header:x-request-id", "json:seed", "prompt-suffix")
    assert len(file.listen) == 4
    assert file.run is not None
    assert file.run.start == ("nginx", "-p", "{workdir}", "-c", "{config}")
    claims = file.claims
    assert claims.names == ("affinity", "breaker")
    assert claims[Affinity] == Affinity("header:x-model-id", "ring", 150)
    assert claims[Breaker] == Breaker(failures=5, open_s=2.0, probes=1, backoff=Backoff(2.0, 60.0, 0.2))
    assert (claims.fixed_backends, claims.can_join, claims.can_reload, claims.protocol) == (4, True, True, "openai")


def test_a_running_balancer_cannot_be_changed(tmp_path: Path) -> None:
    file = read(tmp_path, RUNNING + "[claims.retry]\n")
    assert (file.name, file.version, file.run) == ("mine", "unknown", None)
    assert (file.claims.can_join, file.claims.can_reload) == (False, False)
    assert file.claims[Retry] == Retry()


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_has_defaults(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, RUNNING + f"[claims.{name}]\n").claims.features == (FEATURES[name](),)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "claims nothing; add at least one table such as [claims.affinity]"),
        ("[claims]", "claims nothing; add at least one table such as [claims.affinity]"),
        ("[claims.brekaer]", "claims.brekaer is unknown; did you mean breaker"),
        ("[claims.zzz]", "claims.zzz is unknown; valid: affinity, bounded_load, breaker,"),
        ("[claims]\nretry = 3", "claims.retry: saw 3, expected a table"),
        ("[claims.breaker]\nfailure = 5", "claims.breaker.failure is unknown; did you mean failures?"),
        ("[claims.breaker]\nfailures = 2.5", "claims.breaker.failures: saw 2.5, expected a whole number"),
        ("[claims.breaker]\nfailures = '5'", "claims.breaker.failures: saw '5', expected a whole number"),
        ("[claims.breaker]\nfailures = true", "claims.breaker.failures: saw true, expected a whole number"),
        ("[claims.breaker]\nfailures = 0", "claims.breaker: failures must be above 0, not 0"),
        ("[claims.breaker]\nopen_s = -1", "open_s must be above 0, not -1"),
        ("[claims.breaker]\nopen_s = nan", "open_s must be above 0, not nan"),
        ("[claims.hedge]\nburst = 0", "burst must be above 0, not 0"),
        ("[claims.hedge]\nload_threshold = -1.0", "load_threshold must be above 0, not -1.0"),
        ("[claims.health_share]\nconnection_span = 0", "connection_span must be above 0, not 0"),
        ("[claims.breaker]\nopen_s = 2026-01-01", "claims.breaker.open_s: saw '2026-01-01', expected a number"),
        ("[claims.breaker]\nbackoff = 2", "claims.breaker.backoff: saw 2, expected a table"),
        (
            "[claims.breaker]\nbackoff = { multiplir = 2.0 }",
            "claims.breaker.backoff.multiplir is unknown; did you mean multiplier?",
        ),
        ("[claims.breaker]\nbackoff = { multiplier = 0.0 }", "claims.breaker.backoff: multiplier must be above 0"),
        ("[claims.affinity]\nalgorithm = 'rings'", "algorithm 'rings' is unknown; did you mean ring?"),
        ("[claims.affinity]\nkey = 'headr:x'", "key 'headr:x' is none of header:NAME, json:PATH"),
        ("[claims.affinity]\nkey = 5", "claims.affinity.key: saw 5, expected text"),
        ("[claims.spread]\npolicy = 'round-robin'", "did you mean round_robin or weighted_round_robin?"),
        ("[claims.spread]\npolicy = 'ewam'", "did you mean ewma?"),
        ("[claims.ejection]\ncap_share = 0.0", "cap_share must be above 0 and at most 1, not 0"),
        ("[claims.ejection]\ncap_share = 1.5", "cap_share must be above 0 and at most 1, not 1.5"),
        ("[claims.limits]\nburst = 0", "burst must be above 0, not 0"),
        ("[claims.limits]\nrate_per_s = 0.0", "rate_per_s must be above 0, not 0"),
        ("[claims.limits]\nconcurrency = 0", "concurrency must be above 0, not 0"),
        ("[claims.limits]\nqueue = -1", "queue must be 0 or more, not -1"),
    ],
)
def test_mistakes_in_claims(tmp_path: Path, table: str, message: str) -> None:
    assert message in mistake(tmp_path, RUNNING + table)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("[balancer", "not valid TOML"),
        ("[balanser]", "balanser is unknown; did you mean balancer?"),
        ("balancer = 3", "balancer: saw 3, expected a table"),
        ("[balancer]\nname = 'x'", "nothing to test: [balancer] needs url or python, or a [run] table"),
        ("[balancer]\nnmae = 'x'", "balancer.nmae is unknown; did you mean name?"),
        ("[balancer]\nurl = 5", "balancer.url: saw 5, expected text"),
        ("[balancer]\nurl = '127.0.0.1:80'", "balancer.url: saw '127.0.0.1:80', expected http://127.0.0.1:PORT"),
        ("[balancer]\nurl = 'http://127.0.0.1:80'", "[backends] listen = ["),
        ("[balancer]\npython = 'p:C'\nprotocol = 'grpc'", "balancer.protocol: saw 'grpc'; valid: chat, http"),
        (
            "[balancer]\npython = 'p:C'\ncorrelate = ['x']",
            "balancer.correlate[0]: saw 'x'; valid: header:x-mock-tag, header:x-request-id",
        ),
        ("[balancer]\npython = 'p:C'\ncorrelate = 'x'", "balancer.correlate: saw 'x', expected a list"),
        (
            "[balancer]\npython = 'p:C'\n[backends]\nlisten = ['9001']",
            "backends.listen[0]: address '9001': expected HOST:PORT",
        ),
        ("[balancer]\npython = 'p:C'\n[backends]\nlisten = ['10.0.0.1:9001']", "use 127.0.0.1:9001"),
        (
            "[balancer]\npython = 'p:C'\n[backends]\nlisten = ['[::1]:9001']",
            "address '[::1]:9001': mock backends listen on IPv4 only; use 127.0.0.1:9001",
        ),
        (
            "[balancer]\nurl = 'http://127.0.0.1:9002/'\n[backends]\nlisten = ['127.0.0.1:9001', '127.0.0.1:9002']",
            "backends.listen names 127.0.0.1:9002, but balancer.url has that port; choose another",
        ),
        (
            f"[balancer]\npython = 'p:C'\n[backends]\nlisten = {[f'127.0.0.1:{9001 + n}' for n in range(29)]}",
            "backends.listen: saw 29 items, expected a list of at most 28",
        ),
        ("[balancer]\nurl = 'http://127.0.0.1:65536'", "balancer.url: saw 'http://127.0.0.1:65536', expected http"),
        ("[balancer]\nurl = 'http://127.0.0.1:0'", "with a port from 1 to 65535"),
        ("[balancer]\nurl = 'http://127.0.0.1:80\\n'", "expected http://127.0.0.1:PORT; load is"),
        ("[balancer]\npython = 'p:C'\n[backends]\nlisten = ['127.0.0.1:99999']", "expected HOST:PORT"),
        ("[run]\nconfig = 'x'", "run.start is missing; expected a list of at least 1"),
        ("[run]\nconfig = 'x'\nstart = ['x']\ncheck = 'nginx -t'", "run.check: saw 'nginx -t', expected a list"),
        ("[run]\nconfig = 'x'\nstart = 'nginx'", "run.start: saw 'nginx', expected a list"),
        ("[run]\nconfig = 'x'\nstart = ['x']\nrelaod = ['x']", "run.relaod is unknown; did you mean reload?"),
        ("[run]\nconfig = 'x'\nstart = ['x']\nswitches = ['retries']", "run.switches[0]: saw 'retries'; did you"),
        ("run = 3", "run: saw 3, expected a table"),
    ],
)
def test_mistakes_elsewhere(tmp_path: Path, head: str, message: str) -> None:
    assert message in mistake(tmp_path, f"{head}\n[claims.retry]\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match="cannot be read"):
        claims_file(tmp_path / "none.toml")


def test_python_code_can_change_membership(tmp_path: Path) -> None:
    file = read(tmp_path, "[balancer]\npython = 'mine.policy:Mine'\n[claims.retry]\n")
    assert (file.python, file.claims.can_join, file.claims.fixed_backends) == ("mine.policy:Mine", True, None)


@pytest.mark.parametrize(("share", "most"), [(None, 4), (1.0, 4), (0.5, 2), (0.74, 2), (0.75, 3), (0.1, 1)])
def test_a_cap_rounds_down_but_one_may_always_be_out(share: float | None, most: int) -> None:
    assert Ejection(cap_share=share).most_ejected(4) == most


def test_limits_claim_something() -> None:
    assert Limits(rate_per_s=None, concurrency=2).burst == 10
    with pytest.raises(ValueError, match="neither rate_per_s nor concurrency"):
        Limits(rate_per_s=None)


def test_claims_by_class() -> None:
    claims = Claims((Affinity(), Retry()))
    assert Affinity in claims
    assert Hedge not in claims
    with pytest.raises(KeyError, match="Hedge is not claimed"):
        claims[Hedge]


def test_fleet() -> None:
    assert Claims().fleet(8) == 8
    assert Claims(fixed_backends=3).fleet(8) == 3
    assert Claims(fixed_backends=12).fleet(8) == 12
    with pytest.raises(UnsupportedError, match="needs 3 backends"):
        Claims(fixed_backends=2).fleet(8, at_least=3)
    with pytest.raises(UnsupportedError, match="cannot change membership"):
        Claims(can_join=False).need_membership()


def test_addresses_and_near_names() -> None:
    assert address_of("127.0.0.1:9001") == ("127.0.0.1", 9001)
    assert nearest("ngnix", ("nginx", "reference")) == "did you mean nginx?"
    assert nearest("zzz", ("nginx", "reference")) == "valid: nginx, reference"
