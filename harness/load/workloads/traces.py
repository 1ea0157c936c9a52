"""Recorded traces, read from CSV with a header or JSON lines (.jsonl, .ndjson, .json), and turned into a load.

Columns are found by name, ignoring case, spaces and `_`. These and some others are known:

| trace | columns | time |
|---|---|---|
| Azure LLM inference 2023, 2024 | TIMESTAMP, ContextTokens, GeneratedTokens | date and time, in 100 ns |
| BurstGPT 1, 2 | Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type | seconds |
| BurstGPT 3 | the same with Session ID and Elapsed time | seconds |
| Mooncake | timestamp, input_length, output_length, hash_ids (blocks of 512 tokens) | milliseconds |

Any other column can be named (`columns={"time": "sent_at"}`). An invalid row is a ClaimsError that names file,
line and column. Rows need not be in order. A request of 0 tokens (a failed one in BurstGPT) becomes one of 1 token.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import from_json

from harness.load.wire import NUMBER_BITS
from harness.scenario.arrival_rates import Recorded
from harness.scenario.model import ClaimsError, Keys, Load, Stream
from harness.scenario.reading import shown
from harness.scenario.request_mix import Content, Replay
from harness.scenario.validation import nearest

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "time": ("time", "timestamp", "arrival", "arrivaltime", "arrivedat", "timestampms", "timems"),
        "model": ("model", "modelid", "modelname"),
        "input": ("input", "inputtokens", "prompttokens", "contexttokens", "requesttokens", "inputlength"),
        "output": ("output", "outputtokens", "completiontokens", "generatedtokens", "responsetokens", "outputlength"),
        "session": ("session", "sessionid", "conversationid", "chatid"),
        "blocks": ("blocks", "hashids"),
    }
)
"""Meanings of columns, and the names by which they are found, without case, spaces, `_` and `-`."""

NEEDED = ("time", "input", "output")
UNITS_S = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})

MOST_TOKENS = 10_000_000
"""Maximum tokens of a request: a word of a prompt is five bytes, and no body may exceed 64 MiB."""

LONGEST_NAME = 200

_TOKENS = f"a whole number of tokens from 0 to {MOST_TOKENS:,}"
_NAME = f"a name in printable ASCII, of {LONGEST_NAME} characters at most"
EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "time": "a number, or a date and time like 2023-11-16 18:17:03.979",
        "input": _TOKENS,
        "output": _TOKENS,
        "model": _NAME,
        "session": _NAME,
        "blocks": "a list of whole numbers",
    }
)
"""Valid values of columns by meaning, in words."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. `at_s` counts from the first request; `model` and `session` are empty if not recorded."""

    at_s: float
    input_tokens: int
    output_tokens: int
    model: str = ""
    session: str = ""
    blocks: tuple[int, ...] = ()


# --- reading ----------------------------------------------------------------------------------------------


