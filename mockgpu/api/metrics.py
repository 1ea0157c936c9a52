"""Request counters of a backend, and its metrics in Prometheus' text format.

The same values are exported under the names of vLLM, SGLang and Triton (with TensorRT-LLM's), so that each balancer
finds those it reads. Labels name the models of the setup; other model names count under the default model. Times are
those of the GPU model and exclude delays of this process, except for failed requests.

Token counters and the time to first token change while a request is served, and include the tokens of requests that
were aborted; the other histograms count completed requests, at completion. The bucket bounds are vLLM's. All
inter-token latencies of an answer are counted at their mean. ``vllm:iteration_tokens_total`` is missing: a server of
several models, or of plain ones, has no common iterations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from mockgpu.gpu.events import State
from mockgpu.gpu.setup import Setup

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)  # fmt: skip
_FOLD_AT = 4096


class ServedRequest(NamedTuple):
    """One completed request; times in seconds, those of the GPU model.

    ``first_token_s`` and ``whole_s`` are since submission. ``finish``: length or stop.
    """

    prompt_tokens: int
    output_tokens: int
    queue_s: float
    first_token_s: float
    whole_s: float
    finish: str


class Histogram:
    """A Prometheus histogram: cumulative counts by upper bound, number and sum of the values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * len(bounds)  # cumulative, as in Prometheus
        self.count = 0
        self.total = 0.0

    def add(self, values: Iterable[float]) -> None:
        """Add many values at once, much cheaper than one at a time."""
        ordered = sorted(values)
        for index, bound in enumerate(self.bounds):
            self.counts[index] += bisect_right(ordered, bound)
        self.count += len(ordered)
        self.total += sum(ordered)

    def add_weighted(self, values: Iterable[tuple[float, int]]) -> None:
        """Add pairs of a value and its number of occurrences."""
        ordered = sorted(values)
        weights = [0, *accumulate(weight for _, weight in ordered)]
        for index, bound in enumerate(self.bounds):
            self.counts[index] += weights[bisect_right(ordered, bound, key=lambda pair: pair[0])]
        self.count += weights[-1]
        self.total += sum(value * weight for value, weight in ordered)


@dataclass(slots=True)
class Sums:
    """Triton's sums for a model, in seconds over answered requests; ``failed_s`` over failed ones."""

    answered: int = 0
    failed: int = 0
    whole_s: float = 0.0
    failed_s: float = 0.0
    queue_s: float = 0.0
    service_s: float = 0.0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})


class _Counts:
    """Counters of one model."""

    def __init__(self) -> None:
        self.pending: list[ServedRequest] = []
        self.pending_first_tokens_s: list[float] = []  # times to first token that are not in the histogram yet
        self.sums = Sums()
        self.first_token = Histogram(_FIRST_TOKEN)
        self.gap = Histogram(_GAP)
        self.whole = Histogram(_REQUEST)
        self.queue = Histogram(_REQUEST)
        self.prefill = Histogram(_REQUEST)
        self.decode = Histogram(_REQUEST)

    def fold(self) -> None:
        """Add the pending values to the histograms and sums."""
        if self.pending_first_tokens_s:
            self.first_token.add(self.pending_first_tokens_s)
            self.pending_first_tokens_s = []
        served, self.pending = self.pending, []
        if not served:
            return
        sums = self.sums
        sums.answered += len(served)
        sums.queue_s += sum(each.queue_s for each in served)
        sums.whole_s += sum(each.whole_s for each in served)
        sums.service_s = sums.whole_s - sums.queue_s
        for each in served:
            sums.finished[each.finish] += 1
        with_output = [each for each in served if each.output_tokens]
        self.queue.add(each.queue_s for each in served)
        self.whole.add(each.whole_s for each in served)
        self.prefill.add(each.first_token_s - each.queue_s for each in with_output)
        self.decode.add(each.whole_s - each.first_token_s for each in with_output)
        self.gap.add_weighted(
            ((each.whole_s - each.first_token_s) / (each.output_tokens - 1), each.output_tokens - 1)
            for each in with_output
            if each.output_tokens > 1
        )


class BackendCounters:
    """Request counters of a backend since its start."""

    def __init__(self, setup: Setup) -> None:
        self._default = setup.default_model.name
        names = dict.fromkeys([self._default, *(model.name for model in setup.models)])
        self._counts = {name: _Counts() for name in names}

    def _of(self, model: str) -> _Counts:
        return self._counts.get(model) or self._counts[self._default]

    def record_first_token(self, model: str, first_token_s: float) -> None:
        """Record a time to first token, in seconds. Cheap: values are folded in batches."""
        counts = self._of(model)
        counts.pending_first_tokens_s.append(first_token_s)
        if len(counts.pending_first_tokens_s) >= _FOLD_AT:
            counts.fold()

    def record_answer(self, model: str, served: ServedRequest) -> None:
        """Record a completed request. Cheap: values are folded in batches."""
        counts = self._of(model)
        counts.pending.append(served)
        if len(counts.pending) >= _FOLD_AT:
            counts.fold()

    def record_failure(self, model: str, seconds: float, *, aborted: bool) -> None:
        """Record a request that was aborted by its client (``aborted``), refused or cut off."""
        sums = self._of(model).sums
        sums.failed += 1
        sums.failed_s += seconds
        sums.finished["abort"] += aborted

    def sums(self, model: str) -> Sums:
        """The sums of a model; those of the default model for a name that the setup does not list."""
        counts = self._of(model)
        counts.fold()
        return counts.sums

    def counts(self) -> Mapping[str, _Counts]:
        """Up-to-date counters by model."""
        for counts in self._counts.values():
            counts.fold()
        return self._counts


