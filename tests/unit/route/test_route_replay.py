"""A stream that goes on at another engine: what the client gets is one answer, or ends with an error."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from route_harness import Routed, routed, until
from stub_engine import DONE, LAYOUT, Stub, contents
from test_route_relay import run

from headrace.route.stream_replay import Continuation, Differs, EngineFailed, ShownStream
from headrace.route.upstream import UpstreamLost


def sse(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def piece(text: str | None = None, index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    delta = {"role": "assistant"} if text is None else {"content": text}
    return sse(
        {"id": more.pop("id", "one"), "choices": [{"index": index, "delta": delta | more, "finish_reason": finish}]}
    )


def texts(data: bytes) -> dict[int, str]:
    found: dict[int, str] = {}
    for block in data.split(b"\n\n"):
        if block.startswith(b"data: {"):
            for choice in json.loads(block[6:])["choices"]:
                index = choice["index"]
                found[index] = found.get(index, "") + (choice["delta"].get("content") or "")
    return found


def stream(draw: random.Random, answers: list[str], name: str) -> bytes:
    """The same answers in other pieces each time."""
    left, found = dict(enumerate(answers)), b"".join(piece(index=at, id=name) for at in range(len(answers)))
    while left:
        index = draw.choice(list(left))
        count = draw.randrange(0, 6)
        found += piece(left[index][:count], index, id=name)
        left[index] = left[index][count:]
        if not left[index]:
            found += piece("", index, "stop", id=name)
            del left[index]
    return found + sse({"id": name, "choices": [], "usage": {"completion_tokens": 9}}) + DONE


@pytest.mark.parametrize("seed", range(40))
def test_what_was_shown_and_what_follows_are_the_answer(seed: int) -> None:
    draw = random.Random(seed)
    answers = [
        "".join(draw.choice("abü \n") for _ in range(draw.randrange(1, 40))) for _ in range(draw.randrange(1, 4))
    ]
    first, second = stream(draw, answers, "one"), stream(draw, answers, "two")
    kept = ShownStream()
    shown, at, stop = b"", 0, draw.randrange(len(first))
    while at < stop:
        count = draw.randrange(1, 120)
        shown += kept.take(first[at : min(at + count, stop)])
        at += count
    rest, after = kept.continuation(), b""
    for at in range(0, len(second), 50):
        after += rest.feed(second[at : at + 50])
    whole = shown + after
    assert texts(whole) == dict(enumerate(answers))
    assert whole.count(b'"finish_reason": "stop"') + whole.count(b'"finish_reason":"stop"') == len(answers)
    assert whole.endswith(DONE)
    assert b"two" not in after if shown else True


def test_another_answer_is_not_joined() -> None:
    rest = Continuation(piece("the sea"))
    assert rest.feed(piece("the s")) == b""
    with pytest.raises(Differs):
        rest.feed(piece("ky"))
    rest = Continuation(piece("the sea"))
    with pytest.raises(Differs):
        rest.feed(piece("the", finish="length"))


def test_text_that_overtakes_what_was_shown_is_not_joined() -> None:
    shown = piece("", reasoning_content="let me think") + piece("the sea")
    rest = Continuation(shown)
    with pytest.raises(Differs):
        rest.feed(piece("the sea is"))
    rest = Continuation(shown)
    assert rest.feed(piece("", reasoning_content="let me ")) == b""
    assert rest.feed(piece("the sea", reasoning_content="think")) == b""
    assert texts(rest.feed(piece(" is"))) == {0: " is"}


def test_another_choice_may_be_ahead() -> None:
    rest = Continuation(piece("one", 0) + piece("two", 1))
    assert texts(rest.feed(piece("one and more", 0))) == {0: " and more"}


def test_nothing_follows_the_end_of_a_choice() -> None:
    rest = Continuation(piece("the sea", finish="stop") + piece("a", 1))
    assert rest.feed(piece("the sea")) == b""
    with pytest.raises(Differs):
        rest.feed(piece(" is"))


def test_a_choice_that_was_never_shown_begins_with_its_role() -> None:
    rest = Continuation(piece() + piece("a"))
    assert rest.feed(piece(index=0)) == b""
    begins = json.loads(rest.feed(piece(index=1))[6:])["choices"]
    assert [(one["index"], one["delta"]) for one in begins] == [(1, {"role": "assistant"})]
    assert rest.feed(piece(index=1)) == b"", "once"


@pytest.mark.parametrize("more", [{"tool_calls": [{"index": 0}]}, {"logprobs": {"content": []}}, {"token_ids": [1]}])
def test_what_cannot_be_compared_is_not_joined(more: dict[str, Any]) -> None:
    with pytest.raises(Differs):
        Continuation(piece("a", **more))
    with pytest.raises(Differs):
        Continuation(piece("a")).feed(piece("a", **more))


def test_a_long_stream_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.route.stream_replay._MOST", 100)
    kept = ShownStream()
    for _ in range(3):
        assert kept.take(piece("some words")) == piece("some words")
    with pytest.raises(Differs):
        kept.continuation()


def test_errors_of_engines_and_of_requests() -> None:
    def error(code: str) -> bytes:
        return sse({"error": {"message": "m", "code": code}}).replace(b'{"error": ', b'{"error":')

    kept = ShownStream()
    both = piece("a") + error("engine_unavailable")
    assert kept.take(both) == piece("a"), "what came before is shown"
    with pytest.raises(EngineFailed) as caught:
        kept.rest()
    assert caught.value.error == error("engine_unavailable")
    with pytest.raises(EngineFailed):
        ShownStream().take(error("shutting_down"))
    assert ShownStream().take(error("nothing_to_sample")) == error("nothing_to_sample")
    with pytest.raises(UpstreamLost):
        Continuation(piece("a")).feed(error("engine_unavailable"))


@asynccontextmanager
async def alike(*stubs: Stub) -> AsyncIterator[Routed]:
    for stub in stubs:
        stub.events = asyncio.Queue()
        stub.events.put_nowait(contents())
    async with routed(stubs) as it:
        await until(lambda: all(one.facts and one.facts.layout == LAYOUT for one in it.fleet.replicas))
        # The first one gets the request.
        it.fleet.replicas[1].load.elsewhere = 4
        yield it


def content(text: str) -> str:
    return "".join(texts(text.encode()).values())


@pytest.mark.parametrize("given", [{"seed": 3}, {"temperature": 0}])
def test_a_stream_goes_on_where_it_stopped(given: dict[str, Any]) -> None:
    async def check() -> None:
        async with alike(Stub(mode="cut", tokens=3), Stub(tokens=7)) as it:
            reply = await it.ask(stream=True, **given)
            assert content(reply.text) == "x" * 7
            assert "error" not in reply.text
            assert reply.text.endswith(DONE.decode())
            assert it.stubs[0].posts[0].body == it.stubs[1].posts[0].body
            figures = it.figures()
            assert figures["headrace_router_continued_total"] == 1
            assert figures["headrace_router_broken_total"] == 0
            it.fleet.replicas[1].load.elsewhere = 0
            await until(
                lambda: all(one.load.tickets == one.load.running == one.load.queued == 0 for one in it.fleet.replicas)
            )

    run(check())


@pytest.mark.parametrize("second", ["cut", "close", "busy", "fault"])
def test_a_second_loss_is_one_clear_error(second: str) -> None:
    async def check() -> None:
        async with alike(Stub(mode="cut", tokens=3), Stub(mode=second, tokens=2), Stub()) as it:
            it.fleet.replicas[2].held_back = True
            text = (await it.ask(stream=True, seed=3)).text
            *before, error, done = text.split("\n\n")[:-1]
            assert content("\n\n".join([*before, ""])) == "xxx"
            assert json.loads(error[6:])["error"]["code"] == "engine_lost"
            assert done == "data: [DONE]"
            assert not it.stubs[2].posts

    run(check())


@pytest.mark.parametrize("why", ["drawn", "another layout", "alone"])
def test_a_stream_that_has_no_equal_ends_with_an_error(why: str) -> None:
    async def check() -> None:
        async with alike(Stub(mode="cut", tokens=3), Stub(tokens=7)) as it:
            if why == "alone":
                it.fleet.replicas[1].held_back = True
            elif why == "another layout":
                assert it.stubs[1].events is not None
                it.stubs[1].events.put_nowait(contents(epoch=9).replace(LAYOUT.hex().encode(), b"ab" * 16))
                await until(lambda: it.fleet.replicas[1].facts.layout != LAYOUT)  # type: ignore[union-attr]
            text = (await it.ask(stream=True, **({} if why == "drawn" else {"seed": 3}))).text
            assert '"engine_lost"' in text
            assert not it.stubs[1].posts

    run(check())
