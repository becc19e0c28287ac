"""The messages between a client and its engine: msgspec structs in MessagePack. Pickle is never used.

The client sends commands, the engine sends events. Within one process the same objects are passed without encoding.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headrace import errors
from headrace.core.cache_events import DEVICE, CacheBatch, CacheEvent, CacheRun, CacheSnapshot
from headrace.embedding_facts import NO_EMBEDDINGS, EmbeddingFacts
from headrace.engine.stats import EngineStats, EngineView
from headrace.errors import CheckpointError, EngineDead, HeadraceError, InvalidRequest, Overloaded
from headrace.types import Delta, Request

__all__ = [
    "DEVICE",
    "Abort",
    "Add",
    "AddAll",
    "Beat",
    "CacheBatch",
    "CacheChanged",
    "CacheContents",
    "CacheEvent",
    "CacheFlushed",
    "CacheRun",
    "CacheSnapshot",
    "Command",
    "Deltas",
    "EngineInfo",
    "Event",
    "Failed",
    "Finish",
    "FlushCache",
    "GetStats",
    "GetView",
    "Loading",
    "Park",
    "Profiled",
    "Ready",
    "Refused",
    "Shutdown",
    "StartProfile",
    "StatsReply",
    "StopProfile",
    "TransferInfo",
    "ViewReply",
    "WatchCache",
    "WireError",
    "as_ours",
    "decode_command",
    "decode_event",
    "encode",
    "from_wire",
    "to_wire",
]


_MOST_RIVALS = 64
"""Each needs a row of logits."""


class WireMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages: an array whose first entry is the name of the type."""


class WireError(WireMessage, frozen=True):
    """An error of `errors.py` as a message."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    path: str | None = None
    tensor: str | None = None


class TransferInfo(WireMessage, frozen=True):
    """How other engines fetch blocks from this one."""

    connector: str
    address: str
    epoch: int
    """Number of this start of the engine."""
    layout_id: bytes
    """Part of the blocks' names (`transfer/chain.py`)."""
    lease: float
    """Seconds for which a block stays where it can be fetched."""
    content_id: bytes = b""
    """Engines with the same one take each other's blocks, converted if their layouts differ; empty: only engines of the
    same layout do."""


class EngineInfo(WireMessage, frozen=True):
    """The values that the engine resolved while it loaded."""

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
    layout_id: bytes = b""
    """Equal for engines whose blocks hold the same bytes for the same tokens."""
    reasons: tuple[str, ...] = ()
    """The reason of each automatic choice."""
    embedding: EmbeddingFacts = NO_EMBEDDINGS
    transfer: TransferInfo | None = None
    """None: it exchanges no blocks with others."""
    max_num_batched_tokens: int = 0
    sampling_defaults: dict[str, int | float] = {}
    """Sampling parameters that the checkpoint recommends, by name."""
    memory_bytes: int = 0
    """What the engine takes, with its whole KV cache, in the device's memory or the host's; 0: unknown."""
    device_bytes: int = 0
    """The device's own memory; 0 on a platform of the host."""
    names_tokens: bool = True
    """Requests may ask for the logprobs of tokens that they name."""

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens. Block 0 is padding."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def most_rivals(self) -> int:
        """The most rivals of a request: their rows must fit in a step in which all other sequences decode."""
        return max(0, min(_MOST_RIVALS, self.max_num_batched_tokens - self.max_num_seqs - 1))


class Add(WireMessage, frozen=True):
    """Adds the sequences of one request, which only differ in id and seed: all or none are admitted."""

    request: Request
    children: list[tuple[str, int]]
    """(id, seed) of each; they replace the request's own."""


class AddAll(WireMessage, frozen=True):
    """Several requests, which enter the same step if it has room."""

    adds: list[Add]


class Abort(WireMessage, frozen=True):
    """Ends sequences and closes open ones, by exact id; unknown ids are ignored. No more deltas are sent for them."""

    ids: list[str]


class Finish(WireMessage, frozen=True):
    """Ends a sequence normally, because a stop string was found. No more deltas are sent for it; it stays open if its
    request wants that."""

    id: str


class Park(WireMessage, frozen=True):
    """Lets an open sequence give its slot back, and pins its blocks until it is aborted."""

    id: str


