"""The content of a stream's requests as frozen data, and its generation from a seed. Standard library only.

Every aspect has its own random generator: a greater share of streaming requests, for example, changes no prompt.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

URGENCIES = ("normal", "high", "critical")
"""Values of the header x-urgency; a request without it is normal."""

BLOCK_TOKENS = 512
"""Tokens per block of a replayed prompt, as in the Mooncake traces."""

MOST_PAYLOAD_BYTES = 64 * 2**20
"""Limit of drawn padding, so that a wrong setting does not fill the memory."""

# --- lengths ----------------------------------------------------------------------------------------------
# In tokens, or in bytes for payloads. `form` names the class in JSON.


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length."""

    length: int
    form: Literal["fixed"] = "fixed"

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"length must be 0 or more, not {self.length}")

    def draw(self, generator: random.Random) -> int:
        """One length."""
        return self.length


@dataclass(frozen=True, slots=True)
class LongTail:
    """Lognormal with the given `median`, limited to 1 to `most`.

    `sigma` is the standard deviation of the logarithm: with 1.0, one in a hundred exceeds ten times the median.
    """

    median: float
    sigma: float = 1.0
    most: int = 32_768
    form: Literal["long-tail"] = "long-tail"

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.most:
            raise ValueError(f"median must be from 1 to most ({self.most}), not {self.median:g}")
        if not 0 < self.sigma <= 5:
            raise ValueError(f"sigma must be above 0 and at most 5, not {self.sigma:g}")

    def draw(self, generator: random.Random) -> int:
        """One length."""
        return min(max(round(generator.lognormvariate(math.log(self.median), self.sigma)), 1), self.most)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Drawn uniformly from `lengths`; a length listed twice is twice as likely."""

    lengths: tuple[int, ...]
    form: Literal["empirical"] = "empirical"

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 0:
            raise ValueError(f"lengths: expected one at least and none below 0, saw {self.lengths[:5]}")

    def draw(self, generator: random.Random) -> int:
        """One length."""
        return self.lengths[generator.randrange(len(self.lengths))]


Lengths = Fixed | LongTail | Empirical

# --- content ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations: `count` at a time, of `turns` requests each; a prompt begins with all earlier turns.

    The session with the oldest request sends the next one, so a session's requests are `count` ÷ rate apart. A session
    ends after its last turn, or when its next prompt would exceed `most_tokens`, and a new one replaces it. The first
    sessions start with different numbers of turns left, so that they do not all end together.
    """

    count: int
    turns: int
    most_tokens: int = 32_768

    def __post_init__(self) -> None:
        for name in ("count", "turns", "most_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of sessions must be 1 or more, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Replay:
    """The requests of a trace, in order, one entry for each time of `harness.scenario.arrival_rates.Recorded`.

    An empty tuple: not in the trace. `sessions`: numbers, -1 for none. `blocks`: the prompt as block numbers, each
    for `BLOCK_TOKENS` tokens; equal numbers mean equal text.
    """

    prompt_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    sessions: tuple[int, ...] = ()
    blocks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """The mix of a stream's requests. Shares are from 0 to 1, of the inferences unless stated otherwise.

    `prompt` and `output`: tokens; None: those of the stream. In sessions `prompt` is the tokens that a turn adds.
    `update_share` of all requests are updates; `high_share` and `critical_share` have an urgency above normal.
    `streaming_share` of the POSTs ask for a stream. `payload_bytes`: bodies are padded to this size.
    `abort_share` of all requests are cancelled by their client after `abort_after_s`; `fresh_share` of all use a new
    connection.
    """

    prompt: Lengths | None = None
    output: Lengths | None = None
    sessions: Sessions | None = None
    replay: Replay | None = None
    update_share: float = 0.0
    high_share: float = 0.0
    critical_share: float = 0.0
    streaming_share: float = 0.0
    payload_bytes: Lengths | None = None
    abort_share: float = 0.0
    abort_after_s: float = 1.0
    fresh_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("update_share", "high_share", "critical_share", "streaming_share", "abort_share", "fresh_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name):g}")
        if self.high_share + self.critical_share > 1.0:
            raise ValueError(f"high_share and critical_share are {self.high_share + self.critical_share:g} together")
        if self.abort_after_s <= 0:
            raise ValueError(f"abort_after_s must be above 0, not {self.abort_after_s:g}")
        if self.replay is not None and self.sessions is not None:
            raise ValueError("a replay has the sessions of its trace: expected no others beside it")


class RequestContent(NamedTuple):
    """The content of one request; `harness.scenario.arrivals.Arrival` explains the fields."""

    update: bool
    prompt_tokens: int
    output_tokens: int
    urgency: str
    session: int
    turn: int
    history: tuple[int, ...]
    blocks: tuple[int, ...]
    payload_bytes: int
    streams: bool
    abort_after_s: float | None
    fresh: bool


def draw(content: Content, requests: int, prompt_tokens: int, output_tokens: int, seed: str) -> list[RequestContent]:
    """The content of each of `requests`. The token counts are the stream's, used where `content` sets none.

    Sessions are numbered from 0 within the stream. ValueError if a replay does not have one entry per request.
    """
    replay = content.replay or Replay()
    _check(replay, requests)
    chances = _Chances(seed)
    lengths = {name: random.Random(f"{seed}/{name}") for name in ("prompt", "output", "payload")}
    sessions = _DrawnSessions(content.sessions) if content.sessions else _RecordedSessions(replay)
    found = []
    for position in range(requests):
        update = chances.hit("update", content.update_share)
        prompt = content.prompt.draw(lengths["prompt"]) if content.prompt else prompt_tokens
        output = content.output.draw(lengths["output"]) if content.output else output_tokens
        padding = content.payload_bytes.draw(lengths["payload"]) if content.payload_bytes else 0
        urgency_draw = chances.draw("urgency")
        if replay.prompt_tokens:
            prompt = replay.prompt_tokens[position]
        if replay.output_tokens:
            output = replay.output_tokens[position]
        turn = _NO_TURN if update else sessions.turn(position, prompt, output)
        found.append(
            RequestContent(
                update=update,
                prompt_tokens=turn.prompt_tokens if turn.session >= 0 else prompt,
                output_tokens=output,
                urgency="normal" if update else _urgency(urgency_draw, content),
                session=turn.session,
                turn=turn.number,
                history=turn.history,
                blocks=replay.blocks[position] if replay.blocks and not update else (),
                payload_bytes=min(padding, MOST_PAYLOAD_BYTES),
                streams=chances.hit("streaming", content.streaming_share) and not update,
                abort_after_s=content.abort_after_s if chances.hit("abort", content.abort_share) else None,
                fresh=chances.hit("fresh", content.fresh_share),
            )
        )
    return found


# --- sessions ---------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """One request of a session. `history`: tokens of the earlier prompts and answers, alternating."""

    session: int
    number: int
    prompt_tokens: int
    history: tuple[int, ...]


_NO_TURN = Turn(-1, 0, 0, ())


class _DrawnSessions:
    """Generated sessions: which one sends next, and its earlier turns."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._next = sessions.count
        # Waiting sessions, oldest first: number, turns left, turns so far, history.
        self._waiting: deque[tuple[int, int, int, tuple[int, ...]]] = deque(
            (number, 1 + number % sessions.turns, 0, ()) for number in range(sessions.count)
        )

    def turn(self, position: int, added_tokens: int, output_tokens: int) -> Turn:
        """The next request; it adds `added_tokens` to its session, and its answer adds `output_tokens`."""
        most = self._sessions.most_tokens
        session, left, so_far, history = self._waiting.popleft()
        if history and sum(history) + added_tokens > most:
            session, left, so_far, history = self._new()
        added_tokens = min(added_tokens, most)
        turn = Turn(session, so_far, sum(history) + added_tokens, history)
        if left > 1:
            self._waiting.append((session, left - 1, so_far + 1, (*history, added_tokens, output_tokens)))
        else:
            self._waiting.append(self._new())
        return turn

    def _new(self) -> tuple[int, int, int, tuple[int, ...]]:
        self._next += 1
        return self._next - 1, self._sessions.turns, 0, ()


class _RecordedSessions:
    """Sessions of a trace. A prompt no longer than its session's history starts the conversation anew."""

    def __init__(self, replay: Replay) -> None:
        self._sessions = replay.sessions
        self._so_far: dict[int, tuple[int, tuple[int, ...]]] = {}

    def turn(self, position: int, prompt_tokens: int, output_tokens: int) -> Turn:
        """The request at `position` with a prompt of `prompt_tokens` in all."""
        session = self._sessions[position] if self._sessions else -1
        if session < 0:
            return _NO_TURN
        number, history = self._so_far.get(session, (0, ()))
        if sum(history) >= prompt_tokens:
            history = ()  # too short to contain the history: a new conversation
        added_tokens = prompt_tokens - sum(history)
        self._so_far[session] = (number + 1, (*history, added_tokens, output_tokens))
        return Turn(session, number, prompt_tokens, history)


class _Chances:
    """Independent random draws by name, each name with its own generator."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._generators: dict[str, random.Random] = {}

    def draw(self, name: str) -> float:
        """A number from 0 to 1, 1 excluded."""
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = random.Random(f"{self._seed}/{name}")
        return generator.random()

    def hit(self, name: str, share: float) -> bool:
        """True with probability `share`. Call it once per request for any share, so that draws stay aligned."""
        return self.draw(name) < share


def _urgency(drawn: float, content: Content) -> str:
    if drawn < content.critical_share:
        return "critical"
    return "high" if drawn < content.critical_share + content.high_share else "normal"


def _check(replay: Replay, requests: int) -> None:
    for name in ("prompt_tokens", "output_tokens", "keys", "sessions", "blocks"):
        entries = len(getattr(replay, name))
        if entries not in (0, requests):
            raise ValueError(f"replay: {entries} {name} for {requests} requests; expected as many, or none")
