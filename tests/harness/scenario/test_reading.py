"""Documents of users: exact values, and one line for each kind of mistake."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from harness.scenario.reading import MOST_SHOWN, among, read, read_json, shown, toml_in


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True)
class Square:
    side_mm: float
    form: Literal["square"] = "square"


@dataclass(frozen=True, slots=True)
class Circle:
    radius_mm: float
    form: Literal["circle"] = "circle"


@dataclass(frozen=True, slots=True)
class Box:
    """Ranges by annotation, and one check of its own."""

    size: Annotated[int, Field(ge=1, le=28)]
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    depth: Annotated[float, Field(ge=0)] = 0.0
    many: Annotated[tuple[int, ...], Field(min_length=1, max_length=2)] = (1,)
    colour: Colour = Colour.RED
    shape: Square | Circle | None = None
    inner: tuple[Box, ...] = ()
    tags: dict[str, bool] = field(default_factory=dict)
    at: Literal["head", "tail"] = "head"
    limit: int | None = None
    name: Annotated[str, among(("one", "two"))] = "one"

    def __post_init__(self) -> None:
        if self.limit == 13:
            raise ValueError("limit 13: expected a luckier number")


def test_exact_values_of_every_kind() -> None:
    document = {
        "size": 3, "share": 1, "many": [1, 2], "colour": "green", "shape": {"radius_mm": 2}, "inner": [{"size": 1}],
        "tags": {"a": True}, "at": "tail", "limit": 4,
    }  # fmt: skip
    made = read(Box, document)
    assert made == Box(3, 1.0, 0.0, (1, 2), Colour.GREEN, Circle(2.0), (Box(1),), {"a": True}, "tail", 4)
    assert isinstance(made.share, float) and isinstance(made.many, tuple)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({}, "box.size is missing; expected a whole number from 1 to 28"),
        ({"size": 0}, "box.size: saw 0, expected a whole number from 1 to 28"),
        ({"size": "3"}, "box.size: saw '3', expected a whole number from 1 to 28"),
        ({"size": True}, "box.size: saw true, expected a whole number from 1 to 28"),
        ({"size": 2.5}, "box.size: saw 2.5, expected a whole number from 1 to 28"),
        ({"size": 1, "share": 0}, "box.share: saw 0, expected a number above 0 and at most 1"),
        ({"size": 1, "share": float("nan")}, "box.share: saw nan, expected a number above 0 and at most 1"),
        ({"size": 1, "depth": -1}, "box.depth: saw -1, expected a number of at least 0"),
        ({"size": 1, "many": []}, "box.many: saw [], expected a list of at least 1 and at most 2"),
        ({"size": 1, "many": [1, 2, 3]}, "box.many: saw 3 items, expected a list of at least 1 and at most 2"),
        ({"size": 1, "many": 5}, "box.many: saw 5, expected a list of at least 1 and at most 2"),
        ({"size": 1, "colour": "gren"}, "box.colour: saw 'gren'; did you mean green"),
        ({"size": 1, "colour": 5}, "box.colour: saw 5, expected one of red, green"),
        ({"size": 1, "at": "heat"}, "box.at: saw 'heat'; did you mean head?"),
        ({"size": 1, "name": "tow"}, "box.name: saw 'tow'; did you mean two"),
        ({"size": 1, "name": 5}, "box.name: saw 5, expected text"),
        ({"size": 1, "limit": "x"}, "box.limit: saw 'x', expected a whole number"),
        ({"size": 1, "limit": 13}, "box: limit 13: expected a luckier number"),
        ({"size": 1, "inner": [{"size": 1}, {"siz": 1}]}, "box.inner[1].size is missing; expected"),
        ({"size": 1, "inner": [{"size": 1, "sized": 1}]}, "box.inner[0].sized is unknown; did you mean size"),
        ({"size": 1, "shape": {"side": 1}}, "box.shape.side_mm is missing; expected a number"),
        ({"size": 1, "tags": {"a": 1}}, "box.tags.a: saw 1, expected true or false"),
        ({"size": 1, "zzz": 1}, "box.zzz is unknown; valid: at, colour, depth"),
        ([], "box: saw [], expected a table of keys and values"),
    ],
)
def test_a_mistake_is_one_line_with_path_and_expectation(document: object, line: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(Box, document, "box")
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_without_a_root_paths_begin_at_the_top() -> None:
    with pytest.raises(ValueError, match=r"^inner\[0\]\.size: saw 0, "):
        read(Box, {"size": 1, "inner": [{"size": 0}]})
    with pytest.raises(ValueError, match=r"^the document: saw 3, expected a table"):
        read(Box, 3)
    with pytest.raises(ValueError, match=r"^limit 13: expected a luckier number$"):
        read(Box, {"size": 1, "limit": 13})


@pytest.mark.parametrize("text", ["", "{", '{"size": 1}}', '{"size": 1}, "x": 2', "[" * 100_000, b"\xff"])
def test_what_is_no_json_is_one_line(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"^not valid JSON: [^\n]*$"):
        read_json(Box, text)


def test_json_is_read_exactly() -> None:
    assert read_json(Box, b'{"size": 1, "depth": 1234.5678901234567}').depth == 1234.5678901234567


def test_files_in_toml(tmp_path: Path) -> None:
    file = tmp_path / "box.toml"
    file.write_text("size = 1\n[tags]\na = true\n")
    assert toml_in(file, "a box") == {"size": 1, "tags": {"a": True}}
    file.write_text("size")
    with pytest.raises(ValueError, match=r"^not valid TOML: .*; expected a box$"):
        toml_in(file, "a box")
    file.write_text(f"size = {'[' * 5000}")
    with pytest.raises(ValueError, match=r"^nested too deeply to be read; expected a box in TOML$"):
        toml_in(file, "a box")
    file.write_bytes(b"size = '\xff'")
    with pytest.raises(ValueError, match=r"^cannot be read \(byte 8 is not UTF-8\); expected a box in TOML$"):
        toml_in(file, "a box")
    with pytest.raises(ValueError, match=r"^cannot be read \(No such file or directory\); expected a box in TOML$"):
        toml_in(tmp_path / "gone.toml", "a box")


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 1000)) == MOST_SHOWN
    assert [shown(value) for value in (True, None, 1, "a\nb")] == ["true", "null", "1", r"'a\nb'"]
