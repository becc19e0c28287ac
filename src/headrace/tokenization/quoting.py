"""Keeps control tokens that a message only quotes from becoming control tokens.

A template puts the texts of messages beside its own markers, and the tokenizer would take both alike. So before a
render, each control token's text within the messages is put between two marks, noncharacters that no text may hold.
The rendered text still has them. When it is encoded, a text between marks is split after its first character, which
makes it ordinary tokens.

Marks around the text, and not within it, let a template go on to search and split the text. Some templates read a
model's own markers in its earlier answers, such as `</think>`: these stay as they are in an assistant's content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["SPLIT", "Quoting", "split_quoted", "without_marks"]

_OPEN, _CLOSE, SPLIT = "\ufdd0", "\ufdd1", "\ufdd2"
"""Around a quoted text, and where a text is split when it is encoded."""
_MARKS = re.compile("[\ufdd0-\ufdd2]")
_ESCAPED = re.compile(r"\\u(fdd[012])", re.IGNORECASE)
_QUOTED = re.compile("\ufdd0([^\ufdd0\ufdd1]*)\ufdd1")
_MARKER = re.compile(r"<\|.*\|>|<｜.*｜>", re.DOTALL)
_READS = r"""(?:{quoted}\s*(?:not\s+)?in\b|\b(?:split|partition|rpartition|find|replace)\(\s*{quoted})"""


class Quoting:
    """The control tokens of one vocabulary and template. Immutable."""

    def __init__(self, special: Iterable[str], added: Iterable[str], template: str) -> None:
        """`special` tokens are control tokens; others that were `added` are if their shape or the template says so."""
        named = {text for text in added if _MARKER.fullmatch(text) or (len(text) > 1 and text in template)}
        self._tokens = frozenset(text for text in {*special, *named} if len(text.strip()) > 1)
        self._lengths: dict[str, list[int]] = {}
        for text in self._tokens:
            self._lengths.setdefault(text[0], []).append(len(text))
        self._lengths = {first: sorted(set(lengths), reverse=True) for first, lengths in self._lengths.items()}
        starts = "".join(map(re.escape, self._lengths))
        self._start = re.compile(f"[{starts}]") if starts else None
        self._prefixes = frozenset(text[:end] for text in self._tokens for end in range(1, len(text)))
        self._longest = max(map(len, self._tokens), default=0)
        self._nested = frozenset(filter(self._holds_another, self._tokens))
        self._escaped = "ensure_ascii" in template
        self._read_by_template = frozenset(text for text in self._tokens if _reads(template, text))

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with marks around what they quote."""
        return [self._message(message) for message in messages]

    def value(self, value: Any) -> Any:
        """A JSON value with marks in its texts."""
        return self._value(value, frozenset())

    def rendered(self, text: str) -> str:
        """A rendered text with its marks as they are, if the template escapes what is not ASCII."""
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if self._escaped else text

    def _holds_another(self, text: str) -> bool:
        return any(text[at] in self._lengths and self._token_at(text, at) for at in range(1, len(text)))

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        own = self._read_by_template if message.get("role") == "assistant" else frozenset[str]()
        return {key: self._value(value, own if key == "content" else frozenset()) for key, value in message.items()}

    def _value(self, value: Any, unmarked: frozenset[str]) -> Any:
        if isinstance(value, str):
            return self._text(value, unmarked)
        if isinstance(value, Mapping):
            return {self._value(key, frozenset()): self._value(item, unmarked) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._value(item, unmarked) for item in value]
        return value

    def _text(self, text: str, unmarked: frozenset[str]) -> str:
        if self._start is None:
            return text
        text = _MARKS.sub("\ufffd", text)
        parts: list[str] = []
        done = at = 0
        while (found := self._start.search(text, at)) is not None:
            at = found.start()
            token = self._token_at(text, at)
            if token is None or token in unmarked:
                at += 1
                continue
            parts.append(text[done:at])
            parts += [SPLIT.join(token)] if token in self._nested else [_OPEN, token, _CLOSE]
            at += len(token)
            done = at
        return "".join([*parts, self._with_split_end(text[done:])])

    def _token_at(self, text: str, at: int) -> str | None:
        for length in self._lengths[text[at]]:
            if text[at : at + length] in self._tokens:
                return text[at : at + length]
        return None

    def _with_split_end(self, text: str) -> str:
        """An end that may become a control token with the text that the template puts after it is split."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start:] in self._prefixes:
                return text[: start + 1] + SPLIT + text[start + 1 :]
        return text


def _reads(template: str, text: str) -> bool:
    quoted = f"""['"]{re.escape(text)}['"]"""
    return text in template and re.search(_READS.format(quoted=quoted), template) is not None


def split_quoted(text: str) -> str | None:
    """A rendered text with SPLIT in everything that it quotes; None if it quotes nothing."""
    if _MARKS.search(text) is None:
        return None
    text = _QUOTED.sub(lambda found: SPLIT.join((found[1][:1], found[1][1:])), text)
    return text.replace(_OPEN, "").replace(_CLOSE, SPLIT)


def without_marks(text: str) -> str:
    """A rendered text as a reader sees it."""
    return _MARKS.sub("", text)