def read(
    path: Path, columns: Mapping[str, str] | None = None, unit: str | None = None, limit: int | None = None
) -> list[TraceRow]:
    """The first `limit` rows of the trace at `path`, in order of time.

    `columns`: names of columns by meaning (a key of ALIASES), for columns that are not found by name. `unit` of numeric
    times: "s", "ms", "us" or "ns"; by default it follows from the column's name: milliseconds for a Mooncake trace,
    else seconds. ClaimsError, one line, if the file cannot be read.
    """
    for meaning in columns or {}:
        if meaning not in ALIASES:
            raise ClaimsError(f"column meaning {meaning!r} is unknown; {nearest(meaning, ALIASES)}")
    if unit is not None and unit not in UNITS_S:
        raise ClaimsError(f"time unit {unit!r} is unknown; {nearest(unit, UNITS_S)}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            readings = _of_json if path.suffix.lower() in (".jsonl", ".ndjson", ".json") else _of_csv
            rows = list(_rows(readings(path, file, columns or {}), unit, limit))
    except OSError as error:
        raise ClaimsError(f"{path}: cannot read the trace ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ClaimsError(f"{path}: not UTF-8 text (byte {error.start}); expected CSV or JSON lines") from None
    if not rows:
        raise ClaimsError(f"{path}: no request in this trace")
    rows.sort(key=lambda row: row.at_s)
    return [replace(row, at_s=row.at_s - rows[0].at_s) for row in rows]


def _of_csv(path: Path, file: Iterable[str], columns: Mapping[str, str]) -> Iterator[_Reading]:
    reader = csv.reader(file, strict=True)
    header: list[str] = []
    names: Mapping[str, str] = {}
    try:
        for values in reader:
            if not values:
                continue
            if not header:
                header = [name.strip() for name in values]
                names = _names(path, reader.line_num, header, columns)
                continue
            if len(values) != len(header):
                counts = f"saw {len(values)} values, expected {len(header)}"
                raise ClaimsError(f"{path}: line {reader.line_num}: {counts}: {', '.join(header)}")
            yield _Reading(path, reader.line_num, dict(zip(header, values, strict=True)), names)
    except csv.Error as error:
        raise ClaimsError(f"{path}: line {reader.line_num}: not CSV ({error})") from None


def _of_json(path: Path, file: Iterable[str], columns: Mapping[str, str]) -> Iterator[_Reading]:
    names: Mapping[str, str] = {}
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise ClaimsError(f"{path}: line {number}: saw {shown(line.strip())}, expected a JSON object on each line")
        names = names or _names(path, number, list(values), columns)
        yield _Reading(path, number, values, names)


def _rows(readings: Iterator[_Reading], unit: str | None, limit: int | None) -> Iterator[TraceRow]:
    for reading in itertools.islice(readings, limit):
        columns = reading.columns()
        time = columns.time
        yield TraceRow(
            at_s=_timestamp_s(time) if isinstance(time, datetime) else time * UNITS_S[unit or _unit_of(reading.names)],
            input_tokens=max(int(columns.input), 1),
            output_tokens=max(int(columns.output), 1),
            model=columns.model,
            session=columns.session,
            blocks=columns.blocks,
        )


def _timestamp_s(at: datetime) -> float:
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _names(path: Path, number: int, header: list[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The column of each meaning: from `columns`, else by name."""
    found: dict[str, str] = {}
    plain = {"".join(part for part in name.lower() if part not in " _-"): name for name in reversed(header)}
    for meaning, aliases in ALIASES.items():
        wanted = columns.get(meaning)
        if wanted is not None:
            if wanted not in header:
                raise ClaimsError(f"{path}: line {number}: no column {wanted!r}; {nearest(wanted, header)}")
            found[meaning] = wanted
            continue
        name = next((plain[alias] for alias in aliases if alias in plain), None)
        if name is not None:
            found[meaning] = name
        elif meaning in NEEDED:
            missing = f"no column for {meaning} among {', '.join(header) or 'none'}"
            raise ClaimsError(f"{path}: line {number}: {missing}; expected one like {aliases[1]}, or its name given")
    return found


def _unit_of(names: Mapping[str, str]) -> str:
    time = names["time"].lower()
    return "ms" if time.endswith("ms") or (time == "timestamp" and names["input"] == "input_length") else "s"


@dataclass(frozen=True, slots=True)
class _Reading:
    """One trace row, with its columns mapped to meanings."""

    path: Path
    line: int
    values: Mapping[str, Any]
    names: Mapping[str, str]

    def columns(self) -> _Columns:
        """The validated row. ClaimsError names line and column of the first invalid value."""
        try:
            return _COLUMNS.validate_python({meaning: self.values.get(name) for meaning, name in self.names.items()})
        except ValidationError as error:
            meaning = str(error.errors()[0]["loc"][0])
        name = self.names[meaning]
        seen = f"saw {shown(self.values[name])}" if name in self.values else "it is missing"
        expected = EXPECTED[meaning]
        raise ClaimsError(f"{self.path}: line {self.line}, column {name!r}: {seen}, expected {expected}")


def _no_truth(value: object) -> object:
    if isinstance(value, bool):  # pydantic would accept it as 0 or 1
        raise ValueError("a number")
    return value


def _or_empty(value: object) -> object:
    return "" if value is None else value


def _decoded(value: object) -> object:
    """The list in a CSV file's text."""
    return (from_json(value) if value.strip() else []) if isinstance(value, str) else value


Tokens = Annotated[float, BeforeValidator(_no_truth), Field(ge=0, le=MOST_TOKENS, multiple_of=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Time = Annotated[Number | datetime, Field(union_mode="left_to_right"), BeforeValidator(_no_truth)]
Word = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=LONGEST_NAME, pattern=r"^[ -~]*$"),
    Field(coerce_numbers_to_str=True),
    BeforeValidator(_or_empty),
]
"""Used in headers and paths, which restricts its characters."""
Blocks = Annotated[tuple[StrictInt, ...], BeforeValidator(_decoded)]


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the columns of a row must contain, by meaning."""

    time: Time
    input: Tokens
    output: Tokens
    model: Word = ""
    session: Word = ""
    blocks: Blocks = ()


_COLUMNS = TypeAdapter(_Columns)


# --- scaling ----------------------------------------------------------------------------------------------


def scaled(rows: list[TraceRow], time_scale: float = 1.0, rate_scale: float = 1.0, seed: int = 0) -> list[TraceRow]:
    """`rows` with all times multiplied by `time_scale` and their rate by `rate_scale`; contents unchanged.

    A rate scale below 1 thins: that share of the sessions, and of the rows without one, is kept. A rate scale above
    1 superposes: each row gets copies at random times before the next row, which keeps the trace's
    variation. Copies have sessions and prompts of their own. ClaimsError unless both scales are above 0, and for more
    requests than request numbers.
    """
    for name, scale in (("time scale", time_scale), ("rate scale", rate_scale)):
        if not 0 < scale < math.inf:
            raise ClaimsError(f"{name} {scale:g} of a trace: expected a number above 0")
    if len(rows) * rate_scale >= 1 << NUMBER_BITS:
        scaling = f"rate scale {rate_scale:g} of a trace of {len(rows)} requests"
        raise ClaimsError(f"{scaling}: expected less than {1 << NUMBER_BITS} requests as the result; use a smaller one")
    found: list[TraceRow] = []
    apart = 1 + max((block for row in rows for block in row.blocks), default=0)
    for position, row in enumerate(rows):
        unit = f"session/{row.session}" if row.session else f"row/{position}"
        following_s = rows[position + 1].at_s if position + 1 < len(rows) else row.at_s
        for copy in range(math.ceil(rate_scale)):
            # The last copy exists with a probability, decided for each session as a whole.
            if random.Random(f"{seed}/trace/{unit}/{copy}").random() >= rate_scale - copy:
                continue
            at_s = row.at_s
            if copy:
                at_s += (following_s - at_s) * random.Random(f"{seed}/trace/row/{position}/{copy}/at").random()
            found.append(_copied(row, at_s * time_scale, copy, apart))
    return sorted(found, key=lambda row: row.at_s)


def _copied(row: TraceRow, at_s: float, copy: int, apart: int) -> TraceRow:
    if not copy:
        return replace(row, at_s=at_s)
    session = f"{row.session}/{copy}" if row.session else ""
    return replace(row, at_s=at_s, session=session, blocks=tuple(block + copy * apart for block in row.blocks))


# --- the load ---------------------------------------------------------------------------------------------


def load_of_rows(rows: list[TraceRow], content: Content | None = None, timeout_s: float = 120.0) -> Load:
    """A load with the requests of `rows` at their times. `content` adds properties that traces lack, such as streaming.

    A row without a model gets the default one; without any model no row has a key. ClaimsError without rows.
    """
    if not rows:
        raise ClaimsError("the trace has no request left; use more of its rows, or a greater rate scale")
    numbers: dict[str, dict[str, int]] = defaultdict(dict)

    def number(kind: str, word: str) -> int:
        return numbers[kind].setdefault(word, len(numbers[kind])) if word else -1

    replay = Replay(
        prompt_tokens=tuple(row.input_tokens for row in rows),
        output_tokens=tuple(row.output_tokens for row in rows),
        keys=tuple(number("model", row.model) for row in rows),
        sessions=tuple(number("session", row.session) for row in rows),
        blocks=tuple(row.blocks for row in rows) if any(row.blocks for row in rows) else (),
    )
    names = tuple(numbers["model"])
    shape = Recorded(tuple(row.at_s for row in rows))
    rate_per_s = len(rows) / shape.duration_s if shape.duration_s else float(len(rows))
    stream = Stream(
        "trace",
        0.0,
        rate_per_s,
        len(rows),
        keys=Keys(len(names), names=names) if names else None,
        timeout_s=timeout_s,
        shape=shape,
        content=replace(content or Content(), replay=replay),
    )
    return Load((stream,))
