"""Ollama's API over a fake engine: with the official client, and by the bytes on the wire."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import gguf
import httpx
import ollama
import pytest
from server_fakes import CONTEXT, MODEL, FakeClient, Served, serve_fake, with_key

from headrace import __version__
from headrace.checkpoints.gguf_header import map_gguf
from headrace.client.api import ModelInfo
from headrace.config import Config
from headrace.errors import InvalidRequest, Overloaded
from headrace.server import model_files, ollama_models

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
HI = [{"role": "user", "content": "Hi"}]


def thinking() -> Config:
    base = Config()
    return base.model_copy(update={"server": base.server.model_copy(update={"reasoning_format": "think"})})


def client(served: Served) -> ollama.AsyncClient:
    transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    return ollama.AsyncClient("http://server", transport=transport)


def chat(served: Served, **body: Any) -> httpx.Response:
    return asyncio.run(served.post("/api/chat", **{"model": MODEL, "messages": HI, **body}))


def generate(served: Served, **body: Any) -> httpx.Response:
    return asyncio.run(served.post("/api/generate", **{"model": MODEL, "prompt": "Hi", **body}))


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def folded(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The complete answer that a stream adds up to."""
    assert [line["done"] for line in stream] == [False] * (len(stream) - 1) + [True]
    last = stream[-1]
    for line in reversed(stream[:-1]):
        here, there = (line.get("message") or line), (last.get("message") or last)
        for key in ("content", "response", "thinking"):
            if key in here:
                there[key] = here[key] + there.get(key, "")
        for key, where in (("tool_calls", there), ("logprobs", last)):
            found = (here if key == "tool_calls" else line).get(key)
            if found:
                where[key] = found + where.get(key, [])
    return last


def alike(ask: Any, served: Served, **body: Any) -> dict[str, Any]:
    whole, stream = ask(served, stream=False, **body).json(), folded(lines(ask(served, **body)))
    for answer in (whole, stream):
        assert answer.pop("created_at").endswith("Z")
        for key in ("total_duration", "prompt_eval_duration", "eval_duration"):
            assert answer.pop(key) >= 0
    assert whole == stream
    return whole


def test_a_chat() -> None:
    assert alike(chat, serve_fake(reply="Hello")) == {
        "model": MODEL,
        "message": {"role": "assistant", "content": "Hello"},
        "done": True,
        "done_reason": "stop",
        "load_duration": 0,
        "prompt_eval_count": 3,
        "eval_count": 5,
    }
    first = lines(chat(serve_fake(reply="Hey")))[0]
    assert {**first, "created_at": ""} == {
        "model": MODEL,
        "created_at": "",
        "message": {"role": "assistant", "content": "H"},
        "done": False,
    }


def test_a_prompt() -> None:
    whole = alike(generate, serve_fake(reply="Hello"), system="Be brief.")
    assert (whole["response"], whole["done_reason"], whole["context"]) == ("Hello", "stop", [])
    assert "message" not in whole
    served = serve_fake()
    generate(served, system="Be brief.")
    assert [message["role"] for message in served.tokenizer.rendered[0]["messages"]] == ["system", "user"]


def test_a_raw_prompt_has_no_template() -> None:
    served = serve_fake(reply=f"<think>{CALL}")
    assert alike(generate, served, raw=True, prompt="a")["response"] == f"<think>{CALL}"
    assert not served.tokenizer.rendered
    assert bytes(served.engine.requests[0].prompt[1:]) == b"a"


def test_thinking_and_calls() -> None:
    whole = alike(chat, serve_fake(thinking(), reply=f"<think>Hm.</think>Yes.{CALL}"), tools=[TOOL])
    assert whole["message"] == {
        "role": "assistant",
        "content": "Yes.",
        "thinking": "Hm.",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    }
    assert whole["done_reason"] == "stop"
    assert alike(generate, serve_fake(thinking(), reply="<think>Hm.</think>Yes."))["thinking"] == "Hm."


def test_logprobs() -> None:
    whole = alike(chat, serve_fake(reply="Hey"), logprobs=True, top_logprobs=2)
    assert [entry["token"] for entry in whole["logprobs"]] == ["H", "e", "y"]
    assert len(whole["logprobs"][0]["top_logprobs"]) == 2
    assert "logprobs" not in alike(chat, serve_fake())


