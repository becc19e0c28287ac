"""A vocabulary, the same for both checkpoint formats: a backend that encodes, and the bytes of every token."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tokenizers import Tokenizer

__all__ = ["Vocab", "byte_level_bytes", "is_byte_token", "sentencepiece_bytes"]

_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


@dataclass(slots=True)
class Vocab:
    backend: Tokenizer
    """Encodes text without adding special tokens."""
    token_bytes: list[bytes]
    """By id: the bytes that a token adds to a text after its start."""
    special_ids: frozenset[int]
    bos: int | None
    ends: tuple[int, ...]
    """Ids that end a sequence, ascending."""
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    """Tokens that `add_special_tokens` puts around a text, with `prefix`."""
    strip_space: bool = False
    """The first space of a decoded text was added by the vocabulary, and is removed."""
    named_tokens: dict[str, str] = field(default_factory=dict)
    """Special tokens by name, such as `bos_token`, for chat templates."""


def byte_level_bytes(tokens: Iterable[str], whole: Collection[str]) -> list[bytes]:
    """Bytes of tokens in GPT-2's form, in which each character stands for a byte. Tokens in `whole` are plain text."""
    table = _byte_of_character()
    return [token.encode() if token in whole else _from_characters(token, table) for token in tokens]


def _from_characters(token: str, table: dict[int, str]) -> bytes:
    try:
        return token.translate(table).encode("latin-1")
    except UnicodeEncodeError:
        # A character that stands for no byte: a token that was added as plain text.
        return token.encode()


def _byte_of_character() -> dict[int, str]:
    """GPT-2 writes printable bytes as themselves and moves the others up, in order, from U+0100 (its encoder.py)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {0x100 + i: chr(byte) for i, byte in enumerate(others)}
    # These stand for no byte, but Latin-1 would encode them: make them fail there.
    return table | dict.fromkeys(others, "�")


def is_byte_token(token: str) -> bool:
    return _BYTE_TOKEN.fullmatch(token) is not None


def sentencepiece_bytes(tokens: Iterable[str], byte_ids: Collection[int], space: str) -> list[bytes]:
    """Bytes of tokens in SentencePiece's form: a mark for the space, and `<0x0A>` for single bytes."""
    return [
        bytes([int(token[3:5], 16)]) if i in byte_ids else token.replace(space, " ").encode()
        for i, token in enumerate(tokens)
    ]
