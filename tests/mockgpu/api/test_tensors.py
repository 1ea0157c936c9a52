import json
import struct
from typing import Any

import pytest

from mockgpu.api.tensors import HEADER_LENGTH, SIZES, Tensor, packed_text, read_inputs, split_body
from mockgpu.api.wire import BadRequestError


def tensor(name: str = "x", shape: Any = (1,), datatype: Any = "BYTES", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(shape) if isinstance(shape, tuple) else shape, "datatype": datatype} | more


def binary(size: int, **fields: Any) -> dict[str, Any]:
    return tensor(parameters={"binary_data_size": size}, **fields)


def test_a_body_without_the_header_is_json() -> None:
    assert split_body({}, b'{"a": 1}') == ({"a": 1}, b"")


def test_the_header_says_where_the_raw_bytes_begin() -> None:
    head = json.dumps({"a": 1}).encode()
    assert split_body({HEADER_LENGTH: str(len(head))}, head + b"raw") == ({"a": 1}, b"raw")


@pytest.mark.parametrize("length", ["-1", "x", "", "9", "1" * 30, "²"])
def test_a_header_that_makes_no_sense(length: str) -> None:
    with pytest.raises(BadRequestError, match="expected at most the body's 8 bytes"):
        split_body({HEADER_LENGTH: length}, b'{"a": 1}')


def test_tensors_of_json() -> None:
    given = [
        tensor(data=["a b"]),
        tensor("n", (1,), "INT32", data=[7]),
        tensor("f", (2, 2), "FP32", data=[[1, 2.5], [3, 4]]),
    ]
    text, number, floats = read_inputs({"inputs": given}, b"")
    assert text == Tensor("x", "BYTES", 1, ("a b",))
    assert number == Tensor("n", "INT32", 1, number=7)
    assert floats == Tensor("f", "FP32", 4)
    (nested,) = read_inputs({"inputs": [tensor(shape=(2, 2), data=[["a", "b"], ["c", "d"]])]}, b"")
    assert nested.texts == ("a", "b", "c", "d")


def test_tensors_of_raw_bytes_come_in_order() -> None:
    raw = packed_text("a b") + packed_text("ü") + struct.pack("<q", -5) + b"\0" * 12
    given = [
        binary(len(packed_text("a b") + packed_text("ü")), shape=(2,)),
        binary(8, name="n", shape=(1, 1), datatype="INT64"),
        binary(12, name="f", shape=(3,), datatype="FP32"),
    ]
    text, number, floats = read_inputs({"inputs": given}, raw)
    assert text.texts == ("a b", "ü")
    assert number.number == -5
    assert floats.elements == 3


@pytest.mark.parametrize("datatype", SIZES)
def test_every_datatype_has_its_size(datatype: str) -> None:
    (read,) = read_inputs(
        {"inputs": [binary(3 * SIZES[datatype], shape=(3,), datatype=datatype)]}, b"\0" * 3 * SIZES[datatype]
    )
    assert (read.datatype, read.elements) == (datatype, 3)


@pytest.mark.parametrize(
    ("inputs", "raw", "message"),
    [
        (None, b"", "inputs is None"),
        ([], b"", "inputs is"),
        (["x"], b"", "an object with a name"),
        ([{"shape": [1]}], b"", "an object with a name"),
        ([tensor(datatype="TEXT", data=["a"])], b"", "datatype is 'TEXT'"),
        ([tensor(datatype=[], data=["a"])], b"", "datatype is []"),
        ([tensor(shape=5, data=["a"])], b"", "shape is 5"),
        ([tensor(shape=[-1], data=["a"])], b"", "shape is"),
        ([tensor(shape=[True], data=["a"])], b"", "shape is"),
        ([tensor(shape=[1] * 65, data=["a"])], b"", "shape is"),
        ([tensor(shape=(2,), data=["a"])], b"", "1 elements, expected 2"),
        ([tensor(data=None)], b"", "0 elements, expected 1"),
        ([tensor(datatype="FP32", data=["a"])], b"", "not all numbers"),
        ([tensor(data=[5])], b"", "not all texts"),
        ([tensor(data=[{"a": "b"}])], b"", "not all texts"),
        ([tensor(datatype="UINT8", data=[256])], b"", "not all numbers of UINT8"),
        ([tensor(datatype="UINT8", data=[-1])], b"", "not all numbers of UINT8"),
        ([tensor(datatype="INT8", data=[-129])], b"", "not all numbers of INT8"),
        ([tensor(datatype="INT32", data=[1.5])], b"", "not all numbers of INT32"),
        ([tensor(datatype="INT32", data=[True])], b"", "not all numbers of INT32"),
        ([tensor(datatype="BOOL", data=[2])], b"", "not all numbers of BOOL"),
        ([tensor(data=["a"]), tensor(data=["b"])], b"", "two inputs are named 'x'"),
        ([binary(5)], b"abc", "binary_data_size is 5, with 3 bytes left"),
        ([binary(-1)], b"abc", "binary_data_size is -1"),
        ([binary(3)], b"abc", "its last element is truncated"),
        ([binary(6)], b"\x09\0\0\0ab", "its last element is truncated"),
        ([binary(6, shape=(2,))], b"\x02\0\0\0ab", "1 elements, expected 2"),
        ([binary(3, datatype="FP32")], b"abc", "3 bytes, expected 4"),
        ([tensor(data=["a"])], b"left", "4 bytes follow the tensors"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(inputs: Any, raw: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as error:
        read_inputs({"inputs": inputs}, raw)
    assert message in str(error.value)
