import json
from dataclasses import replace

import pytest

from mockgpu.catalogue import GPUS, MODELS, Gpu, Model, Setup, SetupError, setup_of

SETUP = Setup(
    Gpu("box", 1_000, 4, None, loads_at_once=2, update_s=0.01),
    Model("any", 0, 0.0, 1_000.0, 0.001),
    (Model("big", 600, 0.2, 500.0, 0.002),),
)


def test_json_brings_the_same_setup_back() -> None:
    assert Setup.from_json(SETUP.to_json()) == SETUP


def test_scaling_multiplies_every_duration_and_nothing_else() -> None:
    slow = SETUP.scaled(10)
    assert slow.gpu.update_s == pytest.approx(0.1)
    assert replace(slow.gpu, update_s=SETUP.gpu.update_s) == SETUP.gpu
    before, after = SETUP.models[0], slow.models[0]
    assert after.load_s == pytest.approx(10 * before.load_s)
    assert after.service_s(7, 3) == pytest.approx(10 * before.service_s(7, 3))
    assert slow.default_model.service_s(7, 3) == pytest.approx(10 * SETUP.default_model.service_s(7, 3))
    assert after.weights_mb == before.weights_mb


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda data: data["gpu"].update(max_running=0), "max_running is 0, expected 1 or more"),
        (lambda data: data["gpu"].update(memroy_mb=5), "memroy_mb"),
        (lambda data: data.pop("default_model"), "default_model"),
        (lambda data: data["models"][0].update(prefill_tokens_per_s=0), "expected more than 0"),
        (lambda data: data["models"][0].update(load_s="soon"), "load_s"),
        (lambda data: data["models"].append(data["models"][0]), "big"),
    ],
)
def test_a_bad_setup_is_one_line_that_names_the_place(change, seen: str) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(SETUP.to_json())
    change(data)
    with pytest.raises(SetupError) as caught:
        Setup.from_json(json.dumps(data))
    assert seen in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff"])
def test_text_that_is_no_setup_is_one_line_too(text: str) -> None:
    with pytest.raises(SetupError) as caught:
        Setup.from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_scale_must_be_a_positive_number(factor: float) -> None:
    with pytest.raises(SetupError, match="time scale"):
        SETUP.scaled(factor)


def test_unknown_names_list_the_nearest_valid_ones() -> None:
    with pytest.raises(SetupError, match=r"unknown model 'lama-8b'.*llama-8b"):
        setup_of("h100-80gb", "lama-8b")
    with pytest.raises(SetupError, match=r"unknown gpu 'h100'.*h100-80gb"):
        setup_of("h100", "llama-8b")


def test_the_catalogue_agrees_with_the_figures_it_cites() -> None:
    a100 = setup_of("a100-40gb", "llama-8b").default_model
    assert 1 / a100.decode_step_s == pytest.approx(75, rel=0.02)
    assert MODELS["llama-70b"].weights_mb > GPUS["h100-80gb"].memory_mb > MODELS["llama-70b-fp8"].weights_mb
    assert 5_000 / (2 * MODELS["llama-70b-fp8"].prefill_tokens_per_s) == pytest.approx(0.407, rel=0.02)
    assert MODELS["tiny-free"].always_resident
    assert setup_of("tiny", "tiny").default_model.service_s(20, 10) < 0.01
