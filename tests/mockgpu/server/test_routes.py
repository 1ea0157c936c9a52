import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mockgpu.api.tensors import HEADER_LENGTH, packed_text
from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.server.attempt_log import RowKind, RowOutcome
from mockgpu.server.run_state import Options

STEP_S = 0.002
SETUP = Setup(
    Gpu("box", 1_000, 4, None, update_s=0.005),
    Model("any", 0, 0.0, 10_000.0, STEP_S),
    (Model("large", 600, 0.03, 10_000.0, STEP_S), Model("whale", 5_000, 1.0, 10_000.0, STEP_S)),
)
ADAPTERS = Setup(
    Gpu(
        "box",
        1_000,
        4,
        None,
        max_adapters=1,
        adapter_mb=10,
        adapter_load_s=0.01,
        sleep_s=(0.01, 0.01),
        wake_s=(0.01, 0.01),
    ),
    Model("base", 0, 0.0, 10_000.0, STEP_S),
    (Model("slow", 0, 0.0, 10_000.0, 30.0),),
)
CACHED = Setup(
    Gpu("box", 1_000, 4, None, kv_share=0.5),
    Model("any", 0, 0.0, 10_000.0, STEP_S, kv_bytes_per_token=1_000),
)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 3}


def infer(text: str = "one two three", **fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [text]}]} | fields


def test_chats_embeddings_and_responses_are_inference(serve: Any) -> None:
    async def test(it: Any) -> None:
        status, chat = await it.post("/v1/chat/completions", **CHAT)
        assert (status, chat["usage"]["total_tokens"]) == (200, 6)
        status, embedded = await it.post("/v1/embeddings", model="e", input=["a b", "c"], dimensions=4)
        assert (status, len(embedded["data"][1]["embedding"])) == (200, 4)
        status, response = await it.post("/v1/responses", model="r", input="a b", max_output_tokens=2)
        assert (status, response["usage"]["output_tokens"]) == (200, 2)
        rows = it.rows()
        assert {row.kind for row in rows} == {RowKind.INFERENCE}
        assert [(row.model, row.prompt_tokens, row.tokens_out) for row in rows] == [
            ("m", 3, 3),
            ("e", 3, 0),
            ("r", 2, 2),
        ]
        # An embedding takes only its prefill time.
        assert rows[1].service_asked_s == pytest.approx(3 / 10_000)
        assert [row.batch for row in rows] == [1, 1, 1]

    serve(test, SETUP)


def test_a_streamed_chat_and_response(serve: Any) -> None:
    async def test(it: Any) -> None:
        for path, body in (
            ("/v1/chat/completions", CHAT | {"stream": True}),
            ("/v1/responses", {"input": "a", "max_output_tokens": 3, "stream": True}),
        ):
            async with it.session.post(it.url(path), json=body) as answer:
                assert answer.content_type == "text/event-stream"
                text = await answer.text()
            assert text.count(" the") >= 3
        await it.until(lambda: all(row.outcome is RowOutcome.ANSWERED for row in it.rows()))
        assert [row.tokens_out for row in it.rows()] == [3, 3]

    serve(test, SETUP)


def test_models_are_listed_and_shown(serve: Any) -> None:
    async def test(it: Any) -> None:
        _, listed = await it.get("/v1/models")
        assert [card["id"] for card in listed["data"]] == ["any", "large", "whale"]
        assert (await it.get("/v1/models/large"))[1]["id"] == "large"
        assert (await it.get("/v1/models/org/other"))[1]["id"] == "org/other"

    serve(test, SETUP)


def test_a_strict_backend_knows_its_own_models_only(serve: Any) -> None:
    async def test(it: Any) -> None:
        for path in ("/v1/completions", "/v1/chat/completions"):
            status, body = await it.post(path, **CHAT | {"model": "gpt-9"})
            assert status == 404
            assert body["error"]["code"] == "model_not_found"
            assert body["error"]["param"] == "model"
        assert (await it.get("/v1/models/gpt-9"))[0] == 404
        assert (await it.post("/v1/completions", model="any", max_tokens=1))[0] == 200
        assert (await it.post("/v1/completions", max_tokens=1))[0] == 200
        status, body = await it.post("/v2/models/gpt-9/infer", **infer())
        assert (status, list(body)) == (404, ["error"])
        for method, path in (("get", "/v2/models/gpt-9"), ("post", "/v2/repository/models/gpt-9/load")):
            status, body = await getattr(it, method)(path)
            assert status == 404
            assert isinstance(body["error"], str)

    serve(test, SETUP, options=Options(strict_models=True))


