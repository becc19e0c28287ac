"""What several runs and branches share: tokens of texts, and rendered conversations."""

from __future__ import annotations

import asyncio

import pytest

from headrace.lang.conversation import Conversation
from headrace.programs.rendering import Rendered
from headrace.programs.text_cache import TextCache
from headrace.tokenization.chat_inputs import ChatInputs


def test_a_text_is_encoded_once_for_each_kind() -> None:
    made: list[str] = []

    def encode(text: str) -> list[int]:
        made.append(text)
        return [*text.encode()]

    cache = TextCache(most=10)
    for _ in range(2):
        assert cache.ids("abc", False, lambda: encode("abc")) == (97, 98, 99)
    cache.ids("abc", True, lambda: encode("abc"))
    assert made == ["abc", "abc"]


def test_what_was_not_used_for_longest_goes_first() -> None:
    made: list[str] = []

    def ids(text: str) -> None:
        cache.ids(text, 0, lambda: made.append(text) or [])  # type: ignore[func-returns-value]

    cache = TextCache(most=8)
    for text in ("aaa", "bbb", "aaa", "ccc", "aaa", "bbb", "ddd" * 20_000, "ddd" * 20_000):
        ids(text)
    assert made == ["aaa", "bbb", "ccc", "bbb", "ddd" * 20_000, "ddd" * 20_000]


def test_the_same_conversation_is_rendered_once() -> None:
    asked: list[ChatInputs] = []

    async def render(inputs: ChatInputs) -> str:
        asked.append(inputs)
        await asyncio.sleep(0)
        return f"{inputs.messages}"

    async def run() -> None:
        rendered = Rendered(render)
        talk = Conversation().begin("user").add("Hi").end().begin("assistant")
        first, second = await asyncio.gather(rendered.text(talk), rendered.text(talk))
        assert first == second
        assert len(asked) == 1
        assert asked[0].add_generation_prompt
        await rendered.text(talk.add("So"))
        assert not asked[1].add_generation_prompt
        for at in range(40):
            await rendered.text(talk.add(f"{at}"))
        await rendered.text(talk)
        assert len(asked) == 43, "only the last ones are kept"

    asyncio.run(run())


def test_one_branch_that_is_cancelled_does_not_take_the_text_from_the_others() -> None:
    go = asyncio.Event()

    async def render(inputs: ChatInputs) -> str:
        await go.wait()
        return "text"

    async def run() -> None:
        rendered = Rendered(render)
        talk = Conversation().begin("user").add("Hi")
        first, second = (asyncio.ensure_future(rendered.text(talk)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        go.set()
        assert await second == "text"

    asyncio.run(run())


def test_a_failure_is_not_remembered() -> None:
    tries = 0

    async def render(inputs: ChatInputs) -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("killed")
        return "text"

    async def run() -> None:
        rendered = Rendered(render)
        with pytest.raises(ValueError, match="killed"):
            await rendered.text(Conversation().begin("user").add("Hi"))
        assert await rendered.text(Conversation().begin("user").add("Hi")) == "text"

    asyncio.run(run())
