"""NVIDIA's aiperf measures the configured time to first token and inter-token latency of the mock.

It needs more than a gigabyte of packages, so it is not installed with the project: STEELYARD_AIPERF names its command,
as in `python -m venv DIR && DIR/bin/pip install aiperf==0.13.0` and STEELYARD_AIPERF=DIR/bin/aiperf.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome
from tests.mockgpu.processes import child, fleet

AIPERF = os.environ.get("STEELYARD_AIPERF", "")

REQUESTS = 40
AT_ONCE = 4
OUTPUT_TOKENS = 20
PREFILL_TOKENS_PER_S, STEP_S = 1_000.0, 0.005
MODEL = "steady"
SETUP = Setup(Gpu("any", 0, 2 * AT_ONCE, None), Model(MODEL, 0, 0.0, PREFILL_TOKENS_PER_S, STEP_S))

TRAIN = """
import json, pathlib, sys
from tokenizers import ByteLevelBPETokenizer
folder = pathlib.Path(sys.argv[1])
tokenizer = ByteLevelBPETokenizer()
text = "the " * 50 + "a model server answers one two three four five requests in time "
tokenizer.train_from_iterator([text] * 50, vocab_size=600, special_tokens=["<|end|>"])
assert len(tokenizer.encode(" the the the").ids) == 3, "the mock's word must be one token"
tokenizer.save(str(folder / "tokenizer.json"))
names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|end|>"}
(folder / "tokenizer_config.json").write_text(json.dumps(names))
"""
"""A byte-level BPE tokenizer for which the mock's word is one token; aiperf's own would be downloaded."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """aiperf's record of each request; their number must agree with the mock's log."""
    if not AIPERF:
        pytest.skip("no aiperf: install aiperf==0.13.0 in an environment of its own, set STEELYARD_AIPERF=its command")
    folder = tmp_path_factory.mktemp("aiperf")
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    subprocess.run([Path(AIPERF).with_name("python"), "-c", TRAIN, tokenizer], check=True, timeout=60)
    setup = folder / "setup.json"
    setup.write_text(SETUP.to_json())
    with fleet(folder, 1, "--setup", str(setup)) as backends:
        words = [AIPERF, "profile", "--model", MODEL, "--url", *backends.urls(), "--endpoint-type", "chat"]
        words += ["--streaming", "--tokenizer", str(tokenizer)]
        words += ["--synthetic-input-tokens-mean", "50", "--output-tokens-mean", str(OUTPUT_TOKENS)]
        words += ["--output-tokens-stddev", "0", "--request-count", str(REQUESTS), "--concurrency", str(AT_ONCE)]
        words += ["--random-seed", "1", "--ui", "none", "--export-level", "records", "--artifact-dir", str(folder)]
        log = folder / "aiperf.log"
        with child(log, *words) as aiperf:
            assert aiperf.wait(120) and aiperf.status == 0, log.read_text()[-4000:]
        # It sends no tags, so all its requests are foreign to the run.
        rows = [row for row in backends.rows(0) if row.kind is RowKind.FOREIGN]
    assert [(row.status, row.outcome) for row in rows] == [(200, RowOutcome.ANSWERED)] * REQUESTS
    lines = (folder / "profile_export.jsonl").read_text().splitlines()
    assert len(lines) == REQUESTS
    return [json.loads(line) for line in lines]


def values(records: list[dict[str, Any]], metric: str) -> list[float]:
    """One metric of every request; times are in milliseconds."""
    return [record["metrics"][metric]["value"] for record in records]


def test_every_token_is_counted_by_both_sides(records: list[dict[str, Any]]) -> None:
    assert all(record.get("error") is None for record in records)
    for metric in ("output_sequence_length", "usage_completion_tokens"):
        assert values(records, metric) == [OUTPUT_TOKENS] * REQUESTS
    assert min(values(records, "usage_prompt_tokens")) > 0


def test_no_token_is_early_and_most_are_on_time(records: list[dict[str, Any]]) -> None:
    prefill_ms = [tokens / PREFILL_TOKENS_PER_S * 1000 for tokens in values(records, "usage_prompt_tokens")]
    for metric, tokens in (("time_to_first_token", 1), ("request_latency", OUTPUT_TOKENS)):
        due_ms = [each_ms + tokens * STEP_S * 1000 for each_ms in prefill_ms]
        late_ms = [measured - due for measured, due in zip(values(records, metric), due_ms, strict=True)]
        # The bound allows for a busy machine; aiperf adds some delay itself.
        assert min(late_ms) >= 0 and median(late_ms) <= 20, metric
    assert median(values(records, "inter_token_latency")) == pytest.approx(STEP_S * 1000, rel=0.1)
