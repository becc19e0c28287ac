"""Logprobs in the forms of the two APIs. All numbers are finite, since JSON has no NaN and no infinity."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from headrace.client.api import LogprobEntry
from headrace.server.replies import ChatAlternative, ChatLogprob, ChatLogprobs, PromptLogprobs, TextLogprobs

__all__ = ["TextOffsets", "chat_logprobs", "prompt_logprobs", "text_logprobs"]

FLOOR = -9999.0
"""Stands for the logarithm of a probability of zero."""


def _finite(logprob: float) -> float:
    # A comparison with NaN is false, so it falls to the floor too.
    return logprob if logprob > FLOOR else FLOOR


def chat_logprobs(entries: Sequence[LogprobEntry], count: int) -> ChatLogprobs:
    """`count` alternatives at each position."""
    return ChatLogprobs([_chat_entry(entry, count) for entry in entries])


def _chat_entry(entry: LogprobEntry, count: int) -> ChatLogprob:
    top = [ChatAlternative(text, _finite(value), list(raw)) for _, text, raw, value in entry.top[:count]]
    own = 0.0 if entry.logprob is None else _finite(entry.logprob)
    return ChatLogprob(entry.token, own, list(entry.raw), top)


class TextOffsets:
    """Start of each token in a choice's text, counted in complete characters of the bytes so far."""

    def __init__(self) -> None:
        self._chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, raw: bytes) -> int:
        at = self._chars
        self._chars += len(self._decoder.decode(raw))
        return at


def text_logprobs(entries: Sequence[LogprobEntry], count: int, offsets: TextOffsets) -> TextLogprobs:
    """The form of completions. As in OpenAI's API, `top_logprobs` includes the token itself, even if it is not among
    the `count` most likely."""
    return TextLogprobs(
        tokens=[entry.token for entry in entries],
        token_logprobs=[None if entry.logprob is None else _finite(entry.logprob) for entry in entries],
        top_logprobs=[_text_top(entry, count) for entry in entries],
        text_offset=[offsets.next(entry.raw) for entry in entries],
        bytes=[list(entry.raw) for entry in entries],
    )


def _text_top(entry: LogprobEntry, count: int) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    named: dict[str, float] = {}
    ids = {entry.token_id}
    candidates = [(i, text, raw, value) for i, text, raw, value in entry.top[:count] if i != entry.token_id]
    named[entry.token] = _finite(entry.logprob)
    for token_id, text, raw, value in candidates:
        if token_id not in ids:
            ids.add(token_id)
            # Two tokens may have the same text, mostly parts of characters: the second is named by its bytes.
            named["bytes:" + "".join(f"\\x{b:02x}" for b in raw) if text in named else text] = _finite(value)
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def prompt_logprobs(entries: Sequence[LogprobEntry], count: int) -> PromptLogprobs:
    """For each prompt token a map from token id to its logprob, rank and text; null for the first."""
    return [_prompt_entry(entry, count) for entry in entries]


def _prompt_entry(entry: LogprobEntry, count: int) -> dict[str, Any] | None:
    if entry.logprob is None:
        return None
    listed = {
        str(token_id): {"logprob": _finite(value), "rank": rank, "decoded_token": text}
        for rank, (token_id, text, _, value) in enumerate(entry.top[:count], 1)
    }
    own = {"logprob": _finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.token}
    return {**listed, str(entry.token_id): own}
