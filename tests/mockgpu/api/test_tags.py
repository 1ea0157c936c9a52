import pytest

from mockgpu.api.tags import Carrier, Tags, hex_of, nonce_of, parse_hex, tag_of

ONE, TWO = tag_of(5, 1), tag_of(5, 2)


def test_a_tag_is_a_nonce_and_a_number() -> None:
    assert tag_of(1, 2) == (1 << 21) + 2
    assert nonce_of(tag_of(2**31 - 1, 2**21 - 1)) == 2**31 - 1
    assert hex_of(tag_of(2**31 - 1, 2**21 - 1)) == "f" * 13
    for nonce, number in ((2**31, 0), (0, 2**21), (-1, 0)):
        with pytest.raises(ValueError, match="expected less than"):
            tag_of(nonce, number)


def test_hex_goes_both_ways() -> None:
    assert parse_hex(hex_of(ONE)) == ONE


@pytest.mark.parametrize("text", ["", "a", "A" * 13, "0" * 14, "00000000000g1", " 000000000001", "0x00000000001"])
def test_other_text_is_no_tag(text: str) -> None:
    assert parse_hex(text) == 0


def test_all_carriers_of_the_tag_are_found() -> None:
    tags = Tags({"x-mock-tag": hex_of(ONE), "x-request-id": f"sy-{hex_of(ONE)}"})
    tags.read_body(ONE, f"tell me #sy-{hex_of(ONE)}")
    assert (tags.tag, tags.echo) == (ONE, ONE)
    assert tags.carriers == Carrier.HEADER | Carrier.REQUEST_ID | Carrier.SEED | Carrier.PROMPT


def test_the_first_carrier_names_the_row_and_the_body_the_answer() -> None:
    tags = Tags({"x-request-id": f"sy-{hex_of(ONE)}"})
    tags.read_body(None, f"#sy-{hex_of(TWO)}")
    assert (tags.tag, tags.carriers, tags.echo) == (ONE, Carrier.REQUEST_ID, TWO)


@pytest.mark.parametrize("seed", [None, True, 0, -1, 1.5, "7", 2**52, [1]])
@pytest.mark.parametrize("prompt", [None, "", "short", "#sy-XYZ", f"#sy-{hex_of(ONE)} and more", 5])
def test_bodies_without_a_tag(seed: object, prompt: object) -> None:
    tags = Tags({"x-request-id": "a-uuid", "x-mock-tag": "nonsense"})
    tags.read_body(seed, prompt)
    assert (tags.tag, tags.carriers, tags.echo) == (0, 0, 0)