class GetStats(WireMessage, frozen=True):
    number: int


class GetView(WireMessage, frozen=True):
    number: int


class WatchCache(WireMessage, frozen=True):
    """Starts to send the changes of the prefix cache, behind its contents, or ends it. May be repeated: the contents
    are sent again."""

    on: bool
    tokens: bool = False
    """Stored blocks come with their tokens."""


class FlushCache(WireMessage, frozen=True):
    """Empties the prefix cache. Sequences that run keep their blocks."""

    number: int


class StartProfile(WireMessage, frozen=True):
    """Begins a profile, which ends by itself after so many steps."""

    number: int
    folder: str
    steps: int


class StopProfile(WireMessage, frozen=True):
    """Ends it, and asks for its file."""

    number: int


class Shutdown(WireMessage, frozen=True):
    """Ends the engine at once."""


class Loading(WireMessage, frozen=True):
    stage: str
    done: float
    """0 to 1."""


class Ready(WireMessage, frozen=True):
    info: EngineInfo


class Failed(WireMessage, frozen=True):
    """The engine cannot load, or its device is lost. This is the last event."""

    error: WireError


class Deltas(WireMessage, frozen=True):
    """The deltas of one step."""

    deltas: list[Delta]


class Refused(WireMessage, frozen=True):
    """An Add that was not admitted; no sequence of it exists."""

    ids: list[str]
    error: WireError


class StatsReply(WireMessage, frozen=True):
    number: int
    stats: EngineStats


class ViewReply(WireMessage, frozen=True):
    number: int
    view: EngineView


class CacheContents(WireMessage, frozen=True):
    snapshot: CacheSnapshot


class CacheChanged(WireMessage, frozen=True):
    batch: CacheBatch


class CacheFlushed(WireMessage, frozen=True):
    number: int
    blocks: int
    """Blocks that are free now and were cached."""


class Profiled(WireMessage, frozen=True):
    """Answers StartProfile and StopProfile."""

    number: int
    file: str = ""
    """The trace, which is complete; empty: the profile has begun."""
    steps: int = 0
    error: WireError | None = None


class Beat(WireMessage, frozen=True):
    """A heartbeat. A separate thread sends it every half second, also while a step runs or the model loads."""

    stalled: float
    """Seconds since the loop last made progress; 0 when it is idle."""


Command = (
    Add
    | AddAll
    | Abort
    | Finish
    | Park
    | GetStats
    | GetView
    | WatchCache
    | FlushCache
    | StartProfile
    | StopProfile
    | Shutdown
)
Event = (
    Loading
    | Ready
    | Failed
    | Deltas
    | Refused
    | StatsReply
    | ViewReply
    | CacheContents
    | CacheChanged
    | CacheFlushed
    | Profiled
    | Beat
)


def _plain(value: Any) -> Any:
    """Convert a numpy scalar to a Python number."""
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
    """OutOfMemory for a library's error about a limit of memory or threads; any other error unchanged."""
    if isinstance(error, HeadraceError) or not (isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))):
        return error
    return errors.OutOfMemory(
        f"{type(error).__name__}: {error}: a limit of this process's memory or threads was reached; raise it (ulimit "
        "-v, ulimit -u, a container's memory), or choose a smaller model or less --kv-memory"
    )


def to_wire(error: Exception) -> WireError:
    """An error as a message. An error that is not in `errors.py` becomes EngineDead with its type in the text."""
    error = as_ours(error)
    if not isinstance(error, HeadraceError):
        return WireError("EngineDead", f"{type(error).__name__}: {error}")
    # A plugin may raise its own class: the client receives the nearest base class of `errors.py`.
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
    """The error of a message, with the same class and fields."""
    kind = getattr(errors, wire.kind, EngineDead)
    if issubclass(kind, Overloaded):
        return kind(wire.message, 1.0 if wire.retry_after is None else wire.retry_after)
    error: HeadraceError = kind(wire.message)
    if isinstance(error, InvalidRequest):
        error.param, error.code = wire.param, wire.code
    if isinstance(error, CheckpointError):
        error.path, error.tensor = wire.path, wire.tensor
    return error