def test_the_official_client() -> None:
    async def talk() -> None:
        served = serve_fake(thinking(), reply=f"<think>Hm.</think>Yes.{CALL}")
        api = client(served)
        whole = await api.chat(MODEL, messages=HI, tools=[TOOL], think=True, keep_alive="5m")
        parts = [part async for part in await api.chat(MODEL, messages=HI, tools=[TOOL], stream=True)]
        assert "".join(part.message.content or "" for part in parts) == whole.message.content == "Yes."
        assert "".join(part.message.thinking or "" for part in parts) == whole.message.thinking == "Hm."
        (call,) = [call for part in parts for call in part.message.tool_calls or ()]
        assert call == whole.message.tool_calls[0]
        assert parts[-1].eval_count == whole.eval_count
        # The turn after: what the client received goes back.
        turns = [*HI, whole.message, {"role": "tool", "content": "7", "tool_name": "f"}]
        await api.chat(MODEL, messages=turns, tools=[TOOL])
        _, spoken, result = served.tokenizer.rendered[-1]["messages"]
        assert spoken["reasoning_content"] == "Hm."
        assert spoken["tool_calls"][0]["id"] == result["tool_call_id"] == "call00000"
        assert spoken["tool_calls"][0]["function"]["arguments"] == {"a": 1}
        made = [part.response async for part in await api.generate(MODEL, "Hi", stream=True)]
        assert "".join(made).startswith("Yes.")
        (listed,) = (await api.list()).models
        assert listed.model == f"{MODEL}:latest"
        (running,) = (await api.ps()).models
        assert running.context_length == CONTEXT
        described = await api.show(f"{MODEL}:latest")
        assert described.capabilities == ["completion", "tools", "thinking"]
        assert described.modelinfo["unknown.context_length"] == CONTEXT
        assert (await api.pull(MODEL)).status == "success"
        assert [part.status async for part in await api.pull(MODEL, stream=True)] == ["success"]
        with pytest.raises(ollama.ResponseError, match="does not exist") as told:
            await api.chat("other", messages=HI)
        assert told.value.status_code == 404

    asyncio.run(talk())


def test_options_reach_the_engine() -> None:
    served = serve_fake()
    options = {"temperature": 0.25, "top_k": 5, "seed": 3, "stop": ["x"], "num_predict": 4, "repeat_penalty": 1.25}
    assert chat(served, options={**options, "num_gpu": 9, "mirostat": 0}, headrace={"priority": 2}).status_code == 200
    request = served.engine.requests[-1]
    params = request.params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.25, 5, 0.9, 3)
    assert (params.stop, params.max_tokens, params.repetition_penalty, request.priority) == (("x",), 4, 1.25, 2)
    chat(served)
    params = served.engine.requests[-1].params
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (0.8, 40, 0.9, 1.0)
    chat(served, options={"num_predict": -1, "seed": -1, "repeat_penalty": 2, "repeat_last_n": 0, "stop": None})
    params = served.engine.requests[-1].params
    assert (params.max_tokens, params.seed, params.repetition_penalty) == (CONTEXT - 3, None, 1.0)
    assert alike(chat, served, options={"num_predict": 2})["done_reason"] == "length"


def test_what_is_ignored_is_reported() -> None:
    response = chat(serve_fake(), options={"num_ctx": 9999, "new": 1, "repeat_last_n": 64}, brand_new=1)
    assert response.headers["x-headrace-ignored"].split(", ") == [
        "brand_new",
        "options.new",
        "options.num_ctx",
        "options.repeat_last_n",
    ]


def test_formats_and_thinking() -> None:
    served = serve_fake()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    chat(served, format=schema)
    chat(served, format="json")
    generate(served, format="")
    kinds = [request.constraint and request.constraint.kind for request in served.engine.requests]
    assert kinds == ["json_schema", "json_object", None]
    chat(served, think=False)
    chat(served, think="low")
    off, low = (rendered["kwargs"] for rendered in served.tokenizer.rendered[-2:])
    assert off == {"enable_thinking": False, "thinking": False}
    assert low == {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}


