import math
import random
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mockgpu.api.metrics import AdaptersInUse, BackendCounters, Histogram, ServedRequest, page
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.gpu.events import State

SETUP = Setup(
    Gpu("box", 1_000, 8, None, kv_share=0.5, max_adapters=2),
    Model('any "one"', 0, 0.0, 10_000.0, 0.002),
    (Model("b", 0, 0.0, 10_000.0, 0.002),),
)
STATE = State(
    ready=True, memory_total_mb=1_000, memory_used_mb=600, memory_evictable_mb=0, queue_depth=3, running=2,
    pending_tokens=9, models=(), kv_blocks_total=200, kv_blocks_used=50, kv_blocks_cached=20,
    prefix_queries_tokens=100, prefix_hits_tokens=25, preemptions=4, prompt_tokens_done=1_000, output_tokens_done=70,
    output_tokens_per_s=12.5,
)  # fmt: skip

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(counters: BackendCounters, state: State = STATE, adapters: AdaptersInUse | None = None) -> Samples:
    """Every sample of a page by name and labels, read with Prometheus' own parser."""
    text = page(state, counters, SETUP, adapters or AdaptersInUse(), 1_700_000_000.0).decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    """The only sample of that name whose labels include these."""
    (found,) = [value for (other, own), value in samples.items() if other == name and set(labels.items()) <= own]
    return found


def test_gauges_and_counters_say_what_the_state_says() -> None:
    samples = samples_of(BackendCounters(SETUP))
    for name, expected in {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 3,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:gpu_cache_usage_perc": 0.25,
        "vllm:prompt_tokens_total": 1_000,
        "vllm:generation_tokens_total": 70,
        "vllm:num_preemptions_total": 4,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 25,
        "sglang:num_running_reqs": 2,
        "sglang:num_queue_reqs": 3,
        "sglang:token_usage": 0.25,
        "sglang:num_used_tokens": 800,
        "sglang:cache_hit_rate": 0.25,
        "sglang:gen_throughput": 12.5,
    }.items():
        assert value(samples, name, model_name='any "one"') == expected, name
    assert value(samples, "vllm:cache_config_info", block_size="16", num_gpu_blocks="200") == 1
    assert value(samples, "nv_gpu_memory_used_bytes") == 600_000_000
    assert value(samples, "nv_gpu_utilization") == 1
    assert value(samples, "nv_trt_llm_request_metrics", request_type="waiting") == 3
    assert value(samples, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="fraction") == 0.25


def test_requests_are_counted_under_their_model_and_others_under_the_default() -> None:
    counters = BackendCounters(SETUP)
    counters.record_first_token("b", 0.3)
    counters.record_answer("b", ServedRequest(8, 5, 0.1, 0.3, 0.7, "length"))
    counters.record_answer("unlisted", ServedRequest(8, 0, 0.0, 0.0, 0.01, "stop"))
    counters.record_failure("b", 2.0, aborted=True)
    counters.record_failure("b", 1.0, aborted=False)
    samples = samples_of(counters)
    success = {
        (model, why): value(samples, "vllm:request_success_total", model_name=model, finished_reason=why)
        for model in ("b", 'any "one"') for why in ("length", "stop", "abort")
    }  # fmt: skip
    assert {key for key, number in success.items() if number} == {
        ("b", "length"),
        ("b", "abort"),
        ('any "one"', "stop"),
    }
    for name, expected in {
        "nv_inference_request_success": 1,
        "nv_inference_request_failure": 2,
        "nv_inference_count": 1,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 700_000,
        "nv_inference_queue_duration_us": 100_000,
        "nv_inference_compute_infer_duration_us": 600_000,
        "nv_inference_compute_input_duration_us": 0,
    }.items():
        # Triton's counters have no suffix "_total"; this parser adds it.
        assert value(samples, f"{name}_total", model="b") == expected, name
    histograms = {
        "time_to_first_token_seconds": 0.3,
        "e2e_request_latency_seconds": 0.7,
        "request_queue_time_seconds": 0.1,
        "request_prefill_time_seconds": 0.2,
        "request_decode_time_seconds": 0.4,
    }
    for name, seconds in histograms.items():
        assert value(samples, f"vllm:{name}_count", model_name="b") == 1
        assert value(samples, f"vllm:{name}_sum", model_name="b") == pytest.approx(seconds)
    # Four gaps of 0.1 s each; the request without tokens has no first token and no gaps.
    for name in ("vllm:inter_token_latency_seconds_count", "sglang:inter_token_latency_seconds_count"):
        assert value(samples, name, model_name="b") == 4
    assert value(samples, "vllm:inter_token_latency_seconds_sum", model_name="b") == pytest.approx(0.4)
    assert value(samples, "vllm:time_to_first_token_seconds_count", model_name='any "one"') == 0
    assert value(samples, "vllm:e2e_request_latency_seconds_count", model_name='any "one"') == 1


