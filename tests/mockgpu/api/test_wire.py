import pytest

from mockgpu.api.wire import BadRequestError, read_json


@pytest.mark.parametrize("body", [b'{"a": 1}', b' \n{"a": 1}', b'{"a": 1}\r\n', b'\t{"a": 1} '])
def test_white_space_around_a_body_does_not_matter(body: bytes) -> None:
    assert read_json(body) == {"a": 1}


def test_no_body_is_an_empty_one() -> None:
    assert read_json(b"") == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{} x", "the body is no JSON: Extra data"),
        (b'{"a"', "the body is no JSON: "),
        (b" ", "the body is no JSON: "),
        (b"\xef\xbb\xbf{}", "the body is no JSON: "),
        (b"\xff", "the body is not UTF-8: invalid start byte at byte 0"),
        ('{"a": 1}'.encode("utf-16-le"), "the body is no JSON: "),
        (b"[" * 100_000, "the body is no JSON: "),
        (b'{"a":' * 100_000, "the body is no JSON: "),
        (b"[1]", "the body is a JSON list, expected an object"),
        (b"null", "the body is a JSON NoneType, expected an object"),
    ],
)
def test_other_bodies_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as error:
        read_json(body)
    assert str(error.value).startswith(message)
