"""The first token comes from the engine that computes the prompt, and the rest from the one that has its blocks."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from route_harness import PATIENCE, Routed, until
from stub_engine import DONE, PIECE
from test_route_relay import run
from test_route_replay import content, piece, sse, texts
from test_route_split import group

from headrace.route.early_token import EarlyToken
from headrace.route.fleet import Query
from headrace.route.relay import Call, Relay
from headrace.route.split_bodies import has_one_choice, with_seed
from headrace.route.stream_replay import Continuation, Differs

TOOL = {"content": None, "tool_calls": [{"index": 0, "id": "call", "function": {"name": "f", "arguments": ""}}]}


async def begun(it: Routed, got: bytearray, **fields: Any) -> None:
    """Ask for a stream; what comes is added to `got`."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True, **fields}
    async with it.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        assert reply.headers["x-headrace-replica"] == "1"
        async for data in reply.aiter_bytes():
            got += data


@pytest.mark.parametrize("given", [{"seed": 7}, {}])
def test_the_first_token_comes_before_the_blocks(given: dict[str, Any]) -> None:
    """Without a seed the router chooses one, so that both engines draw the same token."""

    async def check() -> None:
        async with group() as it:
            it.stubs[1].gate = asyncio.Event()
            got = bytearray()
            asked = asyncio.create_task(begun(it, got, **given))
            await until(lambda: got)
            assert bytes(got) == PIECE
            assert it.fleet.replicas[1].load.own_running == 1, "it counts as one that decodes"
            it.stubs[1].gate.set()
            await asyncio.wait_for(asked, PATIENCE)
            assert bytes(got) == PIECE * 4 + DONE
            first, second = it.stubs[0].posts[0].json, it.stubs[1].posts[0].json
            assert first["seed"] == second["seed"] == given.get("seed", first["seed"])
            assert it.figures()["headrace_router_early_tokens_total"] == 1
            await until(lambda: all(one.load.tickets == 0 for one in it.fleet.replicas))

    run(check())


@pytest.mark.parametrize("mode", ["close", "busy", "cut"])
def test_an_engine_that_is_lost_behind_the_first_token(mode: str) -> None:
    """Another one goes on, as after any other token."""

    async def check() -> None:
        async with group(takers=2) as it:
            it.stubs[1].mode, it.stubs[1].tokens, it.stubs[1].gate = mode, 2, asyncio.Event()
            it.fleet.replicas[2].load.elsewhere = 7
            got = bytearray()
            asked = asyncio.create_task(begun(it, got))
            await until(lambda: got)
            it.stubs[1].gate.set()
            await asyncio.wait_for(asked, PATIENCE)
            assert bytes(got) == PIECE * 4 + DONE
            figures = it.figures()
            assert (figures["headrace_router_continued_total"], figures["headrace_router_broken_total"]) == (1, 0)
            assert it.stubs[2].posts[0].json["seed"] == it.stubs[1].posts[0].json["seed"]

    run(check())


def test_a_refusal_behind_the_first_token_is_one_clear_error() -> None:
    async def check() -> None:
        async with group() as it:
            it.stubs[1].mode, it.stubs[1].gate = "invalid", asyncio.Event()
            got = bytearray()
            asked = asyncio.create_task(begun(it, got))
            await until(lambda: got)
            it.fleet.replicas[0].held_back = True
            it.stubs[1].gate.set()
            await asyncio.wait_for(asked, PATIENCE)
            shown, error, done = bytes(got).split(b"\n\n")[:-1]
            assert content(shown.decode()) == "x"
            assert json.loads(error[6:])["error"]["code"] == "engine_lost"
            assert "status 400" in json.loads(error[6:])["error"]["message"]
            assert done == b"data: [DONE]"

    run(check())


def test_engines_that_disagree_give_no_more_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would be a fault of theirs: their layouts are the same."""

    async def check() -> None:
        async with group() as it:
            other = PIECE.replace(b'"x"', b'"y"')
            it.stubs[1].gate = asyncio.Event()
            got = bytearray()
            with monkeypatch.context() as patch:
                asked = asyncio.create_task(begun(it, got, seed=1))
                await until(lambda: got)
                patch.setattr("stub_engine.PIECE", other)
                it.stubs[1].gate.set()
                await asyncio.wait_for(asked, PATIENCE)
            assert b"does not begin as replica 0 began it" in bytes(got)
            assert not it.fleet.replicas[0].agrees
            assert await it.stream(seed=2) == (PIECE * 4 + DONE).decode()
            assert [one.json.get("stream", False) for one in it.stubs[0].posts] == [True, False]

    run(check())


def test_a_giver_that_fails_behind_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream does not end as it should: the other engine computes the prompt, and goes on behind the token."""

    async def check() -> None:
        async with group() as it:
            it.stubs[0].mode, it.stubs[0].tokens, it.stubs[1].mode = "cut", 1, "taker"
            it.stubs[0].gate = it.stubs[1].asked
            assert await it.stream(seed=2) == (PIECE * 4 + DONE).decode()
            waiting, plain = it.stubs[1].posts
            assert "kv_transfer_params" not in plain.json
            await asyncio.wait_for(waiting.closed.wait(), PATIENCE)

    run(check())


