"""The routes of a server with several models: lists, health, metrics, Ollama's, and those that control it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from pool_fakes import FakeEngines, PoolServer, plan, pool_server, until

from headrace import lang as hl
from headrace.errors import CheckpointError
from headrace.server.server_route import ServerRoute


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 300))  # type: ignore[arg-type]


async def get(server: PoolServer, path: str, **query: str) -> Any:
    answer = await server.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_list_of_models() -> None:
    async def work() -> None:
        async with pool_server(plan("a", ("x",)), plan("b")) as server:
            before = await get(server, "/v1/models")
            assert [card["id"] for card in before["data"]] == ["a", "b"]
            assert (before["first_id"], before["last_id"], before["has_more"]) == ("a", "b", False)
            first, second = before["data"]
            assert (first["aliases"], first["state"]) == (["x"], "unloaded")
            assert "aliases" not in second
            assert "max_model_len" not in first
            await server.text("b")
            second = (await get(server, "/v1/models"))["data"][1]
            assert (second["state"], second["max_model_len"], second["type"]) == ("loaded", 100, "model")
            assert await get(server, "/v1/models/b") == second

    run(work)


def test_unknown_models_in_anthropics_form() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            answer = await server.http.get("/v1/models/c", headers={"anthropic-version": "2026-10-21"})
            assert answer.status_code == 404
            assert answer.json()["error"]["type"] == "not_found_error"
            body = {"model": "c", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
            answer = await server.http.post("/v1/messages", json=body)
            assert answer.status_code == 404
            assert "'a', 'b'" in answer.json()["error"]["message"]

    run(work)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "Hi"}], "stream": False}),
        ("/api/generate", {"prompt": "Hi", "stream": False}),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [72]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
def test_every_route_with_a_model_goes_to_that_model(path: str, body: dict[str, Any]) -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b", ("other",))) as server:
            for name in ("b", "other"):
                answer = await server.http.post(path, json={"model": name, **body})
                assert answer.status_code == 200, answer.text
                assert "a" not in server.engines.engines
            assert server.pool.models["b"].users == 0
            missing = await server.http.post(path, json={"model": "none", **body})
            assert missing.status_code == 404

    run(work)


def test_streams_hold_their_model() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            answer = await server.complete("b", stream=True)
            assert answer.text.endswith("data: [DONE]\n\n")
            assert server.pool.models["b"].users == 0

    run(work)


def test_routes_without_a_body_take_the_model_from_the_query() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            assert (await get(server, "/tokenizer_info", model="b"))["model_max_length"] == 100
            assert server.engines.opened == ["b"]
            assert (await get(server, "/v1/engine/state", model="b"))["model"]["id"] == "b"
            assert (await get(server, "/v1/engine/state"))["model"]["id"] == "b"
            answer = await server.http.get("/v1/engine/state", params={"model": "a"})
            assert answer.status_code == 409
            assert "'a' is not loaded: a completion that names it loads it" in answer.json()["error"]["message"]
            assert server.engines.opened == ["b"]

    run(work)


def test_health() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            assert await get(server, "/health") == {"status": "ok", "models": {"a": "unloaded", "b": "unloaded"}}
            await server.text("a")
            await server.text("b")
            server.engines.engines["a"].dead = True
            health = await get(server, "/health")
            assert (health["status"], health["models"]["b"]) == ("degraded", "loaded")
            assert health["models"]["a"] == "the engine does not answer"
            assert (await server.http.get("/health", params={"model": "a"})).status_code == 503
            assert (await server.http.get("/health", params={"model": "b"})).status_code == 200
            server.engines.engines["b"].dead = True
            answer = await server.http.get("/health")
            assert answer.status_code == 503
            assert "no model works" in answer.json()["error"]["message"]

    run(work)


def test_metrics_have_a_label_for_the_model() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            for _ in range(2):
                await server.text("b")
            await server.complete("none")
            lines = (await server.http.get("/metrics")).text.splitlines()
            for line in (
                'headrace_generation_tokens_total{model="a"} 0.0',
                'headrace_generation_tokens_total{model="b"} 2.0',
                'headrace_requests_running{model="b"} 2.0',
                'headrace_engine_up{model="a"} 0.0',
                'headrace_engine_up{model="b"} 1.0',
                'headrace_kv_blocks{model="b",state="free"} 10.0',
                'headrace_model_loaded{model="b"} 1.0',
                'headrace_model_loads_total{model="b"} 1.0',
                'headrace_http_errors_total{model="",status="404"} 1.0',
            ):
                assert line in lines, line
            assert sum('part="server"' in line and line.startswith("headrace_host_cpu") for line in lines) == 1
            assert len([line for line in lines if line.startswith("# TYPE headrace_requests_running ")]) == 1

    run(work)


def test_counts_outlast_an_unload() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b"), models_max=1) as server:
            for name in "aba":
                await server.text(name)
            lines = (await server.http.get("/metrics")).text.splitlines()
            assert 'headrace_generation_tokens_total{model="a"} 2.0' in lines
            assert 'headrace_engine_up{model="b"} 0.0' in lines
            assert 'headrace_model_loads_total{model="a"} 2.0' in lines

    run(work)


def test_ollamas_lists() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            assert [one["name"] for one in (await get(server, "/api/tags"))["models"]] == ["a:latest", "b:latest"]
            assert (await get(server, "/api/ps"))["models"] == []
            body = {"model": "b:latest", "prompt": "Hi", "stream": False, "keep_alive": "10m"}
            assert (await server.http.post("/api/generate", json=body)).json()["response"] == "b"
            (running,) = (await get(server, "/api/ps"))["models"]
            assert (running["name"], running["context_length"]) == ("b:latest", 100)
            assert running["expires_at"] < "2300"
            for name in ("a", "b"):
                shown = await server.http.post("/api/show", json={"model": name})
                assert shown.json()["capabilities"][0] == "completion"
            assert shown.json()["capabilities"] == ["completion", "tools"]
            assert (await server.http.post("/api/pull", json={"model": "a"})).json()["status"] == "success"
            assert server.engines.opened == ["b"]

    run(work)


def test_ollamas_keep_alive() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            loaded = await server.http.post("/api/generate", json={"model": "a", "stream": False})
            assert loaded.json()["done_reason"] == "load"
            assert server.engines.alive == ["a"]
            gone = await server.http.post("/api/generate", json={"model": "a", "stream": False, "keep_alive": 0})
            assert gone.json()["done_reason"] == "unload"
            await until(lambda: server.engines.alive == [])
            body = {"model": "b", "messages": [{"role": "user", "content": "Hi"}], "stream": False}
            await server.http.post("/api/chat", json={**body, "keep_alive": "0s"})
            await until(lambda: server.pool.models["b"].loads == 1 and server.engines.alive == [])
            await server.http.post("/api/chat", json=body)
            assert server.engines.alive == ["b"]
            # What one request asks for is over with the next.
            assert server.pool.models["b"].expires_in is None
            wrong = await server.http.post("/api/chat", json={**body, "keep_alive": "soon"})
            assert (wrong.status_code, "keep_alive" in wrong.json()["error"]) == (400, True)
            unloaded = await server.http.post("/api/generate", json={"model": "a", "stream": False, "keep_alive": 0})
            assert unloaded.status_code == 200
            assert server.engines.opened == ["a", "b", "b"]

    run(work)


@hl.program
def word(s: hl.State) -> None:
    s.text("Say: ")
    s.gen("word", max_tokens=5)


def test_programs_run_on_their_model() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            compiled, _ = word.prepare(word.bind())
            body = {"model": "b", "plan": msgspec.to_builtins(compiled.plan)}
            answer = await server.http.post("/v1/programs", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["outputs"] == {"word": "b"}
            assert server.engines.opened == ["b"]
            assert (await get(server, "/v1/programs"))["running"] == 0

    run(work)


CONTROL = ("/reset_prefix_cache", "/start_profile", "/stop_profile", "/sleep", "/wake_up", "/is_sleeping")


def test_control_routes_are_off_by_default() -> None:
    async def work() -> None:
        async with pool_server(plan("a")) as server:
            paths = {route.path for route in server.app.routes if isinstance(route, ServerRoute)}
            assert not paths & set(CONTROL)
            answer = await server.http.post("/sleep")
            assert answer.status_code == 404
            assert "serve with --enable-control-routes" in answer.text
            assert "--enable" not in (await server.http.post("/sleeps")).text

    run(work)


ON = {"enable_control_routes": True}


def test_the_prefix_cache_is_emptied() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b"), server=ON) as server:
            answer = await server.http.post("/reset_prefix_cache", params={"model": "b"})
            assert answer.status_code == 409
            await server.text("b")
            answer = await server.http.post("/reset_prefix_cache", params={"model": "b"})
            assert answer.json() == {"model": "b", "freed_blocks": 20}
            assert server.engines.engines["b"].flushed == 1

    run(work)


def test_a_profile_is_begun_and_written() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b"), server=ON | {"profile_dir": "/traces"}) as server:
            asleep = await server.http.post("/start_profile", params={"model": "b"})
            assert (asleep.status_code, asleep.json()["error"]["code"]) == (409, "model_not_loaded")
            await server.text("b")
            for steps in ("0", "x", "10001", "-1"):
                wrong = await server.http.post("/start_profile", params={"model": "b", "steps": steps})
                assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "steps")
            begun = await server.http.post("/start_profile", params={"model": "b", "steps": "7"})
            assert begun.json() == {"model": "b", "is_profiling": True, "file": None, "steps": 7}
            twice = await server.http.post("/start_profile", params={"model": "b"})
            assert (twice.status_code, twice.json()["error"]["code"]) == (409, "profile_running")
            ended = await server.http.post("/stop_profile", params={"model": "b"})
            assert ended.json() == {"model": "b", "is_profiling": False, "file": "/traces/a.json.gz", "steps": 6}

    run(work)


def test_a_model_sleeps_after_its_running_requests() -> None:
    async def work() -> None:
        engines = FakeEngines(options={"hold": 0})
        async with pool_server(plan("a"), plan("b"), server=ON, engines=engines) as server:
            running = asyncio.create_task(server.text("a"))
            await until(lambda: "a" in engines.engines and engines.engines["a"].held)
            asked = asyncio.create_task(server.http.post("/sleep", params={"model": "a"}))
            await until(lambda: server.pool.models["a"].asleep)
            refused = await server.complete("a")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_asleep")
            assert "POST /wake_up?model=a" in refused.json()["error"]["message"]
            assert engines.alive == ["a"]
            engines.options = {}
            engines.engines["a"].go.set()
            assert await running == "a"
            assert (await asked).json() == {"model": "a", "is_sleeping": True}
            assert engines.alive == []
            assert await server.text("b") == "b"
            assert (await get(server, "/is_sleeping", model="a"))["is_sleeping"]
            assert (await get(server, "/health"))["models"]["a"] == "asleep"
            assert (await server.complete("a")).status_code == 503
            state = await server.http.get("/v1/engine/state", params={"model": "a"})
            assert (state.status_code, "POST /wake_up?model=a wakes it" in state.text) == (409, True)
            woken = await server.http.post("/wake_up", params={"model": "a"})
            assert woken.json() == {"model": "a", "is_sleeping": False}
            assert await server.text("a") == "a"

    run(work)


def test_a_sleep_that_takes_too_long_changes_nothing() -> None:
    async def work() -> None:
        engines = FakeEngines(options={"hold": 0})
        async with pool_server(plan("a"), server=ON, engines=engines) as server:
            running = asyncio.create_task(server.text("a"))
            await until(lambda: "a" in engines.engines and engines.engines["a"].held)
            answer = await server.http.post("/sleep", params={"timeout": "50ms"})
            assert answer.status_code == 409
            assert "the model 'a' still answers 1 request after" in answer.json()["error"]["message"]
            engines.engines["a"].go.set()
            assert await running == "a"
            engines.engines["a"].hold = None
            assert await server.text("a") == "a"
            assert engines.opened == ["a"]
            assert (await server.http.post("/sleep", params={"timeout": "soon"})).status_code == 400

    run(work)


def test_a_model_that_sleeps_before_it_was_loaded() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), server=ON) as server:
            assert (await server.http.post("/sleep")).status_code == 200
            assert (await server.complete("a")).status_code == 503
            server.engines.fail["a"] = CheckpointError("no weights")
            assert (await server.http.post("/wake_up")).status_code == 503
            assert server.engines.opened == ["a"]

    run(work)
