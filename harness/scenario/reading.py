"""Documents of users as frozen dataclasses, through pydantic; every error is one line.

Annotations give types and ranges; what `__post_init__` refuses is an error, too. Keys without a field are refused at
every depth. Importing pydantic takes longer than all of this folder, so the rest of the folder imports this module only
where a document is read.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import from_json

from harness.scenario.validation import nearest

Read = TypeVar("Read")
Schema = Mapping[str, Any]

MOST_SHOWN = 60
"""Maximum length of a value in an error line."""

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a table of keys and values",
}
_LIMITS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
    "minItems": "of at least",
    "maxItems": "of at most",
    "minLength": "of length at least",
    "pattern": "that matches",
}
_ROOT = "document"


def toml_in(path: Path, what: str) -> dict[str, Any]:
    """The TOML document in the file at `path`. ValueError, one line; `what` names the expected kind of file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror}); expected {what} in TOML") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read (byte {error.start} is not UTF-8); expected {what} in TOML") from None
    except RecursionError:
        raise ValueError(f"nested too deeply to be read; expected {what} in TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}; expected {what}") from None


def read(kind: type[Read], document: object, root: str = "") -> Read:
    """`document`, in types of JSON or TOML, as a `kind`: a dataclass, or a pydantic model.

    ValueError, one line: the path of the key, which begins with `root`, what was seen, and what is expected.

    >>> from harness.claims.features import Ejection
    >>> read(Ejection, {"failures": 7}, "claims.ejection").failures
    7
    >>> read(Ejection, {"failure": 7}, "claims.ejection")
    Traceback (most recent call last):
    ValueError: claims.ejection.failure is unknown; did you mean failures?
    """
    # As JSON: strict Python mode accepts no table for a dataclass, lax mode accepts true for 1 and "5" for 5.
    made: Read = _read(kind, json.dumps(document, default=str), root)
    return made


def check(limits: type[BaseModel], value: object, root: str = "") -> None:
    """ValueError, one line as `read` has it, unless the attributes (or items) of `value` are within `limits`."""
    try:
        limits.model_validate(value, from_attributes=True)
    except ValidationError as error:
        raise ValueError(one_line(error, root, limits.model_json_schema())) from None


def read_json(kind: type[Read], text: str | bytes, root: str = "") -> Read:
    """The JSON document `text` as a `kind`. ValueError as `read` has it."""
    try:
        from_json(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    made: Read = _read(kind, text if isinstance(text, str) else text.decode(), root)
    return made


def _read(kind: Any, text: str, root: str) -> Any:
    form = _form(kind)
    try:
        return getattr(form.model_validate_json(f'{{"{_ROOT}": {text}}}'), _ROOT)
    except ValidationError as error:
        raise ValueError(one_line(error, root, form.model_json_schema(), 1)) from None


@functools.cache
def _form(kind: type[Any]) -> type[BaseModel]:
    """A model around `kind`: dataclasses within a model take its configuration, those within a TypeAdapter cannot."""
    return create_model("Form", __config__=ConfigDict(extra="forbid", strict=True), document=(kind, ...))


def among(valid: Collection[str]) -> AfterValidator:
    """For `Annotated[str, among(NAMES)]`: a text that is one of `valid`; the error has the most similar ones."""

    def check(value: str) -> str:
        if value not in valid:
            raise ValueError(f"saw {shown(value)}; {nearest(value, valid)}")
        return value

    return AfterValidator(check)


def one_line(error: ValidationError, root: str, schema: Schema | None = None, skipped: int = 0) -> str:
    """The first error as one line: key path, what was seen, what is expected.

    `root`: beginning of all paths. `schema`: the JSON schema of the document, for names and ranges; without it the
    message of pydantic says what is expected. `skipped`: leading parts of a location that are not shown.
    """
    first = error.errors(include_url=False)[0]
    place = _Place(schema or {})
    for part in first["loc"]:
        place.enter(part)
    path = _path(root, place.keys[skipped:])
    if first["type"] == "value_error":
        return f"{path}: {first['ctx']['error']}" if path else str(first["ctx"]["error"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{path} is unknown; {nearest(str(first['loc'][-1]), place.names)}"
    expected = place.expected or first["msg"].removeprefix("Input should be ")
    if first["type"] == "finite_number":
        expected = expected.replace("a number", "a finite number", 1)
    if first["type"] == "missing":
        return f"{path} is missing; expected {expected}"
    words = place.words
    if words and isinstance(first["input"], str):
        return f"{path}: saw {shown(first['input'])}; {nearest(first['input'], words)}"
    length = first.get("ctx", {}).get("actual_length")
    seen = shown(first["input"]) if not length or isinstance(first["input"], str) else f"{length} items"
    return f"{path or 'the document'}: saw {seen}, expected {expected}"


def shown(value: object) -> str:
    """A value for an error line: as in TOML and JSON, cut to `MOST_SHOWN` characters.

    >>> shown(True), shown("long")
    ('true', "'long'")
    """
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    if isinstance(value, tuple):
        text = repr([*value])
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def _path(root: str, keys: Sequence[str | int]) -> str:
    text = root
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


class _Place:
    """A place in a JSON schema, entered part by part along the location of an error."""

    def __init__(self, schema: Schema) -> None:
        self.keys: list[str | int] = []
        self._definitions: Schema = schema.get("$defs", {})
        self._here: list[Schema] = [schema] if schema else []
        self.names: list[str] = []

    def enter(self, part: str | int) -> None:
        """Go on to a key or an item. The name of an alternative of a union is not part of the path."""
        alternatives = [*self._alternatives()]
        self.names = sorted({name for node in alternatives for name in node.get("properties", {})})
        named = [node for node in alternatives if node.get("title") == part]
        if len(alternatives) > 1 and named:
            self._here = named
            return
        self.keys.append(part)
        self._here = [*_inside(alternatives, part)]

    def _alternatives(self) -> Iterator[Schema]:
        waiting = list(self._here)
        while waiting:
            node = waiting.pop(0)
            if "$ref" in node:
                node = self._definitions[node["$ref"].rpartition("/")[2]]
            waiting += node.get("anyOf", [])
            if "anyOf" not in node and node.get("type") != "null":
                yield node

    @property
    def words(self) -> list[str]:
        """The valid texts, where they are a fixed set."""
        return [word for node in self._alternatives() for word in _fixed(node) if isinstance(word, str)]

    @property
    def expected(self) -> str:
        """What is valid here, in words; "" without a schema."""
        return " or ".join(dict.fromkeys(map(_described, self._alternatives())))


def _inside(nodes: Sequence[Schema], part: str | int) -> Iterator[Schema]:
    for node in nodes:
        if isinstance(part, int):
            items = node.get("prefixItems", [])
            inside = items[part] if part < len(items) else node.get("items")
        else:
            inside = node.get("properties", {}).get(part, node.get("additionalProperties"))
        if isinstance(inside, Mapping):
            yield inside


def _fixed(node: Schema) -> list[Any]:
    return [node["const"]] if "const" in node else [*node.get("enum", [])]


def _described(node: Schema) -> str:
    if fixed := _fixed(node):
        return f"one of {', '.join(map(str, fixed))}"
    word = _TYPES.get(node.get("type", ""), "another value")
    if "minimum" in node and "maximum" in node:
        return f"{word} from {node['minimum']:.15g} to {node['maximum']:.15g}"
    limits = [
        f"{before} {node[key]:.15g}" if isinstance(node[key], float) else f"{before} {node[key]}"
        for key, before in _LIMITS.items()
        if key in node
    ]
    return f"{word} {' and '.join(limits)}".replace(" and of ", " and ") if limits else word
