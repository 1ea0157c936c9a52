"""Saved histories: equal after loading, and never read from a truncated, altered or foreign file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.evidence import store
from harness.evidence.example import example_history
from harness.evidence.history import History
from harness.evidence.records import Rows
from harness.evidence.tables import TABLES
from harness.scenario.model import EvidenceError

RUN = replace(example_history(), facts={"port_block": 18000, "fault_proxy": {"kind": "embedded"}}, died="exit status 1")


def saved(folder: Path, history: History = RUN) -> Path:
    path = folder / "run.history"
    history.save(path)
    return path


def assert_equal(one: History, other: History) -> None:
    assert one.digest() == other.digest()
    assert (one.scenario, one.seed, one.correlated, one.died) == (
        other.scenario,
        other.seed,
        other.correlated,
        other.died,
    )
    assert repr(one.steps) == repr(other.steps)  # nan differs from itself
    assert one.facts == other.facts
    for name, dtype in TABLES.items():
        assert getattr(one, name).dtype == getattr(other, name).dtype == dtype
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    assert one.baselines.keys() == other.baselines.keys()
    for name in one.baselines:
        assert_equal(one.baselines[name], other.baselines[name])


def test_a_history_is_equal_after_loading(tmp_path: Path) -> None:
    assert_equal(History.load(saved(tmp_path)), RUN)


def test_comparison_runs_are_kept(tmp_path: Path) -> None:
    compared = RUN.with_baselines({"ring": example_history(), "round_robin": replace(RUN, seed=7)})
    loaded = History.load(saved(tmp_path, compared))
    assert_equal(loaded, compared)
    assert loaded.baseline("round_robin").seed == 7


def test_equal_histories_give_equal_files(tmp_path: Path) -> None:
    first = saved(tmp_path).read_bytes()
    assert saved(tmp_path, replace(RUN)).read_bytes() == first


def assert_refused(path: Path, expected: str) -> None:
    with pytest.raises(EvidenceError, match=expected) as caught:
        History.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent.history", "cannot be read: No such file")
    assert_refused(tmp_path, "cannot be read: Is a directory")


@pytest.mark.parametrize("content", [b"", b"PK", b"{}", bytes(1000), b"SYREQ" * 20])
def test_a_foreign_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.history"
    path.write_bytes(content)
    assert_refused(path, "truncated, altered, or not a saved history")


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert_refused(path, "truncated, altered")


def test_every_changed_byte_is_noticed_or_has_no_effect(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 41):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x21]) + whole[position + 1 :])
        try:
            loaded = History.load(path)
        except EvidenceError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:  # such as a date in the archive's directory
            assert_equal(loaded, RUN)


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change members of the archive, as a person with a zip tool would."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def with_head(change: Callable[[dict[str, object]], None]) -> Callable[[dict[str, bytes]], None]:
    def apply(members: dict[str, bytes]) -> None:
        head = json.loads(members[store.ABOUT])
        change(head)
        members[store.ABOUT] = json.dumps(head).encode()

    return apply


def test_another_version_is_named(tmp_path: Path) -> None:
    rewritten(path := saved(tmp_path), with_head(lambda head: head.update(version=2)))
    assert_refused(path, "version 2 of steelyard-history, expected 1; read it with the release that wrote it")


def test_another_format_is_refused(tmp_path: Path) -> None:
    rewritten(path := saved(tmp_path), with_head(lambda head: head.update(format="steelyard-bundle")))
    assert_refused(path, "not the head of a steelyard-history file")


def test_a_changed_fact_is_noticed(tmp_path: Path) -> None:
    rewritten(path := saved(tmp_path), with_head(lambda head: head.update(about={**RUN._about({}), "died": None})))
    assert_refused(path, "does not match its checksum")


@pytest.mark.parametrize("name", [name + store.SUFFIX for name in TABLES])
def test_a_table_taken_away_is_noticed(tmp_path: Path, name: str) -> None:
    def remove(members: dict[str, bytes]) -> None:
        del members[name]

    rewritten(path := saved(tmp_path), remove)
    assert_refused(path, "does not match its checksum")


def test_a_table_with_other_columns_is_refused_even_with_a_right_checksum(tmp_path: Path) -> None:
    arrays: dict[str, Rows] = {}
    about = RUN._about(arrays)
    path = tmp_path / "run.history"
    store.write(path, about, {**arrays, "attempts": arrays["attempts"][["request", "backend"]]})
    assert_refused(path, "not a history of this release: table attempts has columns")
    del arrays["slack_s"]
    store.write(path, about, arrays)
    assert_refused(path, "not a history of this release: no 'slack_s'")


def test_nothing_is_left_of_an_interrupted_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(store, "_add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        RUN.save(path)
    assert path.read_bytes() == before