@dataclass(frozen=True, slots=True)
class AdaptersInUse:
    """LoRA adapters of the running and of the waiting requests."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def escaped(text: str) -> str:
    """The text escaped for a label value."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Page:
    """Builder of a metrics page."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> None:
        """Add a family; samples are pairs of labels, as ``key="value",...``, and value."""
        self.lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        self.lines += [f"{name}{{{labels}}} {value:.12g}" for labels, value in samples]

    def histograms(self, name: str, text: str, samples: Iterable[tuple[str, Histogram]]) -> None:
        """Add a family of histograms by labels."""
        self.lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        for labels, histogram in samples:
            for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
                self.lines.append(f'{name}_bucket{{{labels},le="{bound:g}"}} {count}')
            self.lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {histogram.count}')
            self.lines.append(f"{name}_sum{{{labels}}} {histogram.total:.12g}")
            self.lines.append(f"{name}_count{{{labels}}} {histogram.count}")

    def body(self) -> bytes:
        """The page as bytes."""
        return ("\n".join(self.lines) + "\n").encode()


def page(state: State, counters: BackendCounters, setup: Setup, adapters: AdaptersInUse, now_s: float) -> bytes:
    """All metrics of a backend; ``now_s`` is the Unix time, vLLM's value of the adapter metric."""
    out = _Page()
    _vllm(out, state, counters, setup)
    _adapters(out, setup, adapters, now_s)
    _sglang(out, state, counters, setup)
    _triton(out, state, counters, setup)
    return out.body()


def kv_use(state: State) -> float:
    """Fraction of KV blocks held by requests, 0 to 1."""
    return state.kv_blocks_used / state.kv_blocks_total if state.kv_blocks_total else 0.0


def _vllm(out: _Page, state: State, counters: BackendCounters, setup: Setup) -> None:
    label = f'model_name="{escaped(setup.default_model.name)}",engine="0"'
    use = kv_use(state)
    for name, value, text in (
        ("num_requests_running", state.running, "Requests in service."),
        ("num_requests_waiting", state.queue_depth, "Requests that wait for a slot or a model load."),
        ("kv_cache_usage_perc", use, "Fraction of KV blocks held by requests, 0 to 1."),
        ("gpu_cache_usage_perc", use, "The same under its name before vLLM 0.9."),
        ("engine_sleep_state", float(state.asleep_level), "0 if awake, else the sleep level."),
    ):
        out.family(f"vllm:{name}", "gauge", text, [(label, value)])
    for name, value, text in (
        ("prompt_tokens_total", state.prompt_tokens_done, "Prompt tokens computed or found in the cache."),
        ("generation_tokens_total", state.output_tokens_done, "Output tokens."),
        ("num_preemptions_total", state.preemptions, "Preemptions: requests that lost their KV blocks to others."),
        ("prefix_cache_queries_total", state.prefix_queries_tokens, "Prompt tokens looked up."),
        ("prefix_cache_hits_total", state.prefix_hits_tokens, "Prompt tokens found."),
    ):
        out.family(f"vllm:{name}", "counter", text, [(label, value)])
    counts = {f'model_name="{escaped(name)}",engine="0"': each for name, each in counters.counts().items()}
    out.family(
        "vllm:request_success_total", "counter", "Requests by finish reason.",
        [(f'{key},finished_reason="{reason}"', number)
         for key, each in counts.items() for reason, number in each.sums.finished.items()],
    )  # fmt: skip
    for name, part, text in (
        ("time_to_first_token_seconds", "first_token", "From submission to the first token."),
        ("inter_token_latency_seconds", "gap", "Between output tokens, each at the mean of its answer."),
        ("time_per_output_token_seconds", "gap", "The same under its name before vLLM 0.11."),
        ("e2e_request_latency_seconds", "whole", "From submission to the last token."),
        ("request_queue_time_seconds", "queue", "From submission to the start of service."),
        ("request_prefill_time_seconds", "prefill", "From the start of service to the first token."),
        ("request_decode_time_seconds", "decode", "From the first token to the last."),
    ):
        out.histograms(f"vllm:{name}", text, [(key, getattr(each, part)) for key, each in counts.items()])
    info = f'block_size="{setup.gpu.block_tokens}",num_gpu_blocks="{state.kv_blocks_total}",engine="0"'
    info += f',enable_prefix_caching="{setup.gpu.prefix_cache}"'
    out.family("vllm:cache_config_info", "gauge", "KV cache configuration.", [(info, 1)])


