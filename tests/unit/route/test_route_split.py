"""A prompt that one engine computes and another answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from route_harness import Routed, routed, until
from stub_engine import DONE, LAYOUT, PIECE, Stub, contents
from test_route_relay import run

from headrace.route.fleet import Query
from headrace.route.split_bodies import decode_body, prefill_body, splits


class Reader:
    """Every prompt has 1,000 tokens."""

    ready = True

    async def read(self, path: str, body: bytes, layouts: Any) -> Any:
        return 1000, {layout: [b"%d" % at for at in range(250)] for layout in layouts}

    def close(self) -> None: ...


@asynccontextmanager
async def group() -> AsyncIterator[Routed]:
    """A giver and a taker of blocks; six sequences run on the taker."""
    stubs = [Stub(), Stub()]
    for stub, stub.role in zip(stubs, ("prefill", "decode"), strict=True):
        stub.events = asyncio.Queue()
        stub.events.put_nowait(contents())
    async with routed(stubs) as it:
        await until(lambda: [one.role for one in it.fleet.replicas] == ["prefill", "decode"])
        await until(lambda: all(one.facts.layout == LAYOUT for one in it.fleet.replicas if one.facts))
        reader: Any = Reader()
        it.fleet.readers["tiny"].close()
        it.fleet.readers["tiny"] = reader
        it.fleet.replicas[1].load.elsewhere = 6
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
            assert first.json == {**common, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
            given = {"do_remote_prefill": True, "remote_address": it.stubs[0].url}
            assert second.json.pop("stream", False) == stream
            assert {**second.json, "stream": stream} == {
                **common,
                "max_tokens": 50,
                "stream": stream,
                "kv_transfer_params": given,
            }
            assert it.figures()["headrace_router_splits_total"] == 1
            assert all(one.load.tickets == 0 for one in it.fleet.replicas)

    run(check())


@pytest.mark.parametrize("mode", ["close", "busy", "invalid"])
def test_without_the_first_the_second_computes_everything(mode: str) -> None:
    async def check() -> None:
        async with group() as it:
            it.stubs[0].mode = mode
            assert (await it.ask()).json()["choices"][0]["message"]["content"] == "xxxx"
            assert len(it.stubs[0].posts) == 1
            assert "kv_transfer_params" not in it.stubs[1].posts[0].json

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
    assert json.loads(prefill_body(body)) == wanted
    assert decode_body(body, b"{}") is decode_body(body, b"no json") is None
    given = decode_body(body, b'{"kv_transfer_params": {"x": 1}}')
    assert given is not None
    assert json.loads(given) == {**json.loads(body), "kv_transfer_params": {"x": 1}}
