"""Public traces are read unchanged; an invalid row is named by file, line and column; scaling keeps contents."""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.load.wire import request_of
from harness.load.workloads.traces import MOST_TOKENS, TraceRow, load_of_rows, read, scaled
from harness.scenario.arrivals import draw
from harness.scenario.model import ClaimsError
from harness.scenario.request_mix import MOST_PAYLOAD_BYTES, Content

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
"""
BURSTGPT_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
0.0,12,3.5,GPT-4,100,20,120,Conversation log
9.5,12,1.5,GPT-4,180,30,210,Conversation log
10.0,,1.5,ChatGPT,50,3,53,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 0, "input_length": 7319, "output_length": 490, "hash_ids": [0, 14, 15]}

{"timestamp": 3052, "input_length": 7234, "output_length": 794, "hash_ids": [0, 28, 29]}
"""


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azure(tmp_path: Path) -> None:
    rows = read(written(tmp_path, AZURE))
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(4808, 10), (3180, 8), (110, 27)]
    assert [row.at_s for row in rows] == pytest.approx([0.0, 0.052, 0.098189], abs=2e-6)
    later = read(written(tmp_path, AZURE_2024))
    assert [row.at_s for row in later] == pytest.approx([0.0, 0.007405], abs=2e-6)


def test_a_time_without_a_zone_is_universal_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "time,input,output\n2024-03-10T06:59:59,1,1\n2024-03-10 07:00:01+00:00,1,1\n")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert [row.at_s for row in read(path)] == [0.0, 2.0]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_burstgpt(tmp_path: Path) -> None:
    rows = read(written(tmp_path, BURSTGPT))
    assert rows == [
        TraceRow(0.0, 472, 18, "ChatGPT"),
        TraceRow(40.0, 1087, 230, "ChatGPT"),
        TraceRow(113.0, 417, 1, "GPT-4"),
    ]
    later = read(written(tmp_path, BURSTGPT_3))
    assert [(row.at_s, row.session, row.model) for row in later] == [
        (0.0, "12", "GPT-4"), (9.5, "12", "GPT-4"), (10.0, "", "ChatGPT"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["mooncake.jsonl", "MOONCAKE.JSONL"])
def test_mooncake(tmp_path: Path, name: str) -> None:
    rows = read(written(tmp_path, MOONCAKE, name))
    assert rows == [
        TraceRow(0.0, 6755, 500, blocks=(0, 1, 2, 3)),
        TraceRow(0.0, 7319, 490, blocks=(0, 14, 15)),
        TraceRow(3.052, 7234, 794, blocks=(0, 28, 29)),
    ]


def test_other_names_units_order_and_a_limit(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffsent at,in,out,who\n2000,5,6,a\n1000,7,8,b\n9000,1,1,c\n")
    columns = {"time": "sent at", "input": "in", "output": "out", "session": "who"}
    rows = read(path, columns, unit="ms", limit=2)
    assert rows == [TraceRow(0.0, 7, 8, session="b"), TraceRow(1.0, 5, 6, session="a")]
    assert [row.at_s for row in read(path, columns)] == [0.0, 1000.0, 8000.0]
    named = written(tmp_path, "timestamp_ms,prompt_tokens,Output-Tokens\n500,5,6.0\n750,7,8\n")
    assert read(named) == [TraceRow(0.0, 5, 6), TraceRow(0.25, 7, 8)]


BAD = [
    ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,10,4\nyesterday,10,4\n",
     "a.csv: line 3, column 'TIMESTAMP': saw 'yesterday', expected a number, or a date and time like"),
    ("a.csv", "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,many,18\n",
     "a.csv: line 2, column 'Request tokens': saw 'many', expected a whole number of tokens from 0 to"),
    ("a.csv", "time,input,output\n1,2,-3\n", "line 2, column 'output': saw '-3', expected a whole number"),
    ("a.csv", "time,input,output\n1,2,2.5\n", "line 2, column 'output': saw '2.5', expected a whole number"),
    ("a.jsonl", '{"timestamp": true, "input_length": 5, "output_length": 5}\n',
     "saw true, expected a number, or a date"),
    ("a.csv", "time,input,output\n-inf,2,2\n", "line 2, column 'time': saw '-inf', expected a number"),
    ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5, "model": true}\n',
     "saw true, expected a name"),
    ("a.csv", "time,input,output\nnan,2,2\n", "line 2, column 'time': saw 'nan', expected a number"),
    ("a.csv", "time,input,output\n1,2,3\n1,2\n", "a.csv: line 3: saw 2 values, expected 3: time, input, output"),
    ("a.csv", "time,input,output,model\n1,2,3,\"a\nb\"\n", "line 3, column 'model': saw 'a\\nb', expected a name"),
    ("a.csv", "time,input,output,model\n1,2,3,modèle\n", "column 'model': saw 'modèle', expected a name in printable"),
    ("a.csv", "time,input,output,model\n1,2,3," + "m" * 201 + "\n",
     "expected a name in printable ASCII, of 200 characters at most"),
    ("a.csv", "time,input,output\n1,2,\"3\n", "a.csv: line 2: not CSV"),
    ("a.csv", "when,input,output\n1,2,3\n", "a.csv: line 1: no column for time among when, input, output; expected"),
    ("a.csv", "\n\nwhen,input,output\n", "a.csv: line 3: no column for time among when, input, output; expected"),
    ("a.csv", "time,input,output\n1,480000000,10\n",
     "a.csv: line 2, column 'input': saw '480000000', expected a whole number of tokens from 0 to 10,000,000"),
    ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 10000001}\n',
     "a.jsonl: line 1, column 'output_length': saw 10000001, expected a whole number of tokens from 0 to 10,000,000"),
    ("a.JSONL", "time,input,output\n1,2,3\n", "a.JSONL: line 1: saw 'time,input,output', expected a JSON object"),
    ("a.csv", "time,input,output\n", "a.csv: no request in this trace"),
    ("a.csv", "", "a.csv: no request in this trace"),
    ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5}\n\n[1]\n',
     "a.jsonl: line 3: saw '[1]', expected a JSON object on each line"),
    ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5}\n{"timestamp": 1, "input_length": 5}\n',
     "a.jsonl: line 2, column 'output_length': it is missing, expected a whole number of tokens"),
    ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": true}\n', "saw true, expected a whole number"),
    ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1, "x"]}\n',
     "line 1, column 'hash_ids': saw [1, 'x'], expected a list of whole numbers"),
    ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5, "model": ["x"]}\n', "expected a name"),
    ("a.jsonl", "[" * 100_000, "a.jsonl: line 1: saw '[[["),
    ("a.csv", f'time,input,output,hash_ids\n1,2,3,{"[" * 100_000}\n', "line 2, column 'hash_ids': saw '[[["),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_bad_row_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ClaimsError) as caught:
        read(written(tmp_path, text, name))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_invalid_options(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE)
    for columns, unit, message in [
        ({"tine": "TIMESTAMP"}, None, "column meaning 'tine' is unknown; did you mean time"),
        ({"time": "TIMESTAMPS"}, None, "line 1: no column 'TIMESTAMPS'; did you mean TIMESTAMP"),
        ({}, "minutes", "time unit 'minutes' is unknown"),
    ]:
        with pytest.raises(ClaimsError, match=message):
            read(path, columns, unit)
    with pytest.raises(ClaimsError, match="cannot read the trace"):
        read(tmp_path / "nowhere.csv")
    path.write_bytes(b"time,input,output\n\xff\xfe,1,1\n")
    with pytest.raises(ClaimsError, match="not UTF-8 text"):
        read(path)


