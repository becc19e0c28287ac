"""The ids that end a sequence according to a checkpoint's settings. The tokenizer adds more (`tokenization/`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.checkpoints.files import located
from headrace.settings import Settings

__all__ = ["gguf_end_ids", "hf_end_ids"]

_KEY = "tokenizer.ggml."
_NONE = (-1, 0xFFFFFFFF)
"""Values of files for "none"; the second is the first as an unsigned number."""


def hf_end_ids(settings: Iterable[tuple[Path, Mapping[str, Any]]]) -> frozenset[int]:
    """All ids of `eos_token_id` in these files (config.json, generation_config.json).

    A model that was trained from another often keeps the other's end in one of them. Raises CheckpointError if a value
    is not an id.
    """
    found: set[int] = set()
    for file, values in settings:
        with located(file):
            found.update(Settings(values).token_ids("eos_token_id"))
    return frozenset(found)


def gguf_end_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    """The ends of text, turn and message, and `eos_token_ids`, from a GGUF's metadata.

    Raises CheckpointError, without a file, if a value is not an id.
    """
    keys = [f"{_KEY}{name}" for name in ("eos_token_id", "eot_token_id", "eom_token_id", "eos_token_ids")]
    return frozenset(token for key in keys for token in Settings({key: _stated(metadata.get(key))}).token_ids(key))


def _stated(value: Any) -> Any:
    """The ids without the values for "none"."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [token for token in value if token not in _NONE]
    return None if isinstance(value, int) and value in _NONE else value
