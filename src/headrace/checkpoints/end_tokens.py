"""Ids that end a sequence, as a checkpoint's settings state them. The tokenizer knows more: names and texts (`tokenization/`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError

__all__ = ["gguf_end_ids", "hf_end_ids"]

_KEY = "tokenizer.ggml."
_NONE = 0xFFFFFFFF
"""-1 as an unsigned number: what files write for "none"."""


def hf_end_ids(settings: Iterable[tuple[Path, Mapping[str, Any]]]) -> frozenset[int]:
    """All that `eos_token_id` names in these files (config.json, generation_config.json): a model that was trained on from
    another often keeps the other's end in one of them. Raises CheckpointError for anything but ids."""
    return frozenset(token for file, values in settings for token in _ids(values.get("eos_token_id"), file))


def gguf_end_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    """The ends of text, turn and message, and `eos_token_ids`. Values of other types are no ends."""
    found: list[Any] = [metadata.get(f"{_KEY}{name}_token_id") for name in ("eos", "eot", "eom")]
    several = metadata.get(f"{_KEY}eos_token_ids")
    if several is not None and not isinstance(several, (str, int, float)):
        found += several.tolist() if hasattr(several, "tolist") else list(several)
    return frozenset(token for token in found if _is_id(token) and token != _NONE)


def _ids(value: Any, file: Path) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_id(token) for token in ids):
        raise CheckpointError(f"field 'eos_token_id' is {str(value)[:60]!r}: expected token ids", str(file))
    return ids


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
