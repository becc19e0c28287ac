"""One request through the router: each gets one engine's answer or one clear error, whatever fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from route_harness import PATIENCE, routed, until
from stub_engine import COMMENT, DONE, PIECE, Stub


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def test_an_answer_passes_unchanged() -> None:
    async def check() -> None:
        async with routed([Stub(), Stub()]) as it:
            reply = await it.ask(temperature=0)
            assert reply.status_code == 200
            assert reply.json()["choices"][0]["message"]["content"] == "xxxx"
            assert reply.headers["x-headrace-cached-tokens"] == "16"
            assert reply.headers["x-headrace-replica"] in "01"
            assert await it.stream() == (PIECE * 4 + DONE).decode()
            (one,) = it.stubs[int(reply.headers["x-headrace-replica"])].posts[:1]
            assert one.json == {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
            assert it.figures()["headrace_router_cached_tokens_total"] == 32

    run(check())


@pytest.mark.parametrize(("mode", "status"), [("ok", 200), ("busy", 503)])
def test_a_head_has_the_answers_headers_and_no_body(mode: str, status: int) -> None:
    async def check() -> None:
        async with routed([Stub(mode=mode)], watch=False) as it:
            for _ in range(2):
                reply = await asyncio.wait_for(it.http.head("/version"), PATIENCE)
                assert (reply.status_code, reply.content) == (status, b"")
                assert reply.headers["content-type"] == "application/json"
            assert (mode == "busy") or int(reply.headers["content-length"]) > 0
            assert [one.method for one in it.stubs[0].got[-2:]] == ["HEAD", "HEAD"]
            await until(lambda: it.state.inflight == 0)
            assert it.fleet.replicas[0].state == "ready"
            if mode == "ok":
                assert (await it.ask()).status_code == 200

    run(check())


def test_engines_take_turns() -> None:
    async def check() -> None:
        async with routed([Stub(), Stub(), Stub()]) as it:
            for _ in range(6):
                await it.ask()
            assert [len(stub.posts) for stub in it.stubs] == [2, 2, 2]

    run(check())


@pytest.mark.parametrize("mode", ["close", "busy", "cut", "comment", "fault"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_shows_no_token_is_tried_once_elsewhere(mode: str, stream: bool) -> None:
    if mode in ("comment", "fault") and not stream:
        return
    if mode == "cut" and stream:
        return

    async def check() -> None:
        bad, good = Stub(mode=mode), Stub()
        async with routed([bad, good], watch=False) as it:
            for _ in range(2):
                reply = await it.ask(stream=stream)
                assert reply.status_code == 200
                if stream:
                    assert reply.text.replace(COMMENT.decode(), "") == (PIECE * 4 + DONE).decode()
                else:
                    assert reply.json()["choices"][0]["message"]["content"] == "xxxx"
            assert len(good.posts) == 2, "each is answered once"
            assert it.figures()["headrace_router_retries_total"] == len(bad.posts) in (1, 2)
            assert all(one.load.tickets == one.load.queued == one.load.running == 0 for one in it.fleet.replicas)

    run(check())


def test_a_second_failure_is_one_clear_error() -> None:
    async def check() -> None:
        async with routed([Stub(mode="close"), Stub(mode="close"), Stub()], watch=False) as it:
            replies = [await it.ask() for _ in range(3)]
            for reply in replies:
                if reply.status_code != 200:
                    assert reply.status_code == 503
                    assert reply.json()["error"]["code"] == "no_engine"
                    assert "got no answer from replica 0 and replica 1" in reply.json()["error"]["message"]
                    assert reply.headers["retry-after"] == "2"
            assert sum(len(stub.posts) for stub in it.stubs) <= 6, "never a third time"

    run(check())


def test_an_engines_own_refusal_is_passed_on_if_no_other_is_there() -> None:
    async def check() -> None:
        async with routed([Stub(mode="busy")], watch=False) as it:
            reply = await it.ask()
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
            assert reply.headers["retry-after"] == "1"

    run(check())


def test_a_fault_of_the_client_is_not_tried_again() -> None:
    async def check() -> None:
        async with routed([Stub(mode="invalid"), Stub(mode="invalid")]) as it:
            assert (await it.ask()).status_code == 400
            assert sum(len(stub.posts) for stub in it.stubs) == 1

    run(check())


def test_shown_tokens_are_never_repeated() -> None:
    async def check() -> None:
        async with routed([Stub(mode="cut", tokens=2), Stub(mode="cut", tokens=2)], watch=False) as it:
            text = await it.stream()
            assert text.startswith((PIECE * 2).decode())
            error = json.loads(text[len(PIECE) * 2 :].split("\n")[0].removeprefix("data: "))["error"]
            assert error["code"] == "engine_lost"
            assert "what was sent is not complete" in error["message"]
            assert text.endswith(DONE.decode())
            assert sum(len(stub.posts) for stub in it.stubs) == 1
            assert it.figures()["headrace_router_broken_total"] == 1

    run(check())


def test_errors_have_the_form_of_the_api() -> None:
    async def check() -> None:
        async with routed([Stub(mode="cut", tokens=1)], watch=False) as it:
            body = {"model": "tiny", "max_tokens": 4, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
            text = (await it.http.post("/v1/messages", json=body)).text
            assert "event: error\ndata: " in text
            reply = await it.http.post("/v1/messages", json={**body, "model": "other"})
            assert reply.json()["error"]["type"] == "not_found_error"
            reply = await it.http.post("/api/chat", json={"model": "other", "messages": []})
            assert "does not exist" in reply.json()["error"]

    run(check())


def test_a_client_that_leaves_ends_the_work() -> None:
    async def check() -> None:
        async with routed([Stub(mode="slow")], watch=False) as it:
            body = {"model": "tiny", "messages": [], "stream": True}
            async with it.http.stream("POST", "/v1/chat/completions", json=body) as reply:
                async for _ in reply.aiter_bytes():
                    break
            await asyncio.wait_for(it.stubs[0].posts[0].closed.wait(), PATIENCE)
            await until(lambda: it.fleet.replicas[0].load.tickets == 0 and it.state.inflight == 0)

    run(check())


def test_a_client_that_leaves_before_the_first_token_ends_the_work() -> None:
    async def check() -> None:
        async with routed([Stub(mode="hang")], watch=False) as it:
            asked = asyncio.create_task(it.ask())
            await until(lambda: it.stubs[0].posts)
            asked.cancel()
            await asyncio.wait_for(it.stubs[0].posts[0].closed.wait(), PATIENCE)
            await until(lambda: it.state.inflight == 0)
            assert it.fleet.replicas[0].load.tickets == 0

    run(check())


def test_connections_are_used_again_and_stale_ones_replaced() -> None:
    async def check() -> None:
        async with routed([Stub()], watch=False) as it:
            for _ in range(5):
                await it.ask()
            assert len(it.stubs[0].connections) <= 3, "those of the checks, and one for requests"
            for connection in list(it.stubs[0].connections):
                connection.transport.close()
            idle = it.fleet.replicas[0].origin._idle
            await until(lambda: not it.stubs[0].connections and not any(one.usable for _, one in idle))
            assert (await it.ask()).status_code == 200
            assert it.figures()["headrace_router_retries_total"] == 0

    run(check())


def test_the_key_is_checked_and_the_engines_get_theirs() -> None:
    async def check() -> None:
        async with routed([Stub()], api_key="secret") as it:
            assert (await it.ask()).status_code == 401
            assert (await it.http.get("/health")).status_code == 200
            for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
                reply = await it.http.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
                assert reply.status_code == 200
                assert it.stubs[0].posts[-1].headers["authorization"] == "Bearer secret"
                assert "x-api-key" not in it.stubs[0].posts[-1].headers

    run(check())


def test_keys_have_limits_models_and_rights(tmp_path: Path) -> None:
    keys = [
        {"name": "few", "key": "a", "tokens_per_minute": 200},
        {"name": "one", "key": "b", "models": ["other"], "max_concurrency": 1},
        {"name": "boss", "key": "c", "admin": True},
    ]
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": keys}))

    async def check() -> None:
        async with routed([Stub()], keys_file=tmp_path / "keys.yaml") as it:

            def ask(key: str, text: str = "Hi") -> Coroutine[Any, Any, httpx.Response]:
                body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
                headers = {"x-api-key": key}
                return it.http.post("/v1/chat/completions", json=body, headers=headers)

            first = await ask("a", "word " * 120)
            assert first.status_code == 200
            assert 0 < int(first.headers["x-ratelimit-remaining-tokens"]) < 200
            assert (await ask("a", "word " * 120)).status_code == 429
            refused = await ask("b")
            assert (refused.status_code, "not open to this key" in refused.text) == (404, True)
            assert (await ask("nobody")).status_code == 401
            for key, status in (("b", 403), ("c", 200)):
                reply = await it.http.post("/v1/router/hold", json={"replica": 0}, headers={"x-api-key": key})
                assert reply.status_code == status

    run(check())


@pytest.mark.parametrize("field", [{"stream": "perhaps"}, {"max_tokens": [1]}])
def test_a_key_has_its_models_whatever_else_the_body_says(tmp_path: Path, field: dict[str, Any]) -> None:
    key = {"name": "one", "key": "k", "models": ["a"]}
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": [key]}))

    async def check() -> None:
        async with routed([Stub("a"), Stub("b")], keys_file=tmp_path / "keys.yaml") as it:
            await until(lambda: len(list(it.fleet.models())) == 2)
            headers = {"x-api-key": "k"}
            refused = await it.http.post("/v1/completions", json={"model": "b", **field}, headers=headers)
            assert (refused.status_code, "not open to this key" in refused.text) == (404, True)
            await it.http.post("/v1/completions", json={"model": "a", **field}, headers=headers)
            await it.http.post("/v1/completions", content=b'{"model": "b', headers=headers)
            assert [len(stub.posts) for stub in it.stubs] == [2, 0], "the engine says what is wrong with them"

    run(check())


def test_models_are_the_union() -> None:
    async def check() -> None:
        async with routed([Stub("a"), Stub("b"), Stub("a")]) as it:
            await until(lambda: all(one.card for one in it.fleet.replicas))
            assert [card["id"] for card in (await it.http.get("/v1/models")).json()["data"]] == ["a", "b"]
            await it.ask(model="b")
            assert len(it.stubs[1].posts) == 1
            reply = await it.ask(model="c")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
            assert "'a', 'b'" in reply.json()["error"]["message"]

    run(check())


def test_what_one_engine_keeps_is_not_routed() -> None:
    async def check() -> None:
        async with routed([Stub(), Stub()]) as it:
            for method, path in (("GET", "/v1/files/file-1"), ("POST", "/start_profile"), ("POST", "/sleep?timeout=1")):
                reply = await it.http.request(method, path)
                assert (reply.status_code, reply.json()["error"]["code"]) == (501, "not_routed"), path

    run(check())


def test_too_large_a_body_is_refused_here() -> None:
    async def check() -> None:
        async with routed([Stub()]) as it:
            reader, writer = await asyncio.open_connection(it.http.base_url.host, it.http.base_url.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 17825792\r\n\r\n {")
            assert b" 413 " in await reader.readline()
            writer.close()
            assert not it.stubs[0].posts

    run(check())


def test_a_replica_can_be_held_back() -> None:
    async def check() -> None:
        async with routed([Stub(), Stub()]) as it:
            reply = await it.http.post("/v1/router/hold", json={"replica": 0})
            assert reply.json() == {"replica": 0, "hold": True, "requests": 0}
            for _ in range(3):
                await it.ask()
            assert not it.stubs[0].posts
            rows = (await it.http.get("/v1/router/replicas")).json()["replicas"]
            assert [row["state"] for row in rows] == ["held", "ready"]
            await it.http.post("/v1/router/hold", json={"replica": 0, "hold": False})
            await it.ask()
            assert it.stubs[0].posts
            assert (await it.http.post("/v1/router/hold", json={"replica": 7})).status_code == 404
            assert (await it.http.post("/v1/router/hold", json={})).status_code == 400

    run(check())


def test_a_hundred_at_once() -> None:
    async def check() -> None:
        async with routed([Stub(wait=0.01), Stub(wait=0.01)]) as it:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=it.http.base_url, limits=limits, trust_env=False) as http:
                body = {"model": "tiny", "messages": [], "stream": True}
                jobs = [http.post("/v1/chat/completions", json=body, timeout=PATIENCE) for _ in range(100)]
                replies = await asyncio.gather(*jobs)
            assert {reply.text for reply in replies} == {(PIECE * 4 + DONE).decode()}
            assert [len(stub.posts) for stub in it.stubs] == [50, 50]

    run(check())
