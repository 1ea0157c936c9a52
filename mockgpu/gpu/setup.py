"""Configuration of a mock backend as frozen data: a GPU and its models, with JSON and time scaling.

``mockgpu.gpu.catalogue`` re-exports these names, with real figures. Megabytes are decimal (10^6 bytes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar, Literal


class SetupError(ValueError):
    """An invalid setup, model or GPU; the message is one line with the value found and the expected one."""


# Largest duration, size or count in a setup; sums and products of such values stay finite.
MAX_VALUE = 1e12
_MIN_RATE, _MAX_RATE = 1e-9, 1e300  # the maximum lets durations be scaled down to almost zero


def _check(
    owner: str, field: str, value: float, minimum: float, *, exclusive: bool = False, maximum: float = MAX_VALUE
) -> None:
    """Raise SetupError for a value below ``minimum`` (``exclusive``: or equal to it), above ``maximum``, or nan."""
    if (value > minimum if exclusive else value >= minimum) and value <= maximum:
        return
    expected = f"more than {minimum}" if exclusive else f"{minimum} or more"
    if value > maximum:
        expected = f"{maximum:g} or less"
    text = str(value)
    raise SetupError(f"{owner}: {field} is {text if len(text) <= 40 else text[:37] + '...'}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Model:
    """Size and speed of one model.

    With ``weights_mb == 0`` and ``load_s == 0`` it is always resident and needs no loading, for scenarios that use
    thousands of model names as keys only.

    ``decode_slope_s`` is added to the decode step for every further running job of the model.
    ``kv_bytes_per_token`` 0: its jobs use no KV cache. ``max_model_tokens`` bounds prompt plus output.
    """

    # For pydantic in ``Setup.from_json``: refuse unknown fields, e.g. misspelt ones.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    weights_mb: int
    load_s: float
    prefill_tokens_per_s: float
    decode_step_s: float
    decode_slope_s: float = 0.0
    kv_bytes_per_token: int = 0
    max_model_tokens: int | None = None

    def __post_init__(self) -> None:
        owner = f"model {self.name!r}"
        _check(owner, "weights_mb", self.weights_mb, 0)
        _check(owner, "load_s", self.load_s, 0)
        _check(owner, "prefill_tokens_per_s", self.prefill_tokens_per_s, _MIN_RATE, maximum=_MAX_RATE)
        _check(owner, "decode_step_s", self.decode_step_s, 0)
        _check(owner, "decode_slope_s", self.decode_slope_s, 0)
        _check(owner, "kv_bytes_per_token", self.kv_bytes_per_token, 0)
        _check(owner, "max_model_tokens", 1 if self.max_model_tokens is None else self.max_model_tokens, 1)

    @property
    def always_resident(self) -> bool:
        """Whether the model needs neither memory nor loading."""
        return self.weights_mb == 0 and self.load_s == 0

    def service_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Service time in seconds of a request of this size at batch size 1 and with an empty prefix cache."""
        return prompt_tokens / self.prefill_tokens_per_s + output_tokens * self.decode_step_s