def test_a_request_without_a_prompt_loads_the_model() -> None:
    served = serve_fake()
    (loaded,) = lines(generate(served, prompt=""))
    assert (loaded["response"], loaded["done"], loaded["done_reason"]) == ("", True, "load")
    unloaded = chat(served, messages=[], keep_alive=0, stream=False).json()
    assert (unloaded["message"]["content"], unloaded["done_reason"]) == ("", "unload")
    assert chat(served, messages=[], model="other").status_code == 404
    assert not served.engine.requests


def fault(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    text: str = body["error"]
    return text


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"options": {"temperature": 9}}, "`options.temperature`"),
        ({"options": {"num_predict": 1.5}}, "`options.num_predict`"),
        ({"options": {"mirostat": 2}}, "`options.mirostat`"),
        ({"options": {"stop": [""]}}, "`options.stop[0]`"),
        ({"format": "xml"}, "`format`"),
        ({"think": "much"}, "`think`"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "`messages[0].role`"),
        ({"tool": []}, "did you mean `tools`"),
        ({"tools": [{"type": "function", "function": {}}]}, "`tools[0].function.name`"),
        ({"headrace": {"stop": "x"}}, "`headrace.stop`"),
        ({"headrace": {"seed": "x"}}, "`headrace.seed`"),
        ({"headrace": {"speculation": 1}}, "`headrace.speculation`"),
    ],
)
def test_faults_name_the_field_as_it_was_written(body: dict[str, Any], named: str) -> None:
    assert named in fault(chat(serve_fake(), **body), 400)


@pytest.mark.parametrize("body", [{"suffix": "x"}, {"template": "x"}, {"context": [1]}])
def test_what_a_prompt_may_not_have(body: dict[str, Any]) -> None:
    assert f"`{next(iter(body))}`" in fault(generate(serve_fake(), **body), 400)


def test_errors_have_ollamas_form() -> None:
    assert fault(chat(serve_fake(with_key("k"))), 401)
    assert fault(asyncio.run(serve_fake().http.get("/api/nothing")), 404)
    assert fault(asyncio.run(serve_fake().http.get("/api/chat")), 405)
    assert fault(asyncio.run(serve_fake().post("/api/show")), 400)
    busy = chat(serve_fake(refuse=Overloaded("full", 2.0)))
    assert (fault(busy, 503), busy.headers["retry-after-ms"]) == ("full", "2000")
    path = "response_format.json_schema.schema"
    assert fault(chat(serve_fake(refuse=InvalidRequest(f"`{path}`: no", path))), 400) == "`format`: no"
    assert "context length is 100" in fault(generate(serve_fake(), prompt="x" * 200), 400)
    last = lines(chat(serve_fake(fail_after=2)))[-1]
    assert last == {"error": "the engine died"}


def test_the_version_and_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(serve_fake().http.get("/api/version")).json() == {"version": __version__}
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    info = ModelInfo("mine", str(tmp_path), CONTEXT, 300, "fake", "float32", 123)
    monkeypatch.setattr(FakeClient, "info", property(lambda _: info))
    (model,) = asyncio.run(serve_fake().http.get("/api/tags")).json()["models"]
    assert (model["name"], model["size"], model["modified_at"]) == ("mine:latest", 10, "1970-01-01T00:02:03Z")
    assert model["details"]["family"] == "llama"
    assert (model["details"]["format"], len(model["digest"])) == ("safetensors", 64)
    (tmp_path / "config.json").write_text("[]")
    (model,) = asyncio.run(serve_fake().http.get("/api/tags")).json()["models"]
    assert model["details"]["family"] == "unknown"


def test_a_files_header_is_read_once_for_a_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.add_context_length(777)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    looks: list[Path] = []

    def counting(path: Path) -> tuple[Any, Any]:
        looks.append(path)
        return map_gguf(path)

    monkeypatch.setattr(model_files, "map_gguf", counting)
    info = ModelInfo("mine", str(tmp_path), CONTEXT, 300, "fake", "float32", 123)
    monkeypatch.setattr(FakeClient, "info", property(lambda _: info))
    shown = asyncio.run(serve_fake().post("/api/show", model="mine")).json()
    assert (shown["model_info"]["qwen2.vocab_size"], shown["model_info"]["qwen2.context_length"]) == (300, CONTEXT)
    assert looks == [tmp_path / "m.gguf"]
    assert ollama_models.show_files("mine", str(tmp_path), 0).model_info["qwen2.context_length"] == 777
    assert len(looks) == 2
