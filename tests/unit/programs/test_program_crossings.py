"""The template's text between a generation and the next one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from headrace.errors import InvalidRequest
from headrace.lang.conversation import MOST_TEXT, Conversation, Tail
from headrace.programs.crossings import Crossings

TALK = Conversation().begin("user").add("Hi").end().begin("assistant")
PROMPT = "<user>Hi</><assistant>"


class Template:
    """Counts its renderings."""

    def __init__(self, strips: bool = False, refuses: bool = False, repeats: bool = False) -> None:
        self.strips, self.refuses, self.repeats = strips, refuses, repeats
        self.count = 0

    async def __call__(self, conversation: Conversation) -> str:
        self.count += 1
        await asyncio.sleep(0)
        if self.refuses:
            raise InvalidRequest("no such role")
        texts = [f"<{role}>{text.strip() if self.strips else text}</>" for role, text in conversation.messages]
        if self.repeats:
            texts.insert(0, f"{len(conversation.messages)} messages")
        return "".join(texts) + f"<{conversation.role}>" + conversation.text


def ask(crossings: Crossings, *tails: Tail) -> list[str | None]:
    async def run() -> list[str | None]:
        return [await crossings.text(TALK, PROMPT, tail) for tail in tails]

    return asyncio.run(run())


def test_one_rendering_serves_all_texts() -> None:
    template = Template()
    found = ask(
        Crossings(template),
        Tail(".", (("user", "a"),), "assistant", "So"),
        Tail("!", (("user", "other words"),), "assistant", "Then"),
        Tail(".", (("user", "a"), ("system", "b")), "assistant", "So"),
    )
    assert found == [
        ".</><user>a</><assistant>So",
        "!</><user>other words</><assistant>Then",
        ".</><user>a</><system>b</><assistant>So",
    ]
    assert template.count == 2


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        (Tail("", (), "assistant"), "</><assistant>"),
        (Tail("", (("user", ""),), "assistant"), "</><user></><assistant>"),
        (Tail("", (("user", "a"), ("user", "")), "assistant", "b"), "</><user>a</><user></><assistant>b"),
    ],
)
def test_texts_may_be_missing(tail: Tail, text: str) -> None:
    assert ask(Crossings(Template()), tail) == [text]


@pytest.mark.parametrize("template", [Template(refuses=True), Template(repeats=True)])
def test_what_a_template_writes_in_another_way_is_not_foreseen(template: Template) -> None:
    tail = Tail(".", (("user", "a"),), "assistant")
    assert ask(Crossings(template), tail, tail) == [None, None]
    assert template.count == 1


def test_a_text_without_messages_has_no_crossing() -> None:
    """A checked plan can exchange the states that a loop carries: text stands where a message would."""
    template = Template()
    crossings, tail = Crossings(template), Tail(".", (("user", "a"),), "assistant")
    assert asyncio.run(crossings.text(Conversation().add("Hi"), "Hi", tail)) is None
    assert template.count == 0


def test_a_conversation_near_its_limit_is_not_foreseen() -> None:
    talk = replace(TALK, size=MOST_TEXT - 10)
    assert asyncio.run(Crossings(Template()).text(talk, PROMPT, Tail(".", (("user", "a"),), "assistant"))) is None


def test_guesses_that_are_wrong_more_often_than_right_end() -> None:
    crossings, tail = Crossings(Template(strips=True)), Tail(" ", (("user", "a "),), "assistant")
    shape = crossings.shape(tail)
    assert ask(crossings, tail) == [" </><user>a </><assistant>"]
    crossings.judge(shape, True)
    crossings.judge(shape, False)
    assert ask(crossings, tail) != [None]
    crossings.judge(shape, False)
    assert ask(crossings, tail) == [None]
    assert ask(crossings, Tail(" ", (), "assistant")) == [" </><assistant>"]


def test_few_shapes_are_remembered() -> None:
    template = Template(strips=True)
    crossings = Crossings(template)
    tails = [Tail(".", (("user", "a"),) * count, "assistant") for count in range(257)]
    ask(crossings, *tails[:256])
    crossings.judge(crossings.shape(tails[1]), False)
    assert ask(crossings, tails[0], tails[1]) == [".</><assistant>", None]
    assert template.count == 256, "all of them are remembered"
    assert None not in ask(crossings, tails[256], tails[2])
    assert template.count == 258, "the least recently used one has gone"
    ask(crossings, tails[0], tails[1], tails[256])
    assert template.count == 258
    ask(crossings, *(Tail("", (("user", "b"),) * count, "assistant") for count in range(256)))
    assert ask(crossings, tails[1]) == [".</><user>a</><assistant>"], "with its wrong guesses"
    crossings.judge(crossings.shape(tails[5]), False)
    assert None not in ask(crossings, tails[5]), "a shape that has gone is not judged"
