"""What a mock backend is made of, as frozen data: a GPU, its models, and how they are read and scaled.

``mockgpu.gpu.catalogue`` offers these names too, with real figures. Megabytes are decimal (10^6 bytes).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal


class SetupError(ValueError):
    """A setup, model or GPU that can't be used; the text is one line that says what was seen and expected."""


# What no duration, size or number of a setup exceeds; times as long can still be added up and multiplied.
MOST = 1e12
_LEAST_RATE, _MOST_RATE = 1e-9, 1e300  # the second one: durations may be scaled down to next to nothing


def _check(owner: str, field: str, value: float, least: float, *, above: bool = False, most: float = MOST) -> None:
    """Refuse a number below ``least``, or (with ``above``) equal to it, or above ``most``; nan and infinity too."""
    if (value > least if above else value >= least) and value <= most:
        return
    expected = f"more than {least}" if above else f"{least} or more"
    if value > most:
        expected = f"{most:g} or less"
    seen = str(value)
    raise SetupError(f"{owner}: {field} is {seen if len(seen) <= 40 else seen[:37] + '...'}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Model:
    """One model: what it weighs and how fast it goes.

    With ``weights_mb == 0`` and ``load_s == 0`` it counts as always resident and needs no loading, which
    suits scenarios that use thousands of model names as mere keys.

    ``decode_slope_s`` is added to the decode step for every further job of the model that runs.
    ``kv_bytes_per_token`` 0: its jobs take no KV cache. ``max_model_tokens`` bounds prompt and output together.
    """

    # Read by pydantic in ``Setup.from_json``: a misspelt field must not be ignored.
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
        _check(owner, "prefill_tokens_per_s", self.prefill_tokens_per_s, _LEAST_RATE, most=_MOST_RATE)
        _check(owner, "decode_step_s", self.decode_step_s, 0)
        _check(owner, "decode_slope_s", self.decode_slope_s, 0)
        _check(owner, "kv_bytes_per_token", self.kv_bytes_per_token, 0)
        _check(owner, "max_model_tokens", 1 if self.max_model_tokens is None else self.max_model_tokens, 1)

    @property
    def always_resident(self) -> bool:
        """Whether the model needs neither memory nor loading."""
        return self.weights_mb == 0 and self.load_s == 0

    def service_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds a request of this size runs once it has started, alone and with nothing cached."""
        return prompt_tokens / self.prefill_tokens_per_s + output_tokens * self.decode_step_s


@dataclass(frozen=True, slots=True)
class Pools:
    """Prefill and decode apart, each with slots of its own, which take the place of ``Gpu.max_running``.

    A prompt is computed in a prefill slot; then its KV blocks move to a decode slot, which takes
    ``transfer_s`` + prompt tokens * ``transfer_s_per_token``.
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
    """One GPU server: its memory, how many requests run at once and how many may wait.

    ``queue_limit`` is how many more requests than ``max_running`` may be inside (None: no limit);
    ``update_s`` is the service time of an update of an embedding, ``weights_update_s`` of one of weights.

    ``kv_share`` of the memory is set aside for KV cache, in blocks of ``block_tokens``; weights have the rest, but
    for ``reserved_mb``, which neither can take: activations and the like.
    With 0 the KV cache is not modelled: there is room for everything, and nothing is cached. With
    ``prefix_cache`` full blocks of prompts are kept until their room is needed.

    ``max_adapters`` LoRA adapters are on the GPU at once (0: none are served); each takes ``adapter_mb`` from
    what weights may take, and ``adapter_load_s`` to load. ``sleep_s`` and ``wake_s`` are the durations for
    sleep levels 1 and 2. ``refuse_asleep``: whoever is waiting then or comes is refused, instead of waiting.
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
            seen = f"kv_share, reserved_mb and adapters take {self.memory_mb - self.weights_mb} MB"
            raise SetupError(f"{owner}: {seen}, expected at most the {self.memory_mb} MB that there are")

    def update_service_s(self, update: Literal["embedding", "weights"]) -> float:
        """Seconds an update runs once it has started."""
        return self.weights_update_s if update == "weights" else self.update_s

    @property
    def kv_bytes(self) -> int:
        """Bytes set aside for KV cache."""
        return int(self.memory_mb * 1_000_000 * self.kv_share)

    @property
    def weights_mb(self) -> int:
        """Megabytes that models can take."""
        kv_mb = math.ceil(self.kv_bytes / 1_000_000)
        return self.memory_mb - self.reserved_mb - kv_mb - self.max_adapters * self.adapter_mb


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
