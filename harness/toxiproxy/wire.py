"""The JSON of Toxiproxy's control API, read and written as its Go server does.

Reading: only the first value of a body counts, keys match in any case, null means absent, unknown keys are
ignored. Writing: compact, with `<`, `>` and `&` escaped, and 32-bit floats in their shortest form.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from decimal import Decimal
from typing import NoReturn

from harness.toxiproxy.connection_log import ConnectionEntry
from harness.toxiproxy.proxy import Proxy
from harness.toxiproxy.stage import Toxic

INT64 = range(-(2**63), 2**63)


class ApiError(Exception):
    """A request failed; HTTP status and text of the error body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def bad_body(reason: str) -> ApiError:
    """The 400 for an invalid body."""
    return ApiError(400, f"bad request body: {reason}")


# Reading.


def read_value(body: bytes) -> object:
    """The first JSON value of a body.

    Raises:
        ApiError: 400, no JSON value.
    """
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    if not text:
        raise bad_body("EOF")
    try:
        value: object = _DECODER.raw_decode(text)[0]
    except (ValueError, RecursionError) as error:
        raise bad_body(f"invalid JSON: {str(error) or 'nested too deeply'}") from None
    return value


def read_fields(value: object, subject: str = "the body") -> dict[str, object]:
    """The fields of a JSON object by lower-case name, without null ones; a null object has none.

    Raises:
        ApiError: 400, not an object.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_body(f"{subject} must be an object, not {_kind(value)}")
    return {str(key).lower(): field for key, field in value.items() if field is not None}


def text_field(fields: dict[str, object], name: str, default: str = "") -> str:
    """A string, or `default` where it is absent.

    Raises:
        ApiError: 400, another type.
    """
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise bad_body(f"{name} must be a string, not {_kind(value)}")
    # JSON can contain half a surrogate pair, UTF-8 cannot.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def flag_field(fields: dict[str, object], name: str, default: bool) -> bool:
    """A boolean, or `default` where it is absent.

    Raises:
        ApiError: 400, another type.
    """
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise bad_body(f"{name} must be true or false, not {_kind(value)}")
    return value


def float32_field(fields: dict[str, object], name: str, default: float) -> float:
    """A number rounded to 32 bits, or `default` where it is absent.

    Raises:
        ApiError: 400, another type or too large.
    """
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_body(f"{name} must be a number, not {_kind(value)}")
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except (OverflowError, struct.error):
        rounded = math.inf
    if math.isinf(rounded):
        raise bad_body(f"{name} is too large for a 32-bit number")
    return rounded


def read_attributes(
    fields: dict[str, object], names: Iterable[str], old: dict[str, int]
) -> tuple[dict[str, int], ApiError | None]:
    """A toxic's attributes: `old` with the valid ones of `fields` merged in, and the error of the first invalid one.

    Only 64-bit JSON integers are valid: `100.0`, `1e2` and `"100"` are errors. Unknown names are ignored.
    """
    merged = dict(old)
    first_error: ApiError | None = None
    for name in names:
        value = fields.get(name, merged[name])
        if isinstance(value, int) and not isinstance(value, bool) and value in INT64:
            merged[name] = value
        elif first_error is None:
            first_error = bad_body(f"attribute {name} must be a 64-bit integer, not {_kind(value)}")
    return merged, first_error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")  # Python would accept NaN and Infinity


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


# Writing.


def text_json(value: object) -> str:
    """Compact JSON with Go's escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # These characters occur inside strings only.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def float32_json(value: float) -> str:
    """A 32-bit float in its shortest form that round-trips: 0.1, 1, 1e-9."""
    for digits in range(1, 10):
        shortest = f"{value:.{digits - 1}e}"
        if struct.pack("f", float(shortest)) == struct.pack("f", value):
            break
    if value != 0 and not 1e-6 <= abs(float(shortest)) < 1e21:
        mantissa, exponent = shortest.split("e")
        return f"{mantissa}e{int(exponent):+d}"
    return format(Decimal(shortest), "f")


def toxic_json(toxic: Toxic) -> str:
    """The API's form of a toxic."""
    return (
        f'{{"attributes":{text_json(toxic.attributes)},"name":{text_json(toxic.name)},'
        f'"type":{text_json(toxic.type)},"stream":{text_json(toxic.stream)},'
        f'"toxicity":{float32_json(toxic.toxicity)}}}'
    )


def toxics_json(toxics: Iterable[Toxic]) -> str:
    """The API's form of a list of toxics."""
    return f"[{','.join(toxic_json(toxic) for toxic in toxics)}]"


def proxy_json(proxy: Proxy) -> str:
    """The API's form of a proxy, without Toxiproxy's `Logger`."""
    return (
        f'{{"name":{text_json(proxy.name)},"listen":{text_json(proxy.listen)},'
        f'"upstream":{text_json(proxy.upstream)},"enabled":{text_json(proxy.enabled)},'
        f'"toxics":{toxics_json(proxy.listed_toxics())}}}'
    )


def proxies_json(proxies: Iterable[Proxy]) -> str:
    """The API's form of a list of proxies; null if empty (answer of /populate)."""
    encoded = [proxy_json(proxy) for proxy in proxies]
    return f"[{','.join(encoded)}]" if encoded else "null"


def connection_json(entry: ConnectionEntry) -> str:
    """The API's form of a logged connection; `closed_s` and `ended` are null while it is open."""
    return text_json(
        {
            "proxy": entry.proxy,
            "opened_s": entry.opened_s,
            "closed_s": entry.closed_s,
            "bytes_up": entry.passed_bytes["upstream"],
            "bytes_down": entry.passed_bytes["downstream"],
            "ended": entry.ended if entry.closed_s is not None else None,
        }
    )
