"""What one run of a backend is made of: the engine, the faults, what is counted, and which names are served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """How a backend presents itself. ``strict_models``: names that the setup does not list are answered 404."""

    strict_models: bool = False


PLAIN = Options()


class RunState:
    """All that begins anew with a run; requests that are inside stay with the core they came to."""

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
        self.tally = BackendCounters(setup)
        self.engine = Engine(setup, clock, on_residency, self.tally.begun)
        self.faults = RequestFaults(name)
        self.words: dict[int, str] = {}  # by number, for those who ask to have their tokens back
        self.naps = 0  # how often it was told to sleep or to wake
        self._adapters: dict[str, str] = {}  # base by name; an empty base: it was there and is no longer
        self._listed = {setup.default_model.name, *(model.name for model in setup.models)}
        specs = {model.name: model for model in setup.models}
        cached = setup.gpu.kv_share > 0 and setup.gpu.prefix_cache
        self._caches = {name: cached and spec.kv_bytes_per_token > 0 for name, spec in specs.items()}
        self._others_cache = cached and setup.default_model.kv_bytes_per_token > 0
        self._with_adapter: set[JobHandle] = set()

    # -- names -----------------------------------------------------------------------------------------------

    def settle(self, ask: ParsedRequest) -> str:
        """Fill in the default model, and return the base model that serves the request.

        Raises BadRequestError (404) for a name that is not served.
        """
        if not ask.model:
            ask.model = self.setup.default_model.name
        name = ask.model
        base = self._adapters.get(name) if self._adapters else None
        if base is None and (name in self._listed or not self.options.strict_models):
            return name
        if not base:
            raise BadRequestError(f"the model `{name}` does not exist", "model", status=404, code="model_not_found")
        return base

    def knows(self, name: str) -> bool:
        """Whether a request for this name would be taken."""
        base = self._adapters.get(name)
        return bool(base) if base is not None else name in self._listed or not self.options.strict_models

    def names(self) -> list[str]:
        """Names of models: the default one, those of the setup, whatever else is in memory; no adapters."""
        listed = [self.setup.default_model.name, *(model.name for model in self.setup.models)]
        return list(dict.fromkeys([*listed, *self.engine.state().models]))

    def adapters(self) -> dict[str, str]:
        """The base model of each adapter that is served, by name."""
        return {name: base for name, base in self._adapters.items() if base}

    def load_adapter(self, name: str, base: str) -> None:
        """Serve an adapter under its name; raises ValueError where there are no slots for any."""
        self.engine.load_adapter(name, base)
        self._adapters[name] = base

    def unload_adapter(self, name: str) -> None:
        """Serve it no longer: its name is answered 404 from now on."""
        self.engine.unload_adapter(name)
        self._adapters[name] = ""

    # -- requests --------------------------------------------------------------------------------------------

    def blocks(self, ask: ParsedRequest, base: str) -> tuple[int, ...]:
        """Hashes of the blocks of the prompt, where a prefix cache wants them."""
        if not self.caches(base):
            return ()
        adapter = "" if base == ask.model else ask.model
        return blocks_of(ask.prompt, ask.prompt_tokens, self.setup.gpu.block_tokens, adapter)

    def caches(self, base: str) -> bool:
        """Whether this model has a prefix cache."""
        return self._caches.get(base, self._others_cache)

    def entered(self, stay: JobHandle) -> None:
        """A request with an adapter is inside."""
        self._with_adapter.add(stay)

    def left(self, stay: JobHandle) -> None:
        """It is no longer; does nothing for one without an adapter."""
        self._with_adapter.discard(stay)

    # -- reports ---------------------------------------------------------------------------------------------

    def state(self) -> State:
        """What the backend reports of itself, its faults included."""
        return self.faults.seen_in(self.engine.state())

    def figures(self, *, progress: bool = False) -> State:
        """The load figures that it reports, its faults included; with what those inside have made where asked for."""
        return self.faults.figures_in(self.engine.figures() if progress else self.engine.state())

    def adapters_in_use(self) -> AdaptersInUse:
        """Which adapters the requests inside use."""
        running = {stay.job.adapter for stay in self._with_adapter if stay.stage >= Progress.STARTED}
        waiting = {stay.job.adapter for stay in self._with_adapter if stay.stage < Progress.STARTED}
        return AdaptersInUse(tuple(sorted(running)), tuple(sorted(waiting)))