# --- scaling ----------------------------------------------------------------------------------------------


def recorded(requests: int = 3000) -> list[TraceRow]:
    """Poisson arrivals at 10/s and then 40/s, in 500 sessions."""
    generator, at_s, rows = random.Random(1), 0.0, []
    for number in range(requests):
        at_s += generator.expovariate(10.0 if number < requests / 2 else 40.0)
        session = f"s{generator.randrange(500)}" if number % 3 else ""
        rows.append(TraceRow(at_s, 100 + number, 10, "m", session, (number, number + 1)))
    return rows


def test_time_scale_changes_times_alone() -> None:
    rows = recorded(100)
    assert scaled(rows) == rows
    assert scaled(rows, 0.5) == [
        TraceRow(0.5 * row.at_s, row.input_tokens, row.output_tokens, row.model, row.session, row.blocks)
        for row in rows
    ]


def test_thinning_keeps_whole_sessions() -> None:
    rows = recorded()
    kept = scaled(rows, rate_scale=0.4)
    assert set(kept) < set(rows)
    free = [row for row in rows if not row.session]
    assert stats.binomtest(sum(not row.session for row in kept), len(free), 0.4).pvalue > 1e-4
    sizes, left = Counter(row.session for row in rows), Counter(row.session for row in kept)
    assert stats.binomtest(sum(left[name] > 0 for name in sizes if name), len(sizes) - 1, 0.4).pvalue > 1e-4
    assert all(left[name] in (0, sizes[name]) for name in sizes if name)
    assert scaled(rows, rate_scale=0.4) == kept != scaled(rows, rate_scale=0.4, seed=1)


