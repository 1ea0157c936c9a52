"""Models and GPUs as data: sizes, load times, prefill and decode speeds, with where each figure comes from.

Megabytes are decimal (10^6 bytes), as in the published sizes of weights. All speeds are those of one request
alone on one H100; ``setup_of`` slows them down for the other GPUs.

Sources
-------
- Weights: parameters times bytes per parameter (8.0e9 and 70.6e9; 2 bytes in bf16, 1 in fp8).
- Load time: 10 s fixed plus bytes at 4 GB/s, local NVMe. Published times for 8B weights on one machine lie
  at 7.5 s, 14.3 s and 48 s by disk and loader (NVIDIA Run:ai Model Streamer benchmark).
- Decode: a step reads all weights once, so it takes bytes / memory bandwidth / 0.77. The share of 0.77 is
  what a published 75 tokens/s for 8B bf16 on an A100-40GB amounts to. For 8B fp8 the published gap of 4.6 ms
  is taken (NVIDIA NIM benchmark page), which fixed costs keep above the rule.
- Prefill: 12,500 tokens/s for 8B is a rule of thumb (10,000 to 15,000). For 70B fp8 the NIM benchmark page
  gives 0.407 s for 5,000 tokens on two H100, hence 6,100 tokens/s on one; bf16 has half the arithmetic rate.
- GPUs: memory, bandwidth and dense bf16 rate from NVIDIA's data sheets: H100 SXM 80 GB, 3.35 TB/s,
  989 TFLOP/s; A100-40GB 40 GB, 1.555 TB/s, 312 TFLOP/s; L40S 48 GB, 0.864 TB/s, 362 TFLOP/s.
- 256 requests at a time and an unbounded queue are vLLM's defaults. ``update_s`` is an assumption.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

Entry = TypeVar("Entry")


class SetupError(ValueError):
    """A setup, model or GPU that can't be used; the text is one line that says what was seen and expected."""


def _check(owner: str, field: str, value: float, least: float, *, above: bool = False) -> None:
    """Refuse a number that is not finite, below ``least``, or (with ``above``) equal to it."""
    if math.isfinite(value) and (value > least if above else value >= least):
        return
    expected = f"more than {least}" if above else f"{least} or more"
    raise SetupError(f"{owner}: {field} is {value}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Model:
    """One model: what it weighs and how fast it goes.

    With ``weights_mb == 0`` and ``load_s == 0`` it counts as always resident and needs no loading, which
    suits scenarios that use thousands of model names as mere keys.
    """

    # Read by pydantic in ``Setup.from_json``: a misspelt field must not be ignored.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    weights_mb: int
    load_s: float
    prefill_tokens_per_s: float
    decode_step_s: float

    def __post_init__(self) -> None:
        owner = f"model {self.name!r}"
        _check(owner, "weights_mb", self.weights_mb, 0)
        _check(owner, "load_s", self.load_s, 0)
        _check(owner, "prefill_tokens_per_s", self.prefill_tokens_per_s, 0, above=True)
        _check(owner, "decode_step_s", self.decode_step_s, 0)

    @property
    def always_resident(self) -> bool:
        """Whether the model needs neither memory nor loading."""
        return self.weights_mb == 0 and self.load_s == 0

    def service_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds a request of this size runs once it has started."""
        return prompt_tokens / self.prefill_tokens_per_s + output_tokens * self.decode_step_s


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU server: memory for weights, how many requests run at once and how many may wait.

    ``queue_limit`` is how many more requests than ``max_running`` may be inside (None: no limit);
    ``update_s`` is the service time of an update.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    memory_mb: int
    max_running: int
    queue_limit: int | None
    loads_at_once: int = 1
    update_s: float = 0.02

    def __post_init__(self) -> None:
        owner = f"gpu {self.name!r}"
        _check(owner, "memory_mb", self.memory_mb, 0)
        _check(owner, "max_running", self.max_running, 1)
        _check(owner, "queue_limit", self.queue_limit or 0, 0)
        _check(owner, "loads_at_once", self.loads_at_once, 1)
        _check(owner, "update_s", self.update_s, 0)


@dataclass(frozen=True, slots=True)
class Setup:
    """What one backend is made of. Any model name is served: unlisted ones behave as ``default_model``."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    gpu: Gpu
    default_model: Model
    models: tuple[Model, ...] = ()

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SetupError(f"setup: models named twice: {', '.join(twice)}; expected each name once")

    def scaled(self, factor: float) -> Setup:
        """The same setup with every duration multiplied by ``factor`` (> 0)."""
        _check("setup", "time scale", factor, 0, above=True)

        def slowed(model: Model) -> Model:
            return replace(
                model,
                load_s=model.load_s * factor,
                prefill_tokens_per_s=model.prefill_tokens_per_s / factor,
                decode_step_s=model.decode_step_s * factor,
            )

        return Setup(
            gpu=replace(self.gpu, update_s=self.gpu.update_s * factor),
            default_model=slowed(self.default_model),
            models=tuple(slowed(model) for model in self.models),
        )

    def to_json(self) -> str:
        """The setup as JSON text that ``from_json`` reads back to an equal setup."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Setup:
        """Read a setup from JSON; raises SetupError with one line for anything that does not fit."""
        # Imported here because pydantic costs more start-up time than all of the rest of a fleet.
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole text"
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            message = str(first["msg"]).replace("\n", " ").removeprefix("Value error, ")
            raise SetupError(f"setup: at {place}: {message}{more}") from None


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (
            Model("llama-8b", 16_000, 14.0, 12_500.0, 0.0062),
            Model("llama-8b-fp8", 8_000, 12.0, 12_500.0, 0.0046),
            Model("llama-70b", 141_000, 45.3, 3_050.0, 0.0547),
            Model("llama-70b-fp8", 71_000, 27.8, 6_100.0, 0.0275),
            # Scaled down for tests: services of milliseconds, ten models to a ``tiny`` GPU.
            Model("tiny", 100, 0.05, 100_000.0, 0.0005),
            Model("tiny-large", 400, 0.2, 25_000.0, 0.002),
            Model("tiny-free", 0, 0.0, 100_000.0, 0.0005),
        )
    }
)

GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            Gpu("h100-80gb", 80_000, 256, None),
            Gpu("a100-40gb", 40_000, 256, None),
            Gpu("l40s", 48_000, 256, None),
            Gpu("tiny", 1_000, 4, 16, update_s=0.002),
        )
    }
)

# How many times longer than on an H100: prefill by arithmetic rate, decode by memory bandwidth.
_SLOWER: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"a100-40gb": (989 / 312, 3.35 / 1.555), "l40s": (989 / 362, 3.35 / 0.864)}
)


def setup_of(gpu_name: str, model_name: str) -> Setup:
    """A catalogue GPU that serves a catalogue model under any name; SetupError with the nearest names."""
    gpu = _find("gpu", gpu_name, GPUS)
    model = _find("model", model_name, MODELS)
    prefill, decode = _SLOWER.get(gpu_name, (1.0, 1.0))
    return Setup(
        gpu=gpu,
        default_model=replace(
            model,
            prefill_tokens_per_s=model.prefill_tokens_per_s / prefill,
            decode_step_s=model.decode_step_s * decode,
        ),
    )


def _find(what: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    try:
        return entries[name]
    except KeyError:
        from difflib import get_close_matches

        near = get_close_matches(name, entries, n=3, cutoff=0.4) or sorted(entries)
        raise SetupError(f"unknown {what} {name!r}, expected one of: {', '.join(near)}") from None
