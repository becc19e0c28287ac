"""Several models behind one server: loaded on demand, unloaded when another needs the room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pool_fakes import SIZE, FakeEngines, plan, pool_server, until

from headrace.errors import CheckpointError, ConfigError, EngineDead, NoRoom, OutOfMemory, UnsupportedModel
from headrace.keys.key_ring import ANYONE
from headrace.server import served_model
from headrace.server.internal_call import call_route, passes


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 300))  # type: ignore[arg-type]


def test_the_first_request_loads_its_model() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            assert server.engines.opened == []
            assert await server.text("b") == "b"
            assert await server.text("a") == "a"
            assert await server.text("b") == "b"
            assert server.engines.opened == ["b", "a"]

    run(work)


def test_a_request_without_a_model_is_for_the_first() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            assert await server.text() == "a"

    run(work)


def test_aliases() -> None:
    async def work() -> None:
        async with pool_server(plan("a", ("gpt-4o", "x/y")), plan("b")) as server:
            for name in ("gpt-4o", "x/y", "a"):
                answer = (await server.complete(name)).json()
                assert (answer["model"], answer["choices"][0]["text"]) == ("a", "a")
            assert (await server.http.get("/v1/models/gpt-4o")).json()["id"] == "a"
            assert (await server.http.get("/v1/models/x/y")).json()["aliases"] == ["gpt-4o", "x/y"]
            assert server.engines.opened == ["a"]

    run(work)


def test_an_unknown_model_is_a_404_that_lists_the_models() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            answer = await server.complete("c")
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert error["code"] == "model_not_found"
            assert "'a', 'b'" in error["message"]
            assert (await server.http.get("/v1/models/c")).status_code == 404
            chat = await server.http.post("/api/chat", json={"model": "c", "messages": []})
            assert chat.status_code == 404
            assert "'a', 'b'" in chat.json()["error"]
            assert server.engines.opened == []

    run(work)


def test_a_broken_body_loads_nothing() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            for body in (b"", b"{", b"[]", b'{"model": 3}', b"[" * 100000):
                answer = await server.http.post("/v1/completions", content=body)
                assert answer.status_code == 400, body[:20]
            assert server.engines.opened == []

    run(work)


def test_requests_that_wait_share_one_load() -> None:
    async def work() -> None:
        engines = FakeEngines(hold={"a": asyncio.Event()})
        async with pool_server(plan("a"), engines=engines) as server:
            asked = [asyncio.create_task(server.text("a")) for _ in range(20)]
            await until(lambda: len(server.pool.models["a"].waiters) == 20)
            engines.hold["a"].set()
            assert await asyncio.gather(*asked) == ["a"] * 20
            assert engines.opened == ["a"]
            assert server.pool.models["a"].users == 0

    run(work)


def test_a_client_that_leaves_does_not_end_the_load_of_others() -> None:
    async def work() -> None:
        engines = FakeEngines(hold={"a": asyncio.Event()})
        async with pool_server(plan("a"), engines=engines) as server:
            leaver, stayer = (asyncio.create_task(server.text("a")) for _ in range(2))
            model = server.pool.models["a"]
            await until(lambda: len(model.waiters) == 2)
            leaver.cancel()
            await until(lambda: len(model.waiters) == 1)
            engines.hold["a"].set()
            assert await stayer == "a"
            assert engines.opened == ["a"]
            assert model.users == 0

    run(work)


def test_a_load_goes_on_when_every_client_has_left() -> None:
    async def work() -> None:
        engines = FakeEngines(hold={"a": asyncio.Event()})
        async with pool_server(plan("a"), engines=engines) as server:
            asked = asyncio.create_task(server.text("a"))
            await until(lambda: engines.opened == ["a"])
            asked.cancel()
            engines.hold["a"].set()
            await until(lambda: server.pool.models["a"].state == "loaded")
            assert await server.text("a") == "a"
            assert engines.opened == ["a"]

    run(work)


def test_a_wait_that_is_too_long_is_a_503_with_the_reason() -> None:
    async def work() -> None:
        engines = FakeEngines(hold={"a": asyncio.Event()})
        async with pool_server(plan("a"), engines=engines, load_timeout=0.05) as server:
            answer = await server.complete("a")
            assert answer.status_code == 503
            assert "was not loaded within 0.05 s" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) > 0
            engines.hold["a"].set()
            await until(lambda: server.pool.models["a"].state == "loaded")
            assert await server.text("a") == "a"

    run(work)


def test_the_model_used_longest_ago_makes_room() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b"), plan("c"), models_max=2) as server:
            for name in "abac":
                await server.text(name)
            assert sorted(server.engines.alive) == ["a", "c"]
            assert await server.text("b") == "b"
            assert sorted(server.engines.alive) == ["b", "c"]
            assert server.engines.most == 2

    run(work)


def test_memory_limits_what_is_loaded_at_once() -> None:
    async def work() -> None:
        limit = 2 * SIZE + (1 << 20)
        async with pool_server(plan("a"), plan("b"), plan("c")) as server:
            server.pool.limits.memory = limit
            for name in "abcab":
                for model in server.pool.models.values():
                    model.cost = SIZE
                await server.text(name)
            assert server.engines.most == 2
            assert len(server.engines.opened) == 5

    run(work)


def test_a_busy_model_is_not_unloaded_until_its_requests_have_ended() -> None:
    async def work() -> None:
        engines = FakeEngines(options={"hold": 0, "reply": "answer"})
        async with pool_server(plan("a"), plan("b"), engines=engines, models_max=1) as server:
            running = asyncio.create_task(server.text("a"))
            await until(lambda: "a" in engines.engines and engines.engines["a"].held)
            other = asyncio.create_task(server.text("b"))
            await until(lambda: server.pool.models["a"].leaving)
            late = asyncio.create_task(server.text("a"))
            await until(lambda: server.pool.models["a"].waiters)
            assert engines.alive == ["a"]
            engines.options = {"reply": "answer"}
            engines.engines["a"].go.set()
            assert await running == "answer"
            assert await other == "answer"
            assert await late == "answer"
            assert engines.opened == ["a", "b", "a"]
            assert engines.most == 1

    run(work)


def test_a_model_that_need_not_leave_goes_on() -> None:
    async def work() -> None:
        engines = FakeEngines(options={"hold": 0})
        async with pool_server(plan("a"), plan("b"), engines=engines, models_max=1) as server:
            running = asyncio.create_task(server.text("a"))
            await until(lambda: "a" in engines.engines and engines.engines["a"].held)
            other = asyncio.create_task(server.text("b"))
            await until(lambda: server.pool.models["a"].leaving)
            late = asyncio.create_task(server.text("a"))
            await until(lambda: server.pool.models["a"].waiters)
            other.cancel()
            await until(lambda: not server.pool.models["a"].leaving)
            engines.engines["a"].go.set()
            assert await asyncio.gather(running, late) == ["a", "a"]
            assert engines.opened == ["a"]

    run(work)


@pytest.mark.parametrize("limit", [1, 2])
def test_many_mixed_requests_under_a_limit(limit: int) -> None:
    async def work() -> None:
        names = ["a", "b", "c"]
        async with pool_server(*map(plan, names), models_max=limit) as server:
            asked = [server.text(names[i * 7 % 3]) for i in range(50)]
            assert await asyncio.gather(*asked) == [names[i * 7 % 3] for i in range(50)]
            assert server.engines.most <= limit
            assert all(model.users == 0 and not model.waiters for model in server.pool.models.values())

    run(work)


def test_a_load_that_fails_is_a_503_and_is_tried_again_with_growing_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(served_model.time, "monotonic", lambda: now)

    async def work() -> None:
        nonlocal now
        engines = FakeEngines(fail={"a": CheckpointError("no weights")})
        async with pool_server(plan("a"), plan("b"), engines=engines) as server:
            for attempts, delay in ((1, 1), (2, 2), (3, 4)):
                for _ in range(2):  # The second asks for no other attempt.
                    answer = await server.complete("a")
                    assert answer.status_code == 503
                    error = answer.json()["error"]
                    assert error["code"] == "model_load_failed"
                    assert "'a' could not be loaded: no weights" in error["message"]
                    assert answer.headers["retry-after"] == str(delay)
                    assert answer.headers["x-should-retry"] == "false", "no attempt of a client mends it"
                assert engines.opened.count("a") == attempts
                assert not server.pool.models["a"].waiters, "a refused request waits for nothing"
                now += delay
            assert await server.text("b") == "b"
            health = (await server.http.get("/health")).json()
            assert health["status"] == "degraded"
            assert health["models"] == {"a": "failed", "b": "loaded"}
            state = await server.http.get("/v1/engine/state", params={"model": "a"})
            assert state.status_code == 409
            assert "its load failed (no weights); a completion that names it tries again" in state.text
            del engines.fail["a"]
            assert await server.text("a") == "a"
            assert server.pool.models["a"].failed is None
            assert server.pool.models["a"].users == 0

    run(work)


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (CheckpointError("no weights"), True),
        (UnsupportedModel("no such layer"), True),
        (ConfigError("no such dtype"), True),
        (OutOfMemory("no room"), False),
        (NoRoom("no room for the cache now"), False),
        (EngineDead("it died"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_batch_does_not_wait_for_a_model_that_cannot_be_loaded(error: Exception, lasting: bool) -> None:
    async def work() -> None:
        async with pool_server(plan("a"), engines=FakeEngines(fail={"a": error})) as server:
            body = b'{"model": "a", "prompt": "Hi"}'
            reply = await call_route(server.app, "/v1/completions", body, ANYONE)
            assert reply.status == 503
            assert str(error).encode() in reply.body
            assert passes(reply) != lasting

    run(work)


def test_a_name_that_is_empty_is_no_models() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            answer = await server.complete("")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            assert "'a', 'b'" in answer.json()["error"]["message"]

    run(work)


def test_all_that_wait_for_a_load_that_fails_get_its_error() -> None:
    async def work() -> None:
        engines = FakeEngines(hold={"a": asyncio.Event()}, fail={"a": CheckpointError("no weights")})
        async with pool_server(plan("a"), engines=engines) as server:
            asked = [asyncio.create_task(server.complete("a")) for _ in range(5)]
            await until(lambda: len(server.pool.models["a"].waiters) == 5)
            engines.hold["a"].set()
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [503] * 5
            assert engines.opened == ["a"]

    run(work)


def test_an_engine_that_is_not_started_again_is_loaded_anew() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b")) as server:
            assert await server.text("a") == "a"
            first = server.engines.engines["a"]
            server.engines.gave_up.add("a")
            answer = await server.complete("a")
            assert answer.status_code == 503
            assert "ended again and again" in answer.json()["error"]["message"]
            assert await server.text("b") == "b"
            server.engines.gave_up.clear()
            model = server.pool.models["a"]
            assert model.failed is not None
            model.failed = served_model.FailedLoad(model.failed.error, 1, time.monotonic() - 1)
            assert await server.text("a") == "a"
            assert first.stopped
            assert server.engines.opened == ["a", "b", "a"]

    run(work)


def test_an_idle_model_is_unloaded_after_its_time() -> None:
    async def work() -> None:
        async with pool_server(plan("a", keep_alive=0), plan("b", keep_alive=0.05), plan("c", keep_alive=-1)) as server:
            for name in "abc":
                await server.text(name)
            await until(lambda: server.engines.alive == ["c"])
            assert [model.state for model in server.pool.models.values()] == ["unloaded", "unloaded", "loaded"]
            assert await server.text("a") == "a"

    run(work)


def test_each_unload_has_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with pool_server(plan("a")) as server:
            await server.text("a")
            await server.pool.close()

    with caplog.at_level("INFO", "headrace.server.model_pool"):
        run(work)
    assert "the model a was unloaded as the server ends" in caplog.messages


def test_preload() -> None:
    async def work() -> None:
        async with pool_server(plan("a"), plan("b", preload=True)) as server:
            client: Any = server.pool.front and server.pool.front.client
            await client.start()
            assert server.engines.alive == ["b"]
            server.engines.fail["a"] = CheckpointError("no weights")

        async with pool_server(
            plan("a", preload=True), engines=FakeEngines(fail={"a": CheckpointError("x")})
        ) as server:
            client = server.pool.front and server.pool.front.client
            with pytest.raises(EngineDead, match="could not be loaded: x"):
                await client.start()

    run(work)


def test_the_end_of_the_server_ends_loads_and_waits() -> None:
    async def work() -> None:
        engines = FakeEngines(hold={"b": asyncio.Event()})
        async with pool_server(plan("a"), plan("b"), engines=engines) as server:
            await server.text("a")
            asked = asyncio.create_task(server.complete("b"))
            await until(lambda: engines.opened == ["a", "b"])
            await server.pool.close()
            answer = await asked
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
            assert engines.alive == []
            assert (await server.complete("a")).status_code == 503

    run(work)


def test_names_must_differ() -> None:
    from headrace.server.model_plan import check_names

    with pytest.raises(ConfigError, match="two models have the name 'a'"):
        check_names([plan("a"), plan("b", ("a",))])
