"""Chat templates of conversations, each rendered once: the branches of a fork often begin with the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.lang.conversation import Conversation
from headrace.tokenization.chat_inputs import ChatInputs

__all__ = ["Rendered"]

_KEPT = 16
_LONGEST = 1 << 16
"""Characters of a conversation that is remembered."""

_Key = tuple[tuple[tuple[str, str], ...], str | None, str]


class Rendered:
    """The texts of the last conversations, as the model sees them. One event loop uses it."""

    def __init__(self, render: Callable[[ChatInputs], Awaitable[str]]) -> None:
        self._render = render
        self._kept: dict[_Key, asyncio.Future[str]] = {}

    async def alone(self, conversation: Conversation) -> str:
        """A text that is not remembered."""
        going_on = bool(conversation.text)
        return await self._render(ChatInputs(conversation.as_messages(), None, not going_on, going_on))

    async def text(self, conversation: Conversation) -> str:
        if conversation.size > _LONGEST:
            return await self.alone(conversation)
        key = conversation.messages, conversation.role, conversation.text
        made = self._kept.pop(key, None)
        if made is None:
            made = asyncio.ensure_future(self.alone(conversation))
            made.add_done_callback(_seen)
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = made
        try:
            # One that waits may be cancelled; the others still need the text.
            return await asyncio.shield(made)
        except Exception:
            if self._kept.get(key) is made:
                del self._kept[key]
            raise


def _seen(made: asyncio.Future[str]) -> None:
    """Read the error: perhaps nobody waits for it any more."""
    if not made.cancelled():
        made.exception()
