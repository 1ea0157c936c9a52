"""SGLang's routes other than inference: server info, model info and load.

No answer contains the path of a model: a router that finds one may try to fetch a tokenizer from there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from mockgpu.api import metrics
from mockgpu.api.calls import ApiCall, ApiReply, json_reply
from mockgpu.server.run_state import SERVER_VERSION, Routes, RunState


async def server_info(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /server_info``: limits of the server."""
    gpu = run.setup.gpu
    return json_reply(
        {
            "served_model_name": run.setup.default_model.name,
            "version": SERVER_VERSION,
            "dp_size": 1,
            "tp_size": 1,
            "max_running_requests": gpu.max_running,
            "max_total_num_tokens": run.engine.state().kv_blocks_total * gpu.block_tokens,
            "page_size": gpu.block_tokens,
        }
    )


async def model_info(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /model_info``: the kind of model."""
    return json_reply({"is_generation": True, "model_type": "mock", "architectures": ["MockForCausalLM"]})


def _load_of(run: RunState) -> dict[str, Any]:
    state, block = run.reported_load(), run.setup.gpu.block_tokens
    return {
        "dp_rank": 0,
        "num_running_reqs": state.running,
        "num_waiting_reqs": state.queue_depth,
        "num_total_reqs": state.running + state.queue_depth,
        "num_used_tokens": state.kv_blocks_used * block,
        "max_total_num_tokens": state.kv_blocks_total * block,
        "token_usage": metrics.kv_use(state),
        "max_running_requests": run.setup.gpu.max_running,
    }


async def loads(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /loads``: load per data-parallel rank; there is one rank."""
    now = datetime.now(UTC).isoformat()
    return json_reply({"timestamp": now, "version": SERVER_VERSION, "dp_rank_count": 1, "loads": [_load_of(run)]})


async def load(run: RunState, call: ApiCall) -> ApiReply:
    """``GET /get_load``: load in the form of older SGLang releases."""
    current = _load_of(run)
    tokens = run.reported_load().pending_tokens
    rank = {"dp_rank": 0, "num_reqs": current["num_total_reqs"], "num_waiting_reqs": current["num_waiting_reqs"]}
    return json_reply([{**rank, "num_tokens": tokens}])


ROUTES: Routes = MappingProxyType(
    {
        "/server_info": {"GET": server_info},
        "/get_server_info": {"GET": server_info},
        "/model_info": {"GET": model_info},
        "/get_model_info": {"GET": model_info},
        "/loads": {"GET": loads},
        "/v1/loads": {"GET": loads},
        "/get_load": {"GET": load},
    }
)
