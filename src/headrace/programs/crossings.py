"""The template's own text between a generation and the next one, where messages end and begin between them.

It is found once for each sequence of roles, by a rendering with markers in the place of all texts, and serves whatever
texts stand there later. A template may look at the texts, or write a message in another way once others follow it. So
what is put together here is a guess; the executor compares it with the prompt that it renders once the generation has
ended. A sequence of roles whose guesses are wrong more often than right is not guessed again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError
from headrace.lang.conversation import Conversation, Tail

__all__ = ["Crossings", "Shape"]

Shape = tuple[bool, tuple[tuple[str, bool], ...], bool]
"""Which texts there are: behind the generation, in the messages between (with their roles), and before the next one."""
_MOST = 256
"""Shapes that are remembered: those that were asked for last."""
_TRUST = 8
"""Wrong guesses in a row that end the guesses of a shape which has always been right."""


def _marker(number: int) -> str:
    """A word that no text is likely to have, and that no template changes."""
    return f"Zq{number}vkjx"


class Crossings:
    """The crossings of one template. One event loop uses it."""

    def __init__(self, render: Callable[[Conversation], Awaitable[str]]) -> None:
        self._render = render
        self._pieces: dict[Shape, tuple[str, ...] | None] = {}
        """The least recently used shape first."""
        self._wrong: dict[Shape, int] = {}
        """How many more guesses were wrong than right."""

    @staticmethod
    def shape(tail: Tail) -> Shape:
        return bool(tail.text), tuple((role, bool(text)) for role, text in tail.turns or ()), bool(tail.opening)

    async def text(self, conversation: Conversation, rendered: str, tail: Tail) -> str | None:
        """The text behind a generation, up to where the next one begins; None if it cannot be foreseen. `conversation`:
        one that is about to generate in the open assistant's message, and its `rendered` text."""
        if conversation.role is None:
            return None
        shape = self.shape(tail)
        if shape in self._pieces:
            pieces = self._pieces.pop(shape)
        else:
            pieces = await self._find(conversation, rendered, tail)
        self._remember(shape, pieces)
        if pieces is None or self._wrong.get(shape, 0) > 0:
            return None
        texts = [text for text in _texts(tail) if text]
        return "".join(one for pair in zip(["", *texts], pieces, strict=True) for one in pair)

    def judge(self, shape: Shape, right: bool) -> None:
        """Note whether a guess was what came, if its shape is remembered still."""
        if shape not in self._pieces:
            return
        self._wrong[shape] = max(-_TRUST, self._wrong.get(shape, 0) + (-1 if right else 1))

    def _remember(self, shape: Shape, pieces: tuple[str, ...] | None) -> None:
        """As the one used last. The least recently used shape is forgotten if there are too many."""
        self._pieces.pop(shape, None)  # Another request may have found it meanwhile.
        self._pieces[shape] = pieces
        if len(self._pieces) > _MOST:
            oldest = next(iter(self._pieces))
            del self._pieces[oldest]
            self._wrong.pop(oldest, None)

    async def _find(self, conversation: Conversation, rendered: str, tail: Tail) -> tuple[str, ...] | None:
        """The pieces of the template between the texts: one before each, and one behind the last."""
        numbers = iter(range(1, 1000))

        def mark(text: str) -> str:
            return _marker(next(numbers)) if text else ""

        markers = [_marker(0), *(mark(text) for text in _texts(tail))]
        generated, behind, *between, opening = markers
        try:
            made = conversation.add(generated + behind).end()
            for (role, _), text in zip(tail.turns or (), between, strict=True):
                made = made.begin(role).add(text).end()
            text = await self._render(made.begin("assistant").add(opening))
        except HeadraceError:
            return None  # The prompt itself may be refused, too; that is reported when it is asked for.
        if not text.startswith(rendered + generated):
            return None
        rest, pieces = text[len(rendered) + len(generated) :], list[str]()
        for one in filter(None, markers[1:]):
            before, found, rest = rest.partition(one)
            if not found:
                return None
            pieces.append(before)
        return (*pieces, rest)


def _texts(tail: Tail) -> list[str]:
    return [tail.text, *(text for _, text in tail.turns or ()), tail.opening]
