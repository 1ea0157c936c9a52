"""The domain model as frozen data: scenarios, loads, backends, errors. Standard library only.

A scenario describes one run for a world (sim or live). It is plain data: equal scenarios share a run, a run can be
repeated from its seed, and one function scales every duration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from harness.scenario.arrival_rates import Shape
from harness.scenario.fast_dataclass import canonical
from harness.scenario.faults import Drain, Join, Kill, Leave, Membership, Pause, Restart, Step, Weigh
from harness.scenario.request_mix import Content

# --- errors, by cause -------------------------------------------------------------------------------------


class SteelyardError(Exception):
    """Base of all errors that end a run with one line: what was observed, what was expected, what to do."""


class ClaimsError(SteelyardError):
    """The user's claims file or command line is invalid."""


class TargetError(SteelyardError):
    """The balancer under test does not start, rejects its configuration, or does not become ready."""


class AdapterError(TargetError):
    """An adapter, or the gateway that it made, breaks its interface."""


class HarnessError(SteelyardError):
    """Steelyard itself failed: the load process, the fleet or the fault proxy died."""


class EvidenceError(SteelyardError):
    """A file of saved evidence is truncated, altered, or of another version."""


class UnsupportedError(SteelyardError):
    """A property does not apply to this target; the text is the reason shown to the user."""


class DiedError(SteelyardError):
    """The balancer exited or rejected a change during a run; every property of that run fails."""


# --- enumerations -----------------------------------------------------------------------------------------


class World(StrEnum):
    """Where a scenario runs: in virtual time (sim), or over real sockets (live)."""

    SIM = "sim"
    LIVE = "live"


class Kind(IntEnum):
    """Kind of a request: generate tokens, or update the backend's state."""

    INFERENCE = 0
    UPDATE = 1


class Method(IntEnum):
    """HTTP method of a request."""

    POST = 0
    GET = 1


class Failure(IntEnum):
    """How a request ended for its client, apart from its status.

    STALE_CONNECTION: a reused connection was closed without an answer. A balancer that closes an idle connection just
    as the client uses it again looks like this; no attempt was made.
    """

    NONE = 0
    REFUSED = 1
    RESET = 2
    CLOSED = 3
    STALE_CONNECTION = 4
    TRUNCATED = 5
    TIMEOUT = 6
    NOT_SENT = 7
    OTHER = 8


class Echo(IntEnum):
    """Which request's tag a client found in the body of its answer: none, its own, or another one's."""

    NONE = 0
    OWN = 1
    OTHER = 2


class Ending(IntEnum):
    """How an attempt ended at its backend. OPEN: the backend died or the run ended before the attempt did.

    REFUSED: no capacity or queue space. CUT: the backend reset the connection, before or during its answer.
    """

    OPEN = 0
    ANSWERED = 1
    CLIENT_GONE = 2
    REFUSED = 3
    CUT = 4


class Residency(IntEnum):
    """An event of a model in GPU memory."""

    LOADING = 0
    LOADED = 1
    EVICTED = 2


class Connections(StrEnum):
    """How a stream of requests uses client connections.

    KEPT: a pool of keep-alive connections. FRESH: one connection per request. ONE: a single keep-alive connection;
    a request waits for the answer to the previous one, and its latency still counts from its intended time.
    """

    KEPT = "kept"
    FRESH = "fresh"
    ONE = "one"


