"""Requests for the simulator: conversations that are drawn, or a file of recorded requests.

A file has a line of JSON for each request, in the form of Mooncake's published traces: `timestamp` (milliseconds),
`input_length`, `output_length` (tokens) and `hash_ids`, the names of the prompt's blocks of 512 tokens, equal where
everything up to their ends is equal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.errors import ConfigError

__all__ = ["Conversation", "Conversations", "Growing", "SimRequest", "Turn", "draw_conversations", "read_trace"]

_FILE_BLOCK = 512
Name = bytes


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request: its prompt as names of full blocks."""

    arrival: float
    """Milliseconds."""
    chain: Sequence[Name]
    tokens: int
    answer: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user adds to a conversation."""

    user: int
    """Tokens of the message."""
    answer: int
    """Tokens of the answer."""
    think: float
    """Milliseconds between the answer before and this message."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """How conversations are drawn. Lengths are exponential around their means."""

    count: int = 4000
    rate: float = 400.0
    """Conversations that begin in a second."""
    turns: int = 5
    """Mean."""
    systems: int = 200
    """System prompts; some are much more frequent than others (Zipf)."""
    system_tokens: int = 600
    user_tokens: int = 150
    answer_tokens: int = 120
    think: float = 4000.0
    """Milliseconds, mean."""
    block_size: int = 16
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Conversation:
    start: float
    system: int
    turns: list[Turn]


def draw_conversations(how: Conversations) -> list[Conversation]:
    """The same for the same seed."""
    draw = random.Random(how.seed)
    weights = [1 / (rank + 1) for rank in range(how.systems)]
    at, found = 0.0, []
    for _ in range(how.count):
        at += draw.expovariate(how.rate) * 1000
        turns = 1 + int(draw.expovariate(1 / max(how.turns - 1, 0.001)))
        (system,) = draw.choices(range(how.systems), weights)
        found.append(Conversation(at, system, [_turn(draw, how) for _ in range(turns)]))
    return found


def _turn(draw: random.Random, how: Conversations) -> Turn:
    def length(mean: int) -> int:
        return 1 + int(draw.expovariate(1 / mean))

    return Turn(length(how.user_tokens), length(how.answer_tokens), draw.expovariate(1 / how.think))


class Growing:
    """A conversation's prompt: it grows by each answer and message, and so do the names of its blocks."""

    def __init__(self, number: int, one: Conversation, how: Conversations) -> None:
        self._number, self._size = number, how.block_size
        self._system, self._system_tokens = one.system, how.system_tokens
        self.tokens = how.system_tokens

    def names(self) -> list[Name]:
        """Blocks within the system prompt are shared by all conversations that have it."""
        shared = self._system_tokens // self._size
        names = [b"s%d.%d" % (self._system, at) for at in range(min(shared, self.tokens // self._size))]
        names += [b"c%d.%d" % (self._number, at) for at in range(shared, self.tokens // self._size)]
        return names


def read_trace(path: Path) -> tuple[list[SimRequest], int]:
    """(The requests by time, the tokens of a block). Raises ConfigError with the number of a wrong line."""
    try:
        requests = list(_lines(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not requests:
        raise ConfigError(f"{path} has no requests: give a line of JSON for each")
    return sorted(requests, key=lambda one: one.arrival), _FILE_BLOCK


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def _lines(path: Path) -> Iterator[SimRequest]:
    decode = msgspec.json.Decoder(_Line).decode
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        full = one.input_length // _FILE_BLOCK
        yield SimRequest(
            one.timestamp, [b"%d" % name for name in one.hash_ids[:full]], one.input_length, one.output_length
        )
