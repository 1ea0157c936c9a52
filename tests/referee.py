"""Write down what the simulator says of the reference balancer, so that a change of structure can be held against it.

    python -m tests.referee before.json        # on the commit before the change
    python -m tests.referee after.json before.json

The second form also prints every difference and exits with 1 if there is one. A row is one property at one seed:
scenario digest, history digest, outcome, figures and every finding; words (summary, reason, notes) may differ.
Keep the files outside the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.judge import Judge
from harness.property.declare import catalogue
from harness.scenario.model import World
from harness.sim.world import play
from harness.targets import resolve

SEEDS = (1, 2, 3)
APART = ("history",)
"""Columns in which a difference is reported but is no failure: a history may gain a column."""

WORDS = ("summary", "reason", "note")
"""Columns of text for people, in a record and in its findings; they may change freely."""


def rows() -> dict[str, dict[str, Any]]:
    """One row for each property of the sim catalogue and each seed, in plain JSON types."""
    found = {}
    for seed in SEEDS:
        judge = Judge(resolve("reference"), seed, {World.SIM: play})
        for item in catalogue():
            if World.SIM in item.worlds:
                record = asdict(judge.judge(item, World.SIM))
                found[f"{item.name} seed {seed}"] = json.loads(json.dumps(record, default=str))
    return found


def without_words(row: Any) -> Any:
    """`row` without its columns of text, at any depth."""
    if isinstance(row, dict):
        return {name: without_words(value) for name, value in row.items() if name not in WORDS}
    return [without_words(item) for item in row] if isinstance(row, list) else row


def differences(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """What differs: failures, and what may differ, one line each."""
    failures = [f"{name}: only in one of the two" for name in sorted(before.keys() ^ after.keys())]
    allowed: list[str] = []
    for name in sorted(before.keys() & after.keys()):
        for column in sorted(before[name].keys() | after[name].keys()):
            old, new = before[name].get(column), after[name].get(column)
            if old != new:
                line = f"{name}: {column}: {str(old)[:200]} -> {str(new)[:200]}"
                (allowed if column in APART else failures).append(line)
    return failures, allowed


def main() -> int:
    """Write the rows; compare them where an earlier file is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.referee", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("before", type=Path, nargs="?", help="earlier file to compare with")
    given = parser.parse_args()
    after = rows()
    given.out.write_text(json.dumps(after, indent=1), encoding="utf-8")
    print(f"{len(after)} rows in {given.out}")
    if given.before is None:
        return 0
    before = json.loads(given.before.read_text(encoding="utf-8"))
    failures, allowed = differences(without_words(before), without_words(after))
    for line in [*failures, *allowed]:
        print(line)
    print(f"{len(failures)} differences, {len(allowed)} of histories alone")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