# --- load -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keys:
    """The affinity keys of a stream: `count` names derived from the run's seed.

    `pick`: "sweep" uses them in turn, "uniform" draws evenly, "zipf" draws with `zipf_exponent`. "hot": one key gets
    `hot_share` of all requests, the others share the rest; every `moves_every_s` the next key becomes the hot one
    (None: never). `names`: literal key names, one per key, instead of derived ones.
    """

    count: int
    pick: str = "uniform"
    zipf_exponent: float = 1.0
    hot_share: float = 0.5
    moves_every_s: float | None = None
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Chats:
    """A closed loop for `duration_s`: `count` virtual users; each waits for its answer, thinks, and sends again.

    Think times are exponential with mean `think_s`; each user begins with one. After a failure a user pauses for at
    least 0.05 s, so that a dead balancer is not flooded.
    """

    count: int
    think_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A source of requests from `start_s` on: an open loop of `requests` at `rate_per_s` on average, or a closed loop.

    `arrivals` is "constant" or "poisson". `methods` are used in turn. `keys` None: no affinity key is sent. A `shape`
    replaces `arrivals`, `rate_per_s` and `requests`, which then only state its averages. `content` describes requests
    that differ from each other. With `chats` the stream is a closed loop whose times are not known before the run; its
    virtual users send the `requests` in turn, repeatedly.
    """

    name: str
    start_s: float
    rate_per_s: float
    requests: int
    keys: Keys | None = None
    arrivals: str = "constant"
    kind: Kind = Kind.INFERENCE
    methods: tuple[Method, ...] = (Method.POST,)
    connections: Connections = Connections.KEPT
    prompt_tokens: int = 8
    output_tokens: int = 4
    timeout_s: float = 10.0
    shape: Shape | None = None
    content: Content | None = None
    chats: Chats | None = None

    @property
    def end_s(self) -> float:
        """Mean time of the stream's last request, in seconds from the start of the run."""
        timed = self.chats or self.shape
        return self.start_s + (timed.duration_s if timed else self.requests / self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Load:
    """All requests of a run. `key_carrier` says where the affinity key is sent, as in a claims file."""

    streams: tuple[Stream, ...]
    key_carrier: str = "header:x-model-id"

    def index(self, name: str) -> int:
        """Position of the stream called `name`; KeyError lists the valid names."""
        names = [stream.name for stream in self.streams]
        if name not in names:
            raise KeyError(f"no stream {name!r} in this load; there are {names}")
        return names.index(name)

    def stream(self, name: str) -> Stream:
        """The stream called `name`; KeyError lists the valid names."""
        return self.streams[self.index(name)]


# --- backends ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelServer:
    """Settings of every backend of a scenario, a mock GPU model server. The fields are those of a `mockgpu` setup.

    With `weights_mb` 0 and `load_s` 0 every model is resident everywhere and costs no memory.
    """

    memory_mb: int = 80_000
    max_running: int = 64
    queue_limit: int | None = 1000
    loads_at_once: int = 1
    update_s: float = 0.001
    weights_mb: int = 0
    load_s: float = 0.0
    prefill_tokens_per_s: float = 16_000.0
    decode_step_s: float = 0.0005

    def as_setup(self) -> str:
        """The same settings as JSON for `mockgpu.gpu.catalogue.Setup.from_json`."""
        setup = {
            "gpu": {
                "name": "scenario",
                "memory_mb": self.memory_mb,
                "max_running": self.max_running,
                "queue_limit": self.queue_limit,
                "loads_at_once": self.loads_at_once,
                "update_s": self.update_s,
            },
            "default_model": {
                "name": "any",
                "weights_mb": self.weights_mb,
                "load_s": self.load_s,
                "prefill_tokens_per_s": self.prefill_tokens_per_s,
                "decode_step_s": self.decode_step_s,
            },
            "models": [],
        }
        return json.dumps(setup)


# --- scenarios -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """A named period of a run, in seconds from its start."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run, described for any world. `intervals_s`: the durations on which its timing findings depend.

    `backends` are members from the start; `spare` further ones may join (their addresses are known at render time).
    Without intervals no second counts as too noisy to judge. `off` names the features that must be switched off.
    """

    name: str
    backends: int
    load: Load
    spare: int = 0
    server: ModelServer = field(default_factory=ModelServer)
    timeline: tuple[Step, ...] = ()
    phases: tuple[Phase, ...] = ()
    intervals_s: tuple[float, ...] = ()
    off: frozenset[str] = frozenset()

    @property
    def end_s(self) -> float:
        """End of the last stream, phase or step, in seconds."""
        ends = [stream.end_s for stream in self.load.streams] + [phase.end_s for phase in self.phases]
        return max(ends + [step.at_s for step in self.timeline], default=0.0)

    @property
    def backend_ids(self) -> tuple[str, ...]:
        """Names of all backends, spare ones last: `gpu-0`, `gpu-1`, ..."""
        return tuple(f"gpu-{number}" for number in range(self.backends + self.spare))

    @property
    def kills(self) -> bool:
        """Whether a backend process is killed, paused or restarted, so that each backend needs a process of its own."""
        return any(isinstance(step, Kill | Pause | Restart) for step in self.timeline)

    def members(self, changes: Sequence[Membership]) -> tuple[str, ...]:
        """The balancer's member list after `changes`, in its order, `drained` members included.

        Every change also rotates the list by one, which exposes a mapping that depends on the order.
        """
        names = list(self.backend_ids[: self.backends])
        for change in changes:
            match change:
                case Leave():
                    names.remove(change.backend)
                case Join():
                    names += [change.backend] if change.backend not in names else []
                case Weigh() | Drain():
                    continue
        offset = len(changes) % len(names) if names else 0
        return tuple(names[offset:] + names[:offset])

    def drained(self, changes: Sequence[Membership]) -> frozenset[str]:
        """Members that must get no new requests after `changes`: drained, and neither removed nor joined since."""
        names: set[str] = set()
        for change in changes:
            match change:
                case Drain():
                    names.add(change.backend)
                case Leave() | Join():
                    names.discard(change.backend)
                case Weigh():
                    continue
        return frozenset(names)

    def weights(self, changes: Sequence[Membership]) -> dict[str, int]:
        """The weight of each backend after `changes`; 1 where none was set. A leave keeps the weight."""
        weights = dict.fromkeys(self.backend_ids, 1)
        weights |= {change.backend: change.weight for change in changes if isinstance(change, Weigh)}
        return weights

    def phase(self, name: str) -> Phase:
        """The phase called `name`; KeyError if there is none."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise KeyError(f"no phase {name!r}; there are {[phase.name for phase in self.phases]}")

    def digest(self) -> str:
        """Sixteen hex digits, equal for equal scenarios in every process."""
        text = json.dumps(canonical(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