@dataclass(frozen=True, slots=True)
class Pools:
    """Disaggregated prefill and decode, each with its own slots, which replace ``Gpu.max_running``.

    A prompt is computed in a prefill slot; then its KV blocks are transferred to a decode slot, which takes
    ``transfer_s`` + prompt tokens * ``transfer_s_per_token`` seconds.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    prefill_slots: int
    decode_slots: int
    transfer_s: float = 0.0
    transfer_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        for field in ("prefill_slots", "decode_slots"):
            _check("pools", field, getattr(self, field), 1)
        for field in ("transfer_s", "transfer_s_per_token"):
            _check("pools", field, getattr(self, field), 0)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU server: memory, concurrency and queue limits.

    ``queue_limit`` is the number of requests beyond ``max_running`` that may wait (None: no limit);
    ``update_s`` is the service time of an update of an embedding, ``weights_update_s`` of one of weights.

    The fraction ``kv_share`` of the memory is set aside for KV cache, in blocks of ``block_tokens``; weights have the
    rest except ``reserved_mb`` (activations and the like). With ``kv_share`` 0 the KV cache is not modelled: it is
    unlimited, and nothing is cached. With ``prefix_cache`` full blocks of prompts stay cached until their space is
    needed.

    At most ``max_adapters`` LoRA adapters are loaded at once (0: none are served); each reduces the memory for weights
    by ``adapter_mb`` and takes ``adapter_load_s`` to load. ``sleep_s`` and ``wake_s`` are the durations for sleep
    levels 1 and 2. ``refuse_asleep``: requests that wait or arrive during sleep are refused instead of waiting.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    memory_mb: int
    max_running: int
    queue_limit: int | None
    loads_at_once: int = 1
    update_s: float = 0.02
    weights_update_s: float = 2.0
    reserved_mb: int = 0
    kv_share: float = 0.0
    block_tokens: int = 16
    prefix_cache: bool = True
    pools: Pools | None = None
    max_adapters: int = 0
    adapter_mb: int = 0
    adapter_load_s: float = 0.0
    sleep_s: tuple[float, float] = (10.6, 0.31)
    wake_s: tuple[float, float] = (2.2, 6.5)
    refuse_asleep: bool = False

    def __post_init__(self) -> None:
        owner = f"gpu {self.name!r}"
        _check(owner, "queue_limit", self.queue_limit or 0, 0)
        for field in ("max_running", "loads_at_once", "block_tokens"):
            _check(owner, field, getattr(self, field), 1)
        for field in ("memory_mb", "update_s", "weights_update_s", "reserved_mb", "kv_share"):
            _check(owner, field, getattr(self, field), 0)
        for field in ("max_adapters", "adapter_mb", "adapter_load_s"):
            _check(owner, field, getattr(self, field), 0)
        for field in ("sleep_s", "wake_s"):
            for value in getattr(self, field):
                _check(owner, field, value, 0)
        if self.kv_share > 1:
            raise SetupError(f"{owner}: kv_share is {self.kv_share}, expected 1 or less")
        if self.weights_mb < 0:
            taken = f"kv_share, reserved_mb and adapters take {self.memory_mb - self.weights_mb} MB"
            raise SetupError(f"{owner}: {taken}, expected at most {self.memory_mb} MB (memory_mb)")

    def update_service_s(self, update: Literal["embedding", "weights"]) -> float:
        """Service time of an update, in seconds."""
        return self.weights_update_s if update == "weights" else self.update_s

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache."""
        return int(self.memory_mb * 1_000_000 * self.kv_share)

    @property
    def weights_mb(self) -> int:
        """Megabytes available to model weights."""
        kv_mb = math.ceil(self.kv_bytes / 1_000_000)
        return self.memory_mb - self.reserved_mb - kv_mb - self.max_adapters * self.adapter_mb


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of one backend. Any model name is served: unlisted ones behave as ``default_model``."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    gpu: Gpu
    default_model: Model
    models: tuple[Model, ...] = ()

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise SetupError(f"setup: duplicate model names: {', '.join(duplicates)}; expected each name once")

    def scaled(self, factor: float) -> Setup:
        """The same setup with every duration multiplied by ``factor`` (> 0)."""
        _check("setup", "time scale", factor, 0, exclusive=True)

        def scaled_model(model: Model) -> Model:
            return replace(
                model,
                load_s=model.load_s * factor,
                prefill_tokens_per_s=model.prefill_tokens_per_s / factor,
                decode_step_s=model.decode_step_s * factor,
                decode_slope_s=model.decode_slope_s * factor,
            )

        gpu, pools = self.gpu, self.gpu.pools
        if pools is not None:
            pools = replace(
                pools,
                transfer_s=pools.transfer_s * factor,
                transfer_s_per_token=pools.transfer_s_per_token * factor,
            )
        return Setup(
            gpu=replace(
                gpu,
                update_s=gpu.update_s * factor,
                weights_update_s=gpu.weights_update_s * factor,
                adapter_load_s=gpu.adapter_load_s * factor,
                sleep_s=(gpu.sleep_s[0] * factor, gpu.sleep_s[1] * factor),
                wake_s=(gpu.wake_s[0] * factor, gpu.wake_s[1] * factor),
                pools=pools,
            ),
            default_model=scaled_model(self.default_model),
            models=tuple(scaled_model(model) for model in self.models),
        )

    def to_json(self) -> str:
        """The setup as JSON text that ``from_json`` reads back to an equal setup."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Setup:
        """Read a setup from JSON; raises SetupError with a one-line message if it is invalid."""
        # Imported here because pydantic takes longer to import than the rest of a fleet takes to start.
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            raise SetupError(f"setup: {_described(error.errors(include_url=False)[0])}{more}") from None


def _described(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors as a line with its place. ``harness`` has the same in harness/scenario/reading.py."""
    place = f"at {'.'.join(map(str, error['loc'])) or 'the whole text'}"
    match error["type"]:
        case "value_error":
            return f"{place}: {error['ctx']['error']}"
        case "missing":
            return f"{place}: missing, expected a value as it has no default"
        case "unexpected_keyword_argument":
            *above, name = error["loc"]
            tables = {"gpu": Gpu, "pools": Pools, "default_model": Model, "models": Model}
            table = next((tables[part] for part in reversed(above) if part in tables), Setup)
            names = [each.name for each in fields(table)]
            return (
                f"{place}: unknown key, expected {' or '.join(get_close_matches(name, names, n=2)) or ', '.join(names)}"
            )
        case _:
            text = repr(error["input"])
            seen = text if len(text) <= 40 else text[:37] + "..."
            return f"{place}: saw {seen}, expected {error['msg'].removeprefix('Input should be ')}"
