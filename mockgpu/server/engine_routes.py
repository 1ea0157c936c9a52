"""What vLLM and SGLang offer beside inference, as far as routers and operators ask for it.

No answer names the path of a model: a router that finds one may try to fetch a tokenizer from there.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from xxhash import xxh32_intdigest

from mockgpu.api import metrics, wire
from mockgpu.api.calls import ApiCall, ApiReply, text_of
from mockgpu.api.completions import conversation
from mockgpu.server.run_state import RunState

# Numbers of tokens lie below this, as in the vocabularies of today.
_VOCABULARY = 128_000
_VERSION = "0.0.0+mockgpu"


def _json(data: object) -> ApiReply:
    return ApiReply(json.dumps(data).encode())


# -- health and metrics --------------------------------------------------------------------------------------


async def health(core: RunState, call: ApiCall) -> ApiReply:
    """Readiness, with the load in the body."""
    state = core.state()
    return ApiReply(wire.health(state), 200 if state.ready else 503)


async def ready(core: RunState, call: ApiCall) -> ApiReply:
    """Readiness without a body."""
    return ApiReply(status=200 if core.state().ready else 503)


async def alive(core: RunState, call: ApiCall) -> ApiReply:
    """A sign of life; only the fault ``not-alive`` takes it away."""
    return ApiReply()


async def metrics_page(core: RunState, call: ApiCall) -> ApiReply:
    """All metrics."""
    page = metrics.page(core.figures(progress=True), core.tally, core.setup, core.adapters_in_use(), time.time())
    return ApiReply(page, content_type="text/plain")


# -- models --------------------------------------------------------------------------------------------------


def _card(core: RunState, name: str, base: str | None = None) -> dict[str, Any]:
    spec = next((model for model in core.setup.models if model.name == (base or name)), core.setup.default_model)
    return {
        "id": name,
        "object": "model",
        "created": core.created,
        "owned_by": "mockgpu",
        "root": base or name,
        "parent": base,
        "max_model_len": spec.max_model_tokens,
    }


async def models(core: RunState, call: ApiCall) -> ApiReply:
    """The list of models, adapters after them."""
    cards = [_card(core, name) for name in core.names()]
    cards += [_card(core, name, base) for name, base in core.adapters().items()]
    return _json({"object": "list", "data": cards})


async def model(core: RunState, call: ApiCall) -> ApiReply:
    """One model."""
    name = call.path.removeprefix("/v1/models/")
    if not name or not core.knows(name):
        raise wire.BadRequestError(f"the model `{name}` does not exist", "model", status=404, code="model_not_found")
    return _json(_card(core, name, core.adapters().get(name)))


# -- what routers look for -----------------------------------------------------------------------------------


async def version(core: RunState, call: ApiCall) -> ApiReply:
    """A version, which stands for no release of any server."""
    return _json({"version": _VERSION})


async def server_info(core: RunState, call: ApiCall) -> ApiReply:
    """Limits of the server, as SGLang's names have them."""
    gpu = core.setup.gpu
    return _json(
        {
            "served_model_name": core.setup.default_model.name,
            "version": _VERSION,
            "dp_size": 1,
            "tp_size": 1,
            "max_running_requests": gpu.max_running,
            "max_total_num_tokens": core.engine.state().kv_blocks_total * gpu.block_tokens,
            "page_size": gpu.block_tokens,
        }
    )


async def model_info(core: RunState, call: ApiCall) -> ApiReply:
    """What kind of model it is."""
    return _json({"is_generation": True, "model_type": "mock", "architectures": ["MockForCausalLM"]})


def _load_of(core: RunState) -> dict[str, Any]:
    state, block = core.figures(), core.setup.gpu.block_tokens
    return {
        "dp_rank": 0,
        "num_running_reqs": state.running,
        "num_waiting_reqs": state.queue_depth,
        "num_total_reqs": state.running + state.queue_depth,
        "num_used_tokens": state.kv_blocks_used * block,
        "max_total_num_tokens": state.kv_blocks_total * block,
        "token_usage": metrics.kv_use(state),
        "max_running_requests": core.setup.gpu.max_running,
    }


async def loads(core: RunState, call: ApiCall) -> ApiReply:
    """Load by data-parallel rank, of which there is one; as SGLang has it."""
    now = datetime.now(UTC).isoformat()
    return _json({"timestamp": now, "version": _VERSION, "dp_rank_count": 1, "loads": [_load_of(core)]})


