"""The messages between a client and its engine: msgspec structs in MessagePack. There is no pickle anywhere.

The client sends commands, the engine events. In one process the same objects pass without being encoded.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headrace import errors
from headrace.engine.stats import EngineStats
from headrace.errors import CheckpointError, EngineDead, HeadraceError, InvalidRequest, Overloaded
from headrace.types import Delta, Request

__all__ = [
    "Abort",
    "Add",
    "Beat",
    "Command",
    "Deltas",
    "EngineInfo",
    "Event",
    "Failed",
    "Finish",
    "GetStats",
    "Loading",
    "Ready",
    "Refused",
    "Shutdown",
    "StatsReply",
    "WireError",
    "as_ours",
    "decode_command",
    "decode_event",
    "encode",
    "from_wire",
    "to_wire",
]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all: an array whose first entry is the type's name."""


class WireError(Message, frozen=True):
    """An error of `errors.py` on its way."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    path: str | None = None
    tensor: str | None = None


class EngineInfo(Message, frozen=True):
    """What the engine resolved while it loaded."""

    path: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    platform: str
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    reasons: tuple[str, ...] = ()
    """Why each open choice was made as it was."""

    @property
    def kv_tokens(self) -> int:
        """Token places of the KV cache. Block 0 is padding."""
        return (self.num_blocks - 1) * self.block_size


class Add(Message, frozen=True):
    """Sequences of one request, which differ in id and seed alone: all are admitted or none."""

    request: Request
    children: list[tuple[str, int]]
    """(id, seed) of each; they replace the request's own."""


class Abort(Message, frozen=True):
    """End sequences by exact id; unknown ones are ignored. Nothing more is sent for them."""

    ids: list[str]


class Finish(Message, frozen=True):
    """A stop string was found: the sequence ended well. Nothing more is sent for it."""

    id: str


class GetStats(Message, frozen=True):
    number: int


class Shutdown(Message, frozen=True):
    """End the engine at once."""


class Loading(Message, frozen=True):
    stage: str
    done: float
    """0 to 1."""


class Ready(Message, frozen=True):
    info: EngineInfo


class Failed(Message, frozen=True):
    """The engine cannot load, or its device is lost. Nothing follows."""

    error: WireError


class Deltas(Message, frozen=True):
    """What one step brought."""

    deltas: list[Delta]


class Refused(Message, frozen=True):
    """An Add that was not admitted; no sequence of it exists."""

    ids: list[str]
    error: WireError


class StatsReply(Message, frozen=True):
    number: int
    stats: EngineStats


class Beat(Message, frozen=True):
    """Sent every half second by a thread of its own, also while a step runs or the model loads."""

    stalled: float
    """Seconds since the loop last made progress with work to do; 0 when it is idle."""


Command = Add | Abort | Finish | GetStats | Shutdown
Event = Loading | Ready | Failed | Deltas | Refused | StatsReply | Beat


def _plain(value: Any) -> Any:
    """numpy scalars as Python's."""
    return value.item()


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Command | Event) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command:
    """Raises msgspec.DecodeError for what is not a command."""
    return _commands.decode(data)


def decode_event(data: bytes) -> Event:
    """Raises msgspec.DecodeError for what is not an event."""
    return _events.decode(data)


_NO_MEMORY = re.compile("(can't|cannot) allocate memory|failed to map segment|can't start new thread", re.IGNORECASE)


def as_ours(error: Exception) -> Exception:
    """A library's error for memory or threads that a limit refuses, as OutOfMemory; any other error as it is."""
    if isinstance(error, HeadraceError) or not (isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))):
        return error
    return errors.OutOfMemory(
        f"{type(error).__name__}: {error}: a limit of this process's memory or threads is reached; raise it (ulimit -v, "
        "ulimit -u, a container's memory), or choose a smaller model or less --kv-memory"
    )


def to_wire(error: Exception) -> WireError:
    """What is not of `errors.py` travels as EngineDead with its type in the message."""
    error = as_ours(error)
    if not isinstance(error, HeadraceError):
        return WireError("EngineDead", f"{type(error).__name__}: {error}")
    # A plugin may raise a class of its own: it arrives as the nearest of ours.
    kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in errors.__all__)
    return WireError(
        kind,
        str(error),
        getattr(error, "param", None),
        getattr(error, "code", None),
        getattr(error, "retry_after", None),
        getattr(error, "path", None),
        getattr(error, "tensor", None),
    )


def from_wire(wire: WireError) -> HeadraceError:
    """The error again, of the same class with the same fields."""
    kind = getattr(errors, wire.kind, EngineDead)
    if issubclass(kind, Overloaded):
        return kind(wire.message, 1.0 if wire.retry_after is None else wire.retry_after)
    error: HeadraceError = kind(wire.message)
    if isinstance(error, InvalidRequest):
        error.param, error.code = wire.param, wire.code
    if isinstance(error, CheckpointError):
        error.path, error.tensor = wire.path, wire.tensor
    return error
