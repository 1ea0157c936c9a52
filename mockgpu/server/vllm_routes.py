"""vLLM's routes other than inference: version, tokenizer, LoRA adapters, sleep mode and prefix cache."""

from __future__ import annotations

from types import MappingProxyType

from xxhash import xxh32_intdigest

from mockgpu.api import wire
from mockgpu.api.calls import ApiCall, ApiReply, json_reply, text_of
from mockgpu.api.completions import conversation
from mockgpu.server.run_state import SERVER_VERSION, Routes, RunState

# Token numbers are below this, as in current vocabularies.
_VOCABULARY_SIZE = 128_000


async def version(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /version``: the mock's own version, not a release of vLLM."""
    return json_reply({"version": SERVER_VERSION})


async def tokenize(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /tokenize``: a number for each word of ``prompt`` or ``messages``; ``detokenize`` maps them back."""
    data = wire.read_json(call.body)
    prompt = data.get("prompt")
    text = conversation(data.get("messages"), "messages") if prompt is None else prompt
    if not isinstance(text, str):
        raise wire.BadRequestError(f"prompt is {wire.shown(text)}, expected text", "prompt")
    words = wire.clean(text).split()
    numbers = [xxh32_intdigest(word.encode()) % _VOCABULARY_SIZE for word in words]
    run.words.update(zip(numbers, words, strict=True))
    limit = run.setup.default_model.max_model_tokens
    return json_reply({"count": len(numbers), "max_model_len": limit, "tokens": numbers, "token_strs": None})


async def detokenize(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /detokenize``: the words of token numbers; the mock's word for numbers that ``tokenize`` did not give."""
    numbers = wire.read_json(call.body).get("tokens")
    if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
        raise wire.BadRequestError(
            f"tokens is {wire.shown(numbers)}, expected a list of whole numbers from 0", "tokens"
        )
    return json_reply({"prompt": " ".join(run.words.get(number, wire.WORD.strip()) for number in numbers)})


async def load_adapter(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /v1/load_lora_adapter``: serve adapter ``lora_name`` of ``base_model_name`` (or the default model)."""
    data = wire.read_json(call.body)
    name = text_of(data, "lora_name")
    base = text_of(data, "base_model_name") if data.get("base_model_name") else run.setup.default_model.name
    if name in run.adapters() or name in run.names():
        raise wire.BadRequestError(f"the name {wire.shown(name)} is taken, expected a new one", "lora_name")
    try:
        run.load_adapter(name, base)
    except ValueError as error:
        raise wire.BadRequestError(str(error), "lora_name") from None
    return ApiReply(f"Success: LoRA adapter '{name}' added successfully.".encode(), content_type="text/plain")


async def unload_adapter(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /v1/unload_lora_adapter``: stop serving an adapter."""
    name = text_of(wire.read_json(call.body), "lora_name")
    if name not in run.adapters():
        raise wire.BadRequestError(
            f"the adapter {wire.shown(name)} does not exist", "lora_name", status=404, code="model_not_found"
        )
    run.unload_adapter(name)
    return ApiReply(f"Success: LoRA adapter '{name}' removed successfully.".encode(), content_type="text/plain")


async def sleep(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /sleep``: sleep at ``level`` 1 or 2; answers when asleep, or when a later call supersedes this one."""
    level = call.query.get("level", "1")
    if level not in ("1", "2"):
        raise wire.BadRequestError(f"level is {wire.shown(level)}, expected 1 or 2", "level")
    run.sleep_calls = this_call = run.sleep_calls + 1
    run.engine.sleep(1 if level == "1" else 2)
    await run.engine.until(lambda: run.sleep_calls != this_call or run.engine.state().asleep_level == int(level))
    return ApiReply()


async def wake(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /wake_up``: answers when awake, or when a later call supersedes this one."""
    run.sleep_calls = this_call = run.sleep_calls + 1
    run.engine.wake()
    await run.engine.until(lambda: run.sleep_calls != this_call or run.engine.state().asleep_level == 0)
    return ApiReply()


async def is_sleeping(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /is_sleeping``: whether the server is asleep."""
    return json_reply({"is_sleeping": run.engine.state().asleep_level > 0})


async def reset_prefix_cache(run: RunState, call: ApiCall) -> ApiReply:
    """``POST /reset_prefix_cache``: drop all cached blocks."""
    for name in run.names():
        run.engine.invalidate(name)
    return ApiReply()


ROUTES: Routes = MappingProxyType(
    {
        "/version": {"GET": version},
        "/tokenize": {"POST": tokenize},
        "/detokenize": {"POST": detokenize},
        "/v1/load_lora_adapter": {"POST": load_adapter},
        "/v1/unload_lora_adapter": {"POST": unload_adapter},
        "/sleep": {"POST": sleep},
        "/wake_up": {"POST": wake},
        "/is_sleeping": {"GET": is_sleeping},
        "/reset_prefix_cache": {"POST": reset_prefix_cache},
    }
)
