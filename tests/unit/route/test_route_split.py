"""A prompt that one engine computes and another answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from route_harness import PATIENCE, Routed, routed, until
from stub_engine import DONE, LAYOUT, PIECE, Stub, contents
from test_route_relay import run

from headrace.route.fleet import Choice, Query
from headrace.route.split_bodies import decode_body, prefill_body, splits


class Reader:
    """Every prompt has 1,000 tokens."""

    ready, path = True, "/nowhere"

    async def read(self, path: str, body: bytes, layouts: Any) -> Any:
        return 1000, {layout: [b"%d" % at for at in range(250)] for layout in layouts}

    def close(self) -> None: ...


@asynccontextmanager
async def group(takers: int = 1) -> AsyncIterator[Routed]:
    """A giver and takers of blocks; six sequences run on each taker."""
    roles = ["prefill", *["decode"] * takers]
    stubs = [Stub() for _ in roles]
    for stub, stub.role in zip(stubs, roles, strict=True):
        stub.events = asyncio.Queue()
        stub.events.put_nowait(contents())
    for taker in stubs[1:]:
        taker.giver = stubs[0]
    async with routed(stubs) as it:
        await until(lambda: [one.role for one in it.fleet.replicas] == roles)
        await until(lambda: all(one.facts.layout == LAYOUT for one in it.fleet.replicas if one.facts))
        reader: Any = Reader()
        it.fleet.readers["tiny"].close()
        it.fleet.readers["tiny"] = reader
        for one in it.fleet.replicas[1:]:
            one.load.elsewhere = 6
        yield it


@pytest.mark.parametrize("stream", [False, True])
def test_one_computes_and_the_other_answers(stream: bool) -> None:
    async def check() -> None:
        async with group() as it:
            reply = await it.ask(stream=stream, max_tokens=50, seed=7)
            assert reply.headers["x-headrace-replica"] == "1"
            assert not stream or reply.text == (PIECE * 4 + DONE).decode()
            (first,), (second,) = it.stubs[0].posts, it.stubs[1].posts
            messages = [{"role": "user", "content": "Hi"}]
            common = {"model": "tiny", "messages": messages, "seed": 7}
            assert first.json == {
                **common,
                **({"stream": True} if stream else {}),
                "max_tokens": 1,
                "kv_transfer_params": {"do_remote_decode": True},
            }
            address = f"tcp:127.0.0.1:{it.stubs[0].port}"
            # The giver gets 2 s, and five times what 1,000 tokens are expected to take.
            given = {"do_remote_prefill": True, "remote_address": address, "patience": 4.0}
            assert second.json.pop("stream", False) == stream
            assert {**second.json, "stream": stream} == {
                **common,
                "max_tokens": 50,
                "stream": stream,
                "kv_transfer_params": given,
            }
            assert it.figures()["headrace_router_splits_total"] == 1
            await until(lambda: all(one.load.tickets == 0 for one in it.fleet.replicas))

    run(check())


@pytest.mark.parametrize("mode", ["close", "busy", "invalid"])
@pytest.mark.parametrize("stream", [False, True])
def test_without_the_first_the_second_computes_everything(mode: str, stream: bool) -> None:
    """It is asked again, and what it waited for is given up."""

    async def check() -> None:
        async with group() as it:
            it.stubs[0].mode, it.stubs[1].mode = mode, "taker"
            it.stubs[0].gate = it.stubs[1].asked
            reply = await it.ask(stream=stream)
            assert reply.status_code == 200
            assert stream or reply.json()["choices"][0]["message"]["content"] == "xxxx"
            assert len(it.stubs[0].posts) == 1
            waiting, plain = it.stubs[1].posts
            assert "kv_transfer_params" in waiting.json
            assert "kv_transfer_params" not in plain.json
            await asyncio.wait_for(waiting.closed.wait(), PATIENCE)
            for one in it.fleet.replicas:
                one.load.elsewhere = 0
            await until(
                lambda: all(one.load.tickets == one.load.queued == one.load.running == 0 for one in it.fleet.replicas)
            )

    run(check())


def test_a_giver_that_is_late_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.route.split_ask._LEAST", 0.0)
    monkeypatch.setattr("headrace.route.split_ask._TIMES", 1.0)

    async def check() -> None:
        async with group() as it:
            it.stubs[0].mode, it.stubs[1].mode = "hang", "taker"
            assert (await it.ask()).status_code == 200
            for post in it.stubs[0].posts:  # None, if it was late before the request reached it.
                await asyncio.wait_for(post.closed.wait(), PATIENCE)
            assert it.figures()['headrace_router_unserved_total{replica="0"}'] == 1

    run(check())


def test_a_taker_that_is_lost_is_replaced() -> None:
    async def check() -> None:
        async with group(takers=2) as it:
            it.stubs[1].mode = "close"
            it.fleet.replicas[2].load.elsewhere = 7
            assert (await it.ask()).headers["x-headrace-replica"] == "2"
            assert it.figures()["headrace_router_retries_total"] == 1

    run(check())


def test_a_stream_goes_on_at_one_engine_alone() -> None:
    """What goes on elsewhere is not split: all of it is counted where it is computed."""

    async def check() -> None:
        async with group(takers=2) as it:
            it.stubs[1].mode, it.stubs[1].tokens = "cut", 2
            it.fleet.replicas[2].load.elsewhere = 7
            choices: list[Choice | None] = []
            choose = it.fleet.choose

            def seen(query: Query, without: Any = ()) -> Choice | None:
                choices.append(choose(query, without))
                return choices[-1]

            it.fleet.choose = seen  # type: ignore[method-assign]
            assert (await it.stream(seed=3)) == (PIECE * 4 + DONE).decode()
            first, second = choices
            assert first is not None
            assert first.prefill is not None
            assert second is not None
            assert (second.replica.number, second.prefill) == (2, None)
            assert it.figures()["headrace_router_continued_total"] == 1
            await until(lambda: all(one.load.tickets == 0 for one in it.fleet.replicas))

    run(check())


def test_a_client_that_leaves_ends_the_work_of_both() -> None:
    async def check() -> None:
        async with group() as it:
            it.stubs[0].mode, it.stubs[1].mode = "hang", "taker"
            asked = asyncio.create_task(it.ask())
            await until(lambda: it.stubs[0].posts and it.stubs[1].posts)
            asked.cancel()
            for stub in it.stubs:
                await asyncio.wait_for(stub.posts[0].closed.wait(), PATIENCE)
            await until(lambda: it.state.inflight == 0)
            await until(lambda: all(one.load.tickets == 0 for one in it.fleet.replicas))

    run(check())


def test_an_answer_ends_what_still_computes_its_prompt() -> None:
    """The taker did not need it: it found the blocks elsewhere."""

    async def check() -> None:
        async with group() as it:
            it.stubs[0].mode = "hang"
            assert (await it.ask(stream=True)).status_code == 200
            await asyncio.wait_for(it.stubs[0].posts[0].closed.wait(), PATIENCE)
            assert it.fleet.replicas[0].state == "ready"

    run(check())


@pytest.mark.parametrize(("splitting", "count"), [("auto", 0), ("always", 1), ("never", 0)])
def test_prompts_are_split_always_or_never(splitting: Any, count: int) -> None:
    """For a taker that does nothing else it would not pay."""

    async def check() -> None:
        async with group() as it:
            it.fleet.replicas[1].load.elsewhere = 0
            it.fleet._splitting = splitting
            assert (await it.ask()).headers["x-headrace-replica"] == "1"
            assert len(it.stubs[0].posts) == count

    run(check())


def test_a_giver_answers_only_if_nobody_else_can() -> None:
    async def check() -> None:
        async with group() as it:
            it.fleet.replicas[1].load.elsewhere = 0
            assert (await it.ask()).headers["x-headrace-replica"] == "1", "alone it is as good"
            it.fleet.replicas[1].held_back = True
            assert (await it.ask()).headers["x-headrace-replica"] == "0"
            assert it.figures()["headrace_router_splits_total"] == 0

    run(check())


def test_another_layout_gives_nothing() -> None:
    async def check() -> None:
        async with group() as it:
            assert it.stubs[0].events is not None
            facts = it.fleet.replicas[0].facts
            assert facts is not None
            it.stubs[0].events.put_nowait(contents(epoch=9).replace(LAYOUT.hex().encode(), b"ab" * 16))
            await until(lambda: it.fleet.replicas[0].facts != facts)
            choice = it.fleet.choose(Query("tiny", 1000, splits=True))
            assert choice is not None
            assert choice.prefill is None
            choice.close()

    run(check())


@pytest.mark.parametrize(
    ("size", "content", "splits"), [(8, "cd" * 16, True), (8, "ef" * 16, False), (8, "", False), (6, "cd" * 16, False)]
)
def test_another_block_size_is_converted(size: int, content: str, splits: bool) -> None:
    """If the engines compute the same, and one size is a multiple of the other."""

    async def check() -> None:
        async with group() as it:
            for stub, mine, tokens in zip(it.stubs, (content, "cd" * 16), (size, 4), strict=True):
                assert stub.events is not None
                stub.events.put_nowait(contents(epoch=9, content=mine, block_size=tokens, layout=f"{tokens:032}"))
            await until(lambda: all(one.facts.layout != LAYOUT for one in it.fleet.replicas if one.facts))
            choice = it.fleet.choose(Query("tiny", 1000, splits=True))
            assert choice is not None
            assert (choice.prefill is not None) == splits
            choice.close()

    run(check())


@pytest.mark.parametrize(
    ("body", "can"),
    [
        ({"prompt": "text"}, True),
        ({"prompt": [1, 2]}, True),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": [[1], [2]]}, False),
        ({"messages": [], "kv_transfer_params": {"do_remote_decode": True}}, False),
        ({"prompt": "text", "echo": True}, False),
        ({"prompt": "text", "prompt_logprobs": 0}, False),
    ],
)
def test_requests_that_can_be_split(body: dict[str, Any], can: bool) -> None:
    assert splits(json.dumps(body).encode()) == can


def test_bodies_of_both() -> None:
    body = json.dumps({"prompt": "a", "stream": True, "n": 2, "max_completion_tokens": 9, "temperature": 0}).encode()
    wanted = {"prompt": "a", "temperature": 0, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    assert json.loads(prefill_body(body, False)) == wanted
    assert json.loads(prefill_body(body, True)) == wanted | {"stream": True}
    for given, wanted_least in (({"min_tokens": 5}, 1), ({"min_tokens": 0}, 0), ({}, 0)):
        asked = json.loads(prefill_body(json.dumps({"prompt": "a", **given}).encode(), True))
        assert asked.get("min_tokens", 0) == wanted_least
    given = {"do_remote_prefill": True, "remote_address": "tcp:a:1", "patience": 2.5}
    assert json.loads(decode_body(body, "tcp:a:1", 2.5)) == {**json.loads(body), "kv_transfer_params": given}