def test_histograms_count_as_counting_one_by_one_does() -> None:
    generator = random.Random(1)
    values = [generator.expovariate(1.0) for _ in range(500)] + [0.5, 1.0, 1.0]
    weights = [generator.randrange(1, 9) for _ in values]
    plain, weighted = Histogram((0.5, 1.0, 2.0)), Histogram((0.5, 1.0, 2.0))
    for at in range(0, len(values), 100):
        plain.add(values[at : at + 100])
        weighted.add_weighted(zip(values[at : at + 100], weights[at : at + 100], strict=True))
    assert plain.counts == [sum(value <= bound for value in values) for bound in (0.5, 1.0, 2.0)]
    assert plain.count == len(values)
    assert plain.total == pytest.approx(math.fsum(values))
    pairs = list(zip(values, weights, strict=True))
    assert weighted.counts == [sum(weight for value, weight in pairs if value <= bound) for bound in (0.5, 1.0, 2.0)]
    assert weighted.count == sum(weights)
    assert weighted.total == pytest.approx(math.fsum(value * weight for value, weight in pairs))


def test_nothing_is_lost_however_many_there_are_between_two_looks() -> None:
    counters = BackendCounters(SETUP)
    for number in range(10_000):
        counters.record_first_token("b", 0.001 * (number % 50))
        counters.record_answer("b", ServedRequest(1, 2, 0.0, 0.001 * (number % 50), 0.1, "length"))
    samples = samples_of(counters)
    assert value(samples, "vllm:time_to_first_token_seconds_count", model_name="b") == 10_000
    assert value(samples, "vllm:time_to_first_token_seconds_bucket", model_name="b", le="+Inf") == 10_000
    assert counters.sums("b").answered == 10_000
    assert len(counters.counts()["b"].pending) == len(counters.counts()["b"].pending_first_tokens_s) == 0


def test_adapters_show_only_where_there_are_slots_for_them() -> None:
    samples = samples_of(BackendCounters(SETUP), adapters=AdaptersInUse(("a", "b"), ("c",)))
    labels = {"max_lora": "2", "running_lora_adapters": "a,b", "waiting_lora_adapters": "c"}
    assert value(samples, "vllm:lora_requests_info", **labels) == 1_700_000_000
    bare = Setup(Gpu("box", 1_000, 8, None), Model("m", 0, 0.0, 1.0, 0.0))
    assert b"lora" not in page(STATE, BackendCounters(bare), bare, AdaptersInUse(), 0.0)


def test_a_page_of_a_server_without_kv_cache_divides_by_nothing() -> None:
    empty = State(True, 0, 0, 0, 0, 0, 0, ())
    samples = samples_of(BackendCounters(SETUP), empty)
    assert value(samples, "vllm:kv_cache_usage_perc") == 0
    assert value(samples, "sglang:cache_hit_rate") == 0


def test_counting_costs_next_to_nothing() -> None:
    """The target is 2 µs per request; the bound allows for a slow and busy machine."""
    generator = random.Random(2)
    served: list[Any] = [
        ServedRequest(100, 50, generator.random() / 9, generator.random(), 1 + generator.random(), "length")
        for _ in range(20_000)
    ]
    costs = []
    for _ in range(3):
        counters = BackendCounters(SETUP)
        began_s = time.process_time()
        for each in served:
            counters.record_first_token("b", each.first_token_s)
            counters.record_answer("b", each)
        counters.sums("b")
        costs.append((time.process_time() - began_s) / len(served) * 1e6)
    print(f"{min(costs):.2f} µs a request")
    assert min(costs) < 10