def test_kserve_health_metadata_and_config(serve: Any) -> None:
    async def test(it: Any) -> None:
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert await it.get(path) == (200, None)
        assert (await it.get("/v2"))[1]["name"] == "gpu-3"
        assert (await it.get("/v2/models/large/versions/1"))[1]["versions"] == ["1"]
        assert (await it.get("/v2/models/large/config"))[1]["parameters"]["max_running"]["string_value"] == "4"
        assert (await it.get("/v2/models/large/versions/7"))[0] == 404
        assert (await it.get("/v2/models/any/ready"))[0] == 200
        assert (await it.get("/v2/models/large/ready"))[0] == 400
        status, body = await it.get("/v2/nowhere")
        assert (status, list(body)) == (404, ["error"])
        status, body = await it.get("/v2/repository/index")
        assert (status, isinstance(body["error"], str)) == (405, True)

    serve(test, SETUP)


def test_kserve_inference_in_json_and_binary(serve: Any) -> None:
    async def test(it: Any) -> None:
        status, body = await it.post("/v2/models/any/infer", **infer(parameters={"max_tokens": 2}))
        assert (status, body["outputs"][0]["data"]) == (200, [" the the"])
        raw = packed_text("one two")
        text = {"name": "t", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
        fields = {"inputs": [text], "parameters": {"binary_data_output": True, "max_tokens": 2}}
        head = json.dumps(fields).encode()
        url = it.url("/v2/models/any/versions/1/infer")
        async with it.session.post(url, data=head + raw, headers={HEADER_LENGTH: str(len(head))}) as answer:
            body = await answer.read()
            assert body[int(answer.headers[HEADER_LENGTH]) :] == packed_text(" the the")
        status, body = await it.post("/v2/models/any/infer", inputs=[])
        assert (status, isinstance(body["error"], str)) == (400, True)
        status, body = await it.post("/v2/models/whale/infer", **infer())
        assert (status, body["error"][:32]) == (400, "load failed for model 'whale': v")
        _, stats = await it.get("/v2/models/any/stats")
        assert stats["model_stats"][0]["inference_stats"]["success"]["count"] == 2
        rows = [row for row in it.rows() if row.kind is RowKind.INFERENCE]
        assert [row.model for row in rows] == ["any", "any", "", "whale"]
        assert rows[3].outcome is RowOutcome.REFUSED

    serve(test, SETUP)


@pytest.mark.parametrize("path", ["/infer", "infer", "/versions/1/infer", "any/versions/2/infer"])
def test_an_inference_without_a_model_is_not_found(serve: Any, path: str) -> None:
    async def test(it: Any) -> None:
        status, body = await it.post(f"/v2/models/{path}", **infer())
        assert status == 404 and body["error"].startswith("Request for unknown model")
        assert [row.status for row in it.rows()] == [404]
        assert (await it.get("/v2/models//ready"))[0] == 404

    serve(test, SETUP)


def test_the_repository_loads_and_unloads(serve: Any) -> None:
    async def test(it: Any) -> None:
        async def states() -> dict[str, str]:
            _, entries = await it.post("/v2/repository/index")
            return {entry["name"]: entry["state"] for entry in entries}

        assert await states() == {"any": "READY", "large": "UNAVAILABLE", "whale": "UNAVAILABLE"}
        loading = asyncio.create_task(it.post("/v2/repository/models/large/load"))
        while (await states())["large"] != "LOADING":
            assert not loading.done()
        assert (await loading)[0] == 200
        assert (await states())["large"] == "READY"
        assert (await it.get("/v2/models/large/ready"))[0] == 200
        assert [entry["name"] for entry in (await it.post("/v2/repository/index", ready=True))[1]] == ["any", "large"]

        status, body = await it.post("/v2/repository/models/whale/load")
        assert status == 400
        assert body["error"].startswith("load failed for model 'whale': version 1 is at UNAVAILABLE state: ")

        assert (await it.post("/v2/repository/models/large/unload", parameters={"unload_dependents": False}))[0] == 200
        assert (await states())["large"] == "UNAVAILABLE"
        status, body = await it.post("/v2/models/large/infer", **infer())
        assert (status, list(body)) == (404, ["error"])
        kinds = [row.kind for row in it.rows() if row.kind not in (RowKind.HEALTH_CHECK, RowKind.INFERENCE)]
        assert kinds == [RowKind.RESIDENCY_LOADING, RowKind.RESIDENCY_LOADED, RowKind.RESIDENCY_EVICTED]

    serve(test, SETUP)


def test_prefix_hits_show_in_usage_log_and_metrics(serve: Any) -> None:
    async def test(it: Any) -> None:
        prompt = " ".join(f"w{number}" for number in range(64))
        for suffix, cached in (("#sy-0000000000001", 0), ("#sy-0000000000002", 64)):
            _, body = await it.post("/v1/completions", prompt=f"{prompt} {suffix}", max_tokens=2)
            assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert [row.cached_tokens for row in it.rows()] == [0, 64]
        async with it.session.get(it.url("/metrics")) as answer:
            families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
        assert families["vllm:prefix_cache_hits"].samples[0].value == 64
        assert families["vllm:generation_tokens"].samples[0].value == 4
        assert (await it.post("/reset_prefix_cache"))[0] == 200
        _, body = await it.post("/v1/completions", prompt=f"{prompt} again", max_tokens=2)
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

    serve(test, CACHED)


def test_adapters_come_and_go(serve: Any) -> None:
    async def test(it: Any) -> None:
        assert (await it.post("/v1/load_lora_adapter", lora_name="sql", lora_path="/x"))[0] == 200
        _, listed = await it.get("/v1/models")
        assert [(card["id"], card["parent"]) for card in listed["data"]] == [
            ("base", None),
            ("slow", None),
            ("sql", "base"),
        ]
        status, body = await it.post("/v1/completions", model="sql", max_tokens=1)
        assert (status, body["model"]) == (200, "sql")
        assert [row.model for row in it.rows() if row.kind is RowKind.INFERENCE] == ["sql"]
        for fields in ({"lora_name": "sql"}, {"lora_name": "base"}, {"lora_name": ""}, {}):
            assert (await it.post("/v1/load_lora_adapter", **fields))[0] == 400
        assert (await it.post("/v1/unload_lora_adapter", lora_name="sql"))[0] == 200
        assert (await it.post("/v1/unload_lora_adapter", lora_name="sql"))[0] == 404
        status, body = await it.post("/v1/completions", model="sql", max_tokens=1)
        assert (status, body["error"]["code"]) == (404, "model_not_found")

    serve(test, ADAPTERS)


def test_an_adapter_finds_nothing_of_its_base_in_the_cache(serve: Any) -> None:
    async def test(it: Any) -> None:
        assert (await it.post("/v1/load_lora_adapter", lora_name="sql"))[0] == 200
        found = []
        for model in ("base", "sql", "sql", "base"):
            _, body = await it.post("/v1/completions", model=model, prompt="w " * 64, max_tokens=1)
            found.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert found == [0, 0, 48, 48]

    cached = replace(ADAPTERS.default_model, kv_bytes_per_token=1_000)
    serve(test, replace(ADAPTERS, gpu=replace(ADAPTERS.gpu, kv_share=0.2), default_model=cached, models=()))


def test_adapters_in_use_show_in_the_metrics(serve: Any) -> None:
    async def test(it: Any) -> None:
        await it.post("/v1/load_lora_adapter", lora_name="sql", base_model_name="slow")
        stuck = asyncio.create_task(it.post("/v1/completions", model="sql", max_tokens=5))
        await it.until_running(1)

        async def page() -> str:
            async with it.session.get(it.url("/metrics")) as answer:
                text: str = await answer.text()
                return text

        assert 'running_lora_adapters="sql",waiting_lora_adapters=""' in await page()
        stuck.cancel()
        await it.until_running(0)
        assert 'running_lora_adapters="",waiting_lora_adapters=""' in await page()
        assert 'vllm:request_success_total{model_name="slow",engine="0",finished_reason="abort"} 1' in await page()

    serve(test, ADAPTERS)


def test_no_adapters_without_slots(serve: Any) -> None:
    async def test(it: Any) -> None:
        status, body = await it.post("/v1/load_lora_adapter", lora_name="sql")
        assert (status, body["error"]["param"]) == (400, "lora_name")

    serve(test, SETUP)


def test_sleep_and_wake(serve: Any) -> None:
    async def test(it: Any) -> None:
        assert (await it.get("/is_sleeping"))[1] == {"is_sleeping": False}
        assert (await it.post("/sleep?level=2"))[0] == 200
        assert (await it.get("/is_sleeping"))[1] == {"is_sleeping": True}
        waiting = asyncio.create_task(it.post("/v1/completions", max_tokens=1))
        while (await it.health())["queue_depth"] != 1:
            assert not waiting.done()
        assert (await it.post("/wake_up"))[0] == 200
        assert (await waiting)[0] == 200
        assert (await it.post("/sleep?level=3"))[0] == 400

    serve(test, ADAPTERS)


def test_what_routers_look_for_names_no_path(serve: Any) -> None:
    async def test(it: Any) -> None:
        for path in ("/version", "/server_info", "/get_server_info", "/model_info", "/get_model_info"):
            status, body = await it.get(path)
            assert status == 200
            assert not [key for key in body if "path" in key]
        assert await it.get("/ping") == (200, None)
        assert (await it.post("/ping"))[0] == 200
        assert {row.kind for row in it.rows()} == {RowKind.HEALTH_CHECK}

    serve(test, SETUP)


def test_loads_say_how_busy_it_is(serve: Any) -> None:
    async def test(it: Any) -> None:
        stuck = asyncio.create_task(it.post("/v1/completions", model="slow", prompt="a b", max_tokens=5))
        await it.until_running(1)
        for path in ("/loads", "/v1/loads"):
            (rank,) = (await it.get(path))[1]["loads"]
            assert (rank["num_running_reqs"], rank["num_waiting_reqs"], rank["num_total_reqs"]) == (1, 0, 1)
        assert (await it.get("/get_load"))[1] == [{"dp_rank": 0, "num_reqs": 1, "num_waiting_reqs": 0, "num_tokens": 7}]
        stuck.cancel()

    serve(test, ADAPTERS)


def test_tokens_go_both_ways(serve: Any) -> None:
    async def test(it: Any) -> None:
        _, body = await it.post("/tokenize", prompt="one two one")
        assert (body["count"], body["tokens"][0]) == (3, body["tokens"][2])
        assert (await it.post("/detokenize", tokens=[*body["tokens"], 127_999]))[1] == {"prompt": "one two one the"}
        assert (await it.post("/tokenize", messages=[{"role": "user", "content": "hi"}]))[1]["count"] == 2
        for path, fields in (
            ("/tokenize", {}),
            ("/tokenize", {"prompt": 5}),
            ("/detokenize", {"tokens": ["a"]}),
            ("/detokenize", {"tokens": [-1]}),
        ):
            status, body = await it.post(path, **fields)
            assert (status, set(body["error"])) == (400, {"message", "type", "param", "code"})

    serve(test, SETUP)


def test_a_slash_at_the_end_does_not_matter_and_another_method_does(serve: Any) -> None:
    async def test(it: Any) -> None:
        assert (await it.get("/health/"))[0] == 200
        for method, path, allowed in (
            ("POST", "/metrics", "GET, HEAD"),
            ("GET", "/sleep", "POST"),
            ("DELETE", "/v1/models", "GET, HEAD"),
            ("DELETE", "/ping", "GET, POST, HEAD"),
            ("PUT", "/v1/completions", "POST"),
            ("GET", "/v1/chat/completions", "POST"),
            ("GET", "/v1/updates", "POST"),
            ("GET", "/v2/models/any/infer", "POST"),
            ("POST", "/v2/models/any", "GET, HEAD"),
        ):
            async with it.session.request(method, it.url(path)) as answer:
                assert (answer.status, answer.headers.get("Allow")) == (405, allowed), path
                assert "expected" in str((await answer.json())["error"])
        async with it.session.head(it.url("/metrics")) as answer:
            assert (answer.status, await answer.read()) == (200, b"")

    serve(test, SETUP)


def test_models_can_be_pinned_and_evicted(serve: Any) -> None:
    async def test(it: Any) -> None:
        await it.post("/v1/completions", model="large", max_tokens=1)
        assert (await it.post("/mock/pin", model="large"))[0] == 200
        await it.post("/mock/evict")
        assert (await it.health())["models"] == ["large"]
        await it.post("/mock/pin", model="large", pinned=False)
        await it.post("/mock/evict")
        assert (await it.health())["models"] == []
        assert (await it.post("/mock/pin"))[0] == 400

    serve(test, SETUP)
