"""The events of `GET /v1/engine/events` as JSON: what an engine's server sends and a router reads."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["EVENTS_PATH", "Change", "Changes", "Contents", "Load"]

EVENTS_PATH = "/v1/engine/events"


class Contents(Struct):
    """Replaces everything before."""

    epoch: int
    """Random for each process of an engine."""
    seq: int
    """Of the last changes that the contents include."""
    model: str
    path: str
    """The model's files, on the engine's machine."""
    layout: str
    """Begins every hash: engines with the same one name the same tokens alike."""
    block_size: int
    max_model_len: int
    max_num_seqs: int
    runs: list[tuple[str, str, list[str]]]
    """(hash before, tier, hashes of consecutive blocks), parents before children. Blocks of the tiers `host` and `disk`
    come in any order, without a hash before."""
    content: str = ""
    """Engines with the same one take each other's blocks if one block size is a multiple of the other; empty: only
    engines with the same layout do."""
    files: str = ""
    """The files that this engine reads prompts with (`tokenization.prompt_files`), as they were when it started; empty:
    not known."""


class Change(Struct):
    kind: str
    """`stored`, `removed` or `cleared`."""
    hashes: list[str]
    tier: str
    parent: str
    """The hash before the first block; empty for removals, and for the tiers `host` and `disk`."""


class Changes(Struct):
    """What has changed since the changes before."""

    epoch: int
    seq: int
    """Grows by one."""
    events: list[Change]


class Load(Struct):
    """What the engine does now."""

    running: int
    """Sequences."""
    waiting: int
    blocks_free: int = 0
    """Cached ones included."""
    blocks_total: int = 0
