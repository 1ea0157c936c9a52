"""The state of one run of a backend: engine, faults, counters and served names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mockgpu.api.calls import ApiCall, ApiReply
from mockgpu.api.metrics import AdaptersInUse, BackendCounters
from mockgpu.api.wire import BadRequestError, ParsedRequest
from mockgpu.faults.decisions import RequestFaults
from mockgpu.gpu.events import Evicted, Loaded, Loading, State
from mockgpu.gpu.prompt_blocks import blocks_of
from mockgpu.gpu.setup import Setup
from mockgpu.server.clock import Clock
from mockgpu.server.engine import Engine, JobHandle, Progress


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a backend. ``strict_models``: model names that the setup does not list are answered 404."""

    strict_models: bool = False


DEFAULT_OPTIONS = Options()
SERVER_VERSION = "0.0.0+mockgpu"
"""The version that backends report; it is no release of vLLM or SGLang."""


class RunState:
    """State that a reset replaces; requests in flight keep the run in which they arrived."""

    def __init__(
        self,
        name: str,
        setup: Setup,
        options: Options,
        clock: Clock,
        created: int,
        on_residency: Callable[[Loading | Loaded | Evicted], None],
    ) -> None:
        self.name = name
        self.setup = setup
        self.options = options
        self.clock = clock
        self.created = created
        self.counters = BackendCounters(setup)
        self.engine = Engine(setup, clock, on_residency, self.counters.record_first_token)
        self.faults = RequestFaults(name)
        self.words: dict[int, str] = {}  # word by token number, for detokenize
        self.sleep_calls = 0  # number of sleep and wake calls
        self._adapters: dict[str, str] = {}  # base model by adapter name; "": unloaded
        self._listed = {setup.default_model.name, *(model.name for model in setup.models)}
        specs = {model.name: model for model in setup.models}
        cached = setup.gpu.kv_share > 0 and setup.gpu.prefix_cache
        self._caches = {name: cached and spec.kv_bytes_per_token > 0 for name, spec in specs.items()}
        self._unlisted_cache = cached and setup.default_model.kv_bytes_per_token > 0
        self._with_adapter: set[JobHandle] = set()

    # -- names -----------------------------------------------------------------------------------------------

    def resolve_model(self, parsed: ParsedRequest) -> str:
        """Fill in the default model; returns the base model that serves the request.

        Raises BadRequestError (404) for a name that is not served.
        """
        if not parsed.model:
            parsed.model = self.setup.default_model.name
        name = parsed.model
        base = self._adapters.get(name) if self._adapters else None
        if base is None and (name in self._listed or not self.options.strict_models):
            return name
        if not base:
            raise BadRequestError(f"the model `{name}` does not exist", "model", status=404, code="model_not_found")
        return base

    def knows(self, name: str) -> bool:
        """Whether a request for this model name would be accepted."""
        base = self._adapters.get(name)
        return bool(base) if base is not None else name in self._listed or not self.options.strict_models

    def names(self) -> list[str]:
        """Model names: the default model, those of the setup, others in memory; no adapters."""
        listed = [self.setup.default_model.name, *(model.name for model in self.setup.models)]
        return list(dict.fromkeys([*listed, *self.engine.state().models]))

    def adapters(self) -> dict[str, str]:
        """The base model of each loaded adapter, by adapter name."""
        return {name: base for name, base in self._adapters.items() if base}

    def load_adapter(self, name: str, base: str) -> None:
        """Serve an adapter under ``name``; raises ValueError if the setup has no adapter slots."""
        self.engine.load_adapter(name, base)
        self._adapters[name] = base

    def unload_adapter(self, name: str) -> None:
        """Stop serving an adapter: its name is answered 404 from now on."""
        self.engine.unload_adapter(name)
        self._adapters[name] = ""

    # -- requests --------------------------------------------------------------------------------------------

    def blocks(self, parsed: ParsedRequest, base: str) -> tuple[int, ...]:
        """Block hashes of the prompt if its model has a prefix cache, else none."""
        if not self.caches(base):
            return ()
        adapter = "" if base == parsed.model else parsed.model
        return blocks_of(parsed.prompt, parsed.prompt_tokens, self.setup.gpu.block_tokens, adapter)

    def caches(self, base: str) -> bool:
        """Whether this model has a prefix cache."""
        return self._caches.get(base, self._unlisted_cache)

    def adapter_request_started(self, handle: JobHandle) -> None:
        """Count a request with an adapter as in flight."""
        self._with_adapter.add(handle)

    def adapter_request_ended(self, handle: JobHandle) -> None:
        """Stop counting a request; does nothing for one without an adapter."""
        self._with_adapter.discard(handle)

    # -- reports ---------------------------------------------------------------------------------------------

    def reported_state(self) -> State:
        """The readiness and load that the backend reports, its faults included."""
        return self.faults.reported_state(self.engine.state())

    def reported_load(self, *, progress: bool = False) -> State:
        """The load figures that the backend reports, its faults included; ``progress`` adds those of running jobs."""
        return self.faults.reported_load(self.engine.state_with_progress() if progress else self.engine.state())

    def adapters_in_use(self) -> AdaptersInUse:
        """The adapters that requests in flight use."""
        running = {handle.job.adapter for handle in self._with_adapter if handle.progress >= Progress.STARTED}
        waiting = {handle.job.adapter for handle in self._with_adapter if handle.progress < Progress.STARTED}
        return AdaptersInUse(tuple(sorted(running)), tuple(sorted(waiting)))


Handler: TypeAlias = Callable[[RunState, ApiCall], Awaitable[ApiReply]]
Routes: TypeAlias = Mapping[str, Mapping[str, Handler]]
"""Handlers by path and method."""
