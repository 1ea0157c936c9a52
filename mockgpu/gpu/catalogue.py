"""Real GPUs and models as data: sizes, load times, prefill and decode speeds, with the source of each figure.

Megabytes are decimal (10^6 bytes), as in the published sizes of weights. Speeds are for one H100;
``setup_of`` scales them for the other GPUs.

Sources
-------
- Weights: parameters (8.0e9 and 70.6e9) times 2 bytes in bf16, 1 in fp8, and 4.5 bits in int4 (4 bits plus
  the quantisation scales).
- Load time: 10 s fixed plus bytes at 4 GB/s, local NVMe. Published times for 8B weights on one machine are
  7.5 s, 14.3 s and 48 s, depending on disk and loader (NVIDIA Run:ai Model Streamer benchmark).
- Decode step at batch size 1: a step reads all weights once, so it takes bytes / memory bandwidth / 0.77. The
  efficiency of 0.77 follows from a published 75 tokens/s for 8B bf16 on an A100-40GB. 8B fp8 uses the published
  inter-token latency of 4.6 ms (NVIDIA NIM benchmark page), 1.5 ms above the rule; 8B int4 the rule plus 1.5 ms.
- Decode step in a batch: the same page has inter-token latencies of 4.6, 5.2, 5.9 and 7.6 ms for 1, 25, 50 and 100
  concurrent requests of an 8B model, hence 0.03 ms per further request; and of 18.6, 38.8 and 59.7 ms for 1, 25 and
  50 of 70B fp8 on two H100 with 5,000 prompt tokens each, hence 0.84 ms, or 1.7 ms on one. The precision of the
  weights is assumed not to change this.
- Prefill: 12,500 tokens/s for 8B is a rule of thumb (10,000 to 15,000). For 70B fp8 the NIM benchmark page
  gives 0.407 s for 5,000 tokens on two H100, hence 6,100 tokens/s on one; bf16 has half the arithmetic rate, and
  int4 weights are computed in bf16.
- KV cache in bf16: 2 (key, value) * layers * 8 heads * 128 * 2 bytes per token: 128 KiB for
  8B (32 layers), 320 KiB for 70B (80 layers). Blocks of 16 tokens and 0.9 of the memory for weights and cache are
  vLLM's defaults. 131,072 tokens is the context length of Llama 3.1.
- GPUs: memory, bandwidth and dense bf16 rate from NVIDIA's data sheets: H100 SXM 80 GB, 3.35 TB/s,
  989 TFLOP/s; H200 SXM 141 GB, 4.8 TB/s, 989 TFLOP/s; A100 SXM 80 GB, 2.039 TB/s or 40 GB, 1.555 TB/s,
  312 TFLOP/s; L40S 48 GB, 0.864 TB/s, 362 TFLOP/s.
- 256 concurrent requests and an unbounded queue are vLLM's defaults.
- Sleep takes 10.6 and 0.31 s, wake-up 2.2 and 6.5 s for levels 1 and 2, reported for an 8B model on an A100
  (vllm-project/vllm#48337).
- Pools: 20 ms to move 7,500 tokens in blocks of 16 over NVLink, reported by users of vLLM with LMCache.
- Assumptions: ``update_s``, ``weights_update_s``, and for LoRA 4 slots, 0.1 s to load, and no memory: at rank 16 an
  adapter for all layers of 8B takes 84 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from mockgpu.gpu.setup import Gpu, Model, Pools, Setup, SetupError

__all__ = ["GPUS", "MODELS", "Gpu", "Model", "Pools", "Setup", "SetupError", "setup_of"]

Entry = TypeVar("Entry")


def _llama_8b(name: str, weights_mb: int, load_s: float, decode_step_s: float) -> Model:
    return Model(name, weights_mb, load_s, 12_500.0, decode_step_s, 0.000_03, 131_072, 131_072)


def _llama_70b(name: str, weights_mb: int, load_s: float, prefill_tokens_per_s: float, decode_step_s: float) -> Model:
    return Model(name, weights_mb, load_s, prefill_tokens_per_s, decode_step_s, 0.001_7, 327_680, 131_072)


def _server(name: str, memory_mb: int, pools: Pools | None = None) -> Gpu:
    reserved_mb = memory_mb // 10
    return Gpu(name, memory_mb, 256, None, reserved_mb=reserved_mb, max_adapters=4, adapter_load_s=0.1, pools=pools)


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (
            _llama_8b("llama-8b", 16_000, 14.0, 0.0062),
            _llama_8b("llama-8b-fp8", 8_000, 12.0, 0.0046),
            _llama_8b("llama-8b-int4", 4_500, 11.1, 0.0032),
            _llama_70b("llama-70b", 141_000, 45.3, 3_050.0, 0.0547),
            _llama_70b("llama-70b-fp8", 71_000, 27.8, 6_100.0, 0.0275),
            _llama_70b("llama-70b-int4", 39_700, 19.9, 3_050.0, 0.0154),
            # Scaled down for tests: service times of milliseconds; ten ``tiny`` models fit a ``tiny`` GPU.
            Model("tiny", 100, 0.05, 100_000.0, 0.0005),
            Model("tiny-large", 400, 0.2, 25_000.0, 0.002),
            Model("tiny-free", 0, 0.0, 100_000.0, 0.0005),
            # With all features of a real model: two fit a ``tiny-full`` GPU, beside 500 KV blocks.
            Model("tiny-full", 100, 0.05, 100_000.0, 0.0005, 0.000_05, 100_000, 4_096),
        )
    }
)

GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            _server("h100-80gb", 80_000),
            _server("h200-141gb", 141_000),
            _server("a100-80gb", 80_000),
            _server("a100-40gb", 40_000),
            _server("l40s", 48_000),
            # One GPU for prefill and one for decode; the memory is that of the decode GPU.
            _server("h100-80gb-disaggregated", 80_000, Pools(1, 256, 0.0, 20e-3 / 7_500)),
            Gpu("tiny", 1_000, 4, 16, update_s=0.002),
            Gpu(
                "tiny-full",
                1_000,
                16,
                64,
                update_s=0.002,
                weights_update_s=0.02,
                kv_share=0.8,
                max_adapters=2,
                adapter_load_s=0.01,
                sleep_s=(0.05, 0.01),
                wake_s=(0.02, 0.05),
            ),
        )
    }
)

# Time relative to an H100: prefill by arithmetic rate, decode by memory bandwidth.
_TIME_FACTORS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "h200-141gb": (1.0, 3.35 / 4.8),
        "a100-80gb": (989 / 312, 3.35 / 2.039),
        "a100-40gb": (989 / 312, 3.35 / 1.555),
        "l40s": (989 / 362, 3.35 / 0.864),
    }
)


def setup_of(gpu_name: str, model_name: str, resident: int = 1) -> Setup:
    """A catalogue GPU that serves a catalogue model under any name.

    Memory holds ``resident`` such models and the KV cache takes the rest, unless the GPU sets its own ``kv_share`` or
    the model needs no KV cache. Raises SetupError for an unknown name, with the nearest valid ones.
    """
    gpu = _find("gpu", gpu_name, GPUS)
    model = _find("model", model_name, MODELS)
    prefill, decode = _TIME_FACTORS.get(gpu_name, (1.0, 1.0))
    if gpu.kv_share == 0 and model.kv_bytes_per_token > 0:
        left_mb = max(0, gpu.weights_mb - resident * model.weights_mb)
        gpu = replace(gpu, kv_share=left_mb / gpu.memory_mb)
    return Setup(
        gpu=gpu,
        default_model=replace(
            model,
            prefill_tokens_per_s=model.prefill_tokens_per_s / prefill,
            decode_step_s=model.decode_step_s * decode,
            decode_slope_s=model.decode_slope_s * decode,
        ),
    )


def _find(kind: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    try:
        return entries[name]
    except KeyError:
        from difflib import get_close_matches

        nearest = get_close_matches(name, entries, n=3, cutoff=0.4)
        if not nearest:
            raise SetupError(f"unknown {kind} {name!r}; there are: {', '.join(sorted(entries))}") from None
        *others, last = nearest
        named = f"{', '.join(others)} or {last}" if others else last
        raise SetupError(f"unknown {kind} {name!r}; did you mean {named}? `mockgpu models` lists all") from None