def test_superposition_keeps_the_variation_of_the_rate() -> None:
    rows = recorded()
    many = scaled(rows, rate_scale=2.5)
    assert len(many) == pytest.approx(2.5 * len(rows), rel=0.05)
    assert [row.at_s for row in many] == sorted(row.at_s for row in many)
    assert set(rows) <= set(many)
    middle_s = rows[1500].at_s
    assert sum(row.at_s < middle_s for row in many) == pytest.approx(2.5 * 1500, rel=0.08)
    # Copies have sessions and prompts of their own.
    assert {row.session for row in many if row.session and "/" not in row.session} == {r.session for r in rows} - {""}
    assert any(row.session.endswith("/2") for row in many)
    blocks = Counter(block for row in many for block in row.blocks)
    assert max(blocks.values()) == 2  # as in the trace itself
    by_session: dict[str, list[int]] = {}
    for row in many:
        by_session.setdefault(row.session, []).append(row.input_tokens)
    assert all(lengths == sorted(lengths) for name, lengths in by_session.items() if name)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_is_above_0(scale: float) -> None:
    with pytest.raises(ClaimsError, match="time scale"):
        scaled([], time_scale=scale)
    with pytest.raises(ClaimsError, match="rate scale"):
        scaled([], rate_scale=scale)


def test_a_scale_beyond_the_request_numbers_is_refused() -> None:
    with pytest.raises(ClaimsError, match=r"rate scale 1e\+09 of a trace of 100 requests: expected less than 2097152"):
        scaled(recorded(100), rate_scale=1e9)


# --- the load ---------------------------------------------------------------------------------------------


def test_a_load_has_the_requests_of_the_rows(tmp_path: Path) -> None:
    load = load_of_rows(read(written(tmp_path, BURSTGPT_3)), Content(streaming_share=1.0))
    arrivals = draw(load, 1)
    assert [(a.at_s, a.key_text, a.prompt_tokens, a.output_tokens, a.turn) for a in arrivals] == [
        (0.0, "GPT-4", 100, 20, 0), (9.5, "GPT-4", 180, 30, 1), (10.0, "ChatGPT", 50, 3, 0),
    ]  # fmt: skip
    assert [a.history for a in arrivals] == [(), (100, 20), ()]
    assert [a.session for a in arrivals] == [0, 0, -1]
    assert all(a.streams for a in arrivals)
    assert load.streams[0].end_s == 10.0
    body = json.loads(request_of(arrivals[2], load.key_carrier, 1, 1, "chat").body)
    assert body["model"] == "ChatGPT"


def test_shared_blocks_are_shared_prefixes(tmp_path: Path) -> None:
    arrivals = draw(load_of_rows(read(written(tmp_path, MOONCAKE, "m.jsonl"))), 1)
    prompts = [
        json.loads(request_of(a, "header:x-model-id", 1, 1, "http").body)["prompt"].split() for a in arrivals
    ]  # fmt: skip
    assert [len(prompt) for prompt in prompts] == [6755, 7319, 7234]
    for other in prompts[1:]:
        same = np.array(prompts[0][:1024]) == np.array(other[:1024])
        assert same[:512].all() and not same[512]
    assert {(a.key, a.session) for a in arrivals} == {(-1, -1)}


def test_the_longest_prompt_is_below_the_cap_of_a_body() -> None:
    assert MOST_TOKENS * len("word ") < MOST_PAYLOAD_BYTES


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ClaimsError, match="the trace has no request left"):
        load_of_rows([])