def test_several_choices_come_from_the_engine_that_answers() -> None:
    async def check() -> None:
        async with group() as it:
            await it.stream(n=2, seed=1)
            assert "stream" not in it.stubs[0].posts[0].json
            assert it.figures()["headrace_router_early_tokens_total"] == 0

    run(check())
    assert has_one_choice(b'{"n": 1}')
    assert has_one_choice(b"{}")
    assert not has_one_choice(b'{"n": 3}')
    assert json.loads(with_seed(b'{"seed": null, "a": [1]}', 5)) == {"seed": 5, "a": [1]}


def test_what_is_shown_of_a_first_token() -> None:
    token = EarlyToken()
    assert token.feed(b": nothing yet\n\n" + piece()) == b""
    end = sse({"id": "one", "usage": None, "kv_transfer_params": {"a": 1}, "choices": []})
    shown = token.feed(piece("a", finish="length") + end + piece("b"))
    assert texts(shown) == {0: "a"}
    assert [json.loads(one[6:])["choices"][0]["finish_reason"] for one in shown.split(b"\n\n")[:-1]] == [None, None]
    assert not token.complete
    assert token.feed(piece("c") + DONE) == b"", "once"
    assert token.complete
    text = {"index": 0, "text": "a", "finish_reason": "stop", "stop_reason": "a"}
    shown = EarlyToken().feed(sse({"id": "one", "kv_transfer_params": {}, "choices": [text]}))
    assert json.loads(shown[6:]) == {"id": "one", "choices": [{"index": 0, "text": "a", "finish_reason": None}]}


@pytest.mark.parametrize(
    "events",
    [
        piece("a", **TOOL),
        piece("a", logprobs={"content": []}),
        sse({"usage": {"completion_tokens": 1}, "choices": [{"index": 0, "text": "a"}]}),
        b'data: {"error": {"code": "aborted"}}\n\n',
        b'data: {"a": ' + b"[" * 100_000 + b"\n\n",
    ],
)
def test_first_tokens_that_are_not_shown(events: bytes) -> None:
    token = EarlyToken()
    assert token.feed(events + piece("b")) == b""
    assert not token.complete


def test_a_token_without_text_shows_nothing() -> None:
    """The first token ends the answer, or is a part of a character."""
    token = EarlyToken()
    assert token.feed(piece() + piece(finish="stop") + DONE) == b""
    assert token.complete


def test_a_first_token_that_is_held_up_is_shown_whole_or_not_at_all() -> None:
    """A client that reads slowly holds up what is sent, and the time for the prompt passes meanwhile."""

    async def check() -> None:
        sent: list[Any] = []
        reads = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)
            await reads.wait()

        async with group() as it:
            call = Call(b"POST", b"/", "/v1/chat/completions", [], b"{}", stream=True, one_answer=True)
            choice: Any = it.fleet.choose(Query("tiny"))
            answer: Any = SimpleNamespace(headers=[], status=200)
            for held in (True, False):
                relay, _ = Relay(it.fleet, it.state.metrics, call, Query("tiny"), send), sent.clear()
                relay._early_open = True
                before = asyncio.create_task(relay._show(b": wait\n\n")) if held else None
                await asyncio.sleep(0)
                late = asyncio.create_task(relay._show_early(choice, answer, PIECE))
                end = asyncio.create_task(relay._end(b""))
                await asyncio.sleep(0)
                if held:
                    late.cancel()
                await asyncio.sleep(0)
                assert relay._shown == (not held)
                assert len(sent) == 1, "the end waits"
                reads.set()
                await asyncio.gather(end, late, *([before] if before else []), return_exceptions=True)
                bodies = [one["body"] for one in sent if one["type"] == "http.response.body"]
                assert bodies == [b": wait\n\n" if held else PIECE, b""]
                reads.clear()
            choice.close()

    run(check())


def test_calls_follow_what_was_shown() -> None:
    """They are in the second stream alone, so nothing has to be compared."""
    for shown, rest in ((piece() + piece("a"), Continuation(piece() + piece("a"), passes_errors=True)),):
        assert rest.feed(shown.replace(b'"one"', b'"two"')) == b""
        call = piece(id="two", **TOOL)
        assert json.loads(rest.feed(call)[6:]) == json.loads(call.replace(b'"two"', b'"one"')[6:])
        error = sse({"error": {"code": "aborted"}}).replace(b'{"error": ', b'{"error":')
        assert rest.feed(error) == error
    with pytest.raises(Differs):
        Continuation(piece("ab")).feed(piece("a") + piece(**TOOL))