def _adapters(out: _Page, setup: Setup, adapters: AdaptersInUse, now_s: float) -> None:
    if not setup.gpu.max_adapters:
        return
    running, waiting = (escaped(",".join(names)) for names in (adapters.running, adapters.waiting))
    labels = f'max_lora="{setup.gpu.max_adapters}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    out.family("vllm:lora_requests_info", "gauge", "Adapters in use; the value is the Unix time.", [(labels, now_s)])


def _sglang(out: _Page, state: State, counters: BackendCounters, setup: Setup) -> None:
    label = f'model_name="{escaped(setup.default_model.name)}"'
    hits = state.prefix_hits_tokens / state.prefix_queries_tokens if state.prefix_queries_tokens else 0.0
    used_tokens = state.kv_blocks_used * setup.gpu.block_tokens
    for name, value, text in (
        ("num_running_reqs", state.running, "Requests in service."),
        ("num_queue_reqs", state.queue_depth, "Waiting requests."),
        ("num_used_tokens", used_tokens, "Capacity in tokens of the KV blocks held by requests."),
        ("token_usage", kv_use(state), "Fraction of KV blocks held by requests, 0 to 1."),
        ("cache_hit_rate", hits, "Fraction of prompt tokens found in the prefix cache."),
        ("gen_throughput", state.output_tokens_per_s, "Current output tokens per second."),
    ):
        out.family(f"sglang:{name}", "gauge", text, [(label, value)])
    counts = {f'model_name="{escaped(name)}"': each for name, each in counters.counts().items()}
    for name, value, text in (
        ("prompt_tokens_total", state.prompt_tokens_done, "Prompt tokens computed or found in the cache."),
        ("generation_tokens_total", state.output_tokens_done, "Output tokens."),
        ("cached_tokens_total", state.prefix_hits_tokens, "Prompt tokens found in the cache."),
    ):
        out.family(f"sglang:{name}", "counter", text, [(label, value)])
    answered = [(key, each.sums.answered) for key, each in counts.items()]
    out.family("sglang:num_requests_total", "counter", "Requests answered.", answered)
    for name, part, text in (
        ("time_to_first_token_seconds", "first_token", "From submission to the first token."),
        ("inter_token_latency_seconds", "gap", "Between output tokens, each at the mean of its answer."),
        ("e2e_request_latency_seconds", "whole", "From submission to the last token."),
    ):
        out.histograms(f"sglang:{name}", text, [(key, getattr(each, part)) for key, each in counts.items()])


def _triton(out: _Page, state: State, counters: BackendCounters, setup: Setup) -> None:
    sums = {f'model="{escaped(name)}",version="1"': each.sums for name, each in counters.counts().items()}

    def counter(name: str, text: str, part: str, scale: float = 1.0) -> None:
        samples = [(key, round(getattr(each, part) * scale)) for key, each in sums.items()]
        out.family(f"nv_inference_{name}", "counter", text, samples)

    counter("request_success", "Requests answered.", "answered")
    counter("request_failure", "Requests that failed.", "failed")
    counter("count", "Inferences.", "answered")
    counter("exec_count", "Executions, one per request: continuous batches have no start or end.", "answered")
    counter("request_duration_us", "From submission to the end.", "whole_s", 1e6)
    counter("queue_duration_us", "Waiting.", "queue_s", 1e6)
    counter("compute_input_duration_us", "Input processing: always 0.", "answered", 0.0)
    counter("compute_infer_duration_us", "In service.", "service_s", 1e6)
    counter("compute_output_duration_us", "Output processing: always 0.", "answered", 0.0)
    default = f'model="{escaped(setup.default_model.name)}",version="1"'
    pending = [(default, state.queue_depth)]
    out.family("nv_inference_pending_request_count", "gauge", "Waiting requests of all models.", pending)
    gpu = 'gpu_uuid="GPU-mock-0"'
    out.family("nv_gpu_utilization", "gauge", "1 while anything runs, else 0.", [(gpu, float(state.running > 0))])
    out.family("nv_gpu_memory_total_bytes", "gauge", "Memory.", [(gpu, state.memory_total_mb * 1_000_000)])
    out.family("nv_gpu_memory_used_bytes", "gauge", "Memory in use.", [(gpu, state.memory_used_mb * 1_000_000)])
    out.family(
        "nv_trt_llm_request_metrics", "gauge", "Requests by state.",
        [(f'{default},request_type="{kind}"', number)
         for kind, number in (("waiting", state.queue_depth), ("active", state.running),
                              ("max", setup.gpu.max_running))],
    )  # fmt: skip
    out.family(
        "nv_trt_llm_kv_cache_block_metrics", "gauge", "KV blocks.",
        [(f'{default},kv_cache_block_type="{kind}"', number)
         for kind, number in (("fraction", kv_use(state)), ("used", state.kv_blocks_used),
                              ("free", state.kv_blocks_total - state.kv_blocks_used), ("max", state.kv_blocks_total),
                              ("tokens_per", setup.gpu.block_tokens))],
    )  # fmt: skip