async def load(core: RunState, call: ApiCall) -> ApiReply:
    """Load as SGLang had it before."""
    seen = _load_of(core)
    tokens = core.figures().pending_tokens
    rank = {"dp_rank": 0, "num_reqs": seen["num_total_reqs"], "num_waiting_reqs": seen["num_waiting_reqs"]}
    return _json([{**rank, "num_tokens": tokens}])


# -- tokens --------------------------------------------------------------------------------------------------


async def tokenize(core: RunState, call: ApiCall) -> ApiReply:
    """A number for each word of ``prompt`` or of ``messages``; ``detokenize`` gives them back."""
    data = wire.read_json(call.body)
    prompt = data.get("prompt")
    text = conversation(data.get("messages"), "messages") if prompt is None else prompt
    if not isinstance(text, str):
        raise wire.BadRequestError(f"prompt is {wire.shown(text)}, expected text", "prompt")
    words = wire.clean(text).split()
    numbers = [xxh32_intdigest(word.encode()) % _VOCABULARY for word in words]
    core.words.update(zip(numbers, words, strict=True))
    limit = core.setup.default_model.max_model_tokens
    return _json({"count": len(numbers), "max_model_len": limit, "tokens": numbers, "token_strs": None})


async def detokenize(core: RunState, call: ApiCall) -> ApiReply:
    """The words of token numbers; a number that ``tokenize`` has not given out is the mock's own word."""
    numbers = wire.read_json(call.body).get("tokens")
    if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
        raise wire.BadRequestError(
            f"tokens is {wire.shown(numbers)}, expected a list of whole numbers from 0", "tokens"
        )
    return _json({"prompt": " ".join(core.words.get(number, wire.WORD.strip()) for number in numbers)})


# -- adapters, sleep, cache ----------------------------------------------------------------------------------


async def load_adapter(core: RunState, call: ApiCall) -> ApiReply:
    """Serve an adapter of ``base_model_name`` (else of the default model) under ``lora_name``."""
    data = wire.read_json(call.body)
    name = text_of(data, "lora_name")
    base = text_of(data, "base_model_name") if data.get("base_model_name") else core.setup.default_model.name
    if name in core.adapters() or name in core.names():
        raise wire.BadRequestError(f"the name {wire.shown(name)} is taken, expected a new one", "lora_name")
    try:
        core.load_adapter(name, base)
    except ValueError as error:
        raise wire.BadRequestError(str(error), "lora_name") from None
    return ApiReply(f"Success: LoRA adapter '{name}' added successfully.".encode(), content_type="text/plain")


async def unload_adapter(core: RunState, call: ApiCall) -> ApiReply:
    """Serve it no longer."""
    name = text_of(wire.read_json(call.body), "lora_name")
    if name not in core.adapters():
        raise wire.BadRequestError(
            f"the adapter {wire.shown(name)} is not there", "lora_name", status=404, code="model_not_found"
        )
    core.unload_adapter(name)
    return ApiReply(f"Success: LoRA adapter '{name}' removed successfully.".encode(), content_type="text/plain")


async def sleep(core: RunState, call: ApiCall) -> ApiReply:
    """Go to sleep at ``level`` 1 or 2; answers when it is so, or when told otherwise meanwhile."""
    level = call.query.get("level", "1")
    if level not in ("1", "2"):
        raise wire.BadRequestError(f"level is {wire.shown(level)}, expected 1 or 2", "level")
    core.naps = nap = core.naps + 1
    core.engine.sleep(1 if level == "1" else 2)
    await core.engine.until(lambda: core.naps != nap or core.engine.state().asleep_level == int(level))
    return ApiReply()


async def wake(core: RunState, call: ApiCall) -> ApiReply:
    """Wake up; answers when it is so, or when told otherwise meanwhile."""
    core.naps = nap = core.naps + 1
    core.engine.wake()
    await core.engine.until(lambda: core.naps != nap or core.engine.state().asleep_level == 0)
    return ApiReply()


async def is_sleeping(core: RunState, call: ApiCall) -> ApiReply:
    """Whether it sleeps."""
    return _json({"is_sleeping": core.engine.state().asleep_level > 0})


async def reset_prefix_cache(core: RunState, call: ApiCall) -> ApiReply:
    """Forget all cached blocks."""
    for name in core.names():
        core.engine.invalidate(name)
    return ApiReply()
