"""Limits how much a tokenizer's normaliser may grow a text: nested replacements can write terabytes for one letter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from headrace.errors import CheckpointError

__all__ = ["check_growth"]

_MOST = 1024
"""Output characters per input character, at most. Published tokenizers stay below ten."""


def check_growth(backend: Tokenizer) -> None:
    """Raise CheckpointError, without a file name, if the growth is too large. Call this before the first encoding."""
    if backend.normalizer is None:
        return
    growth = _growth(json.loads(backend.normalizer.__getstate__()))
    if growth > _MOST:
        raise CheckpointError(
            f"its normalizer may write {growth:.3g} characters per character: at most {_MOST} are supported"
        )


def _growth(spec: Mapping[str, Any]) -> float:
    kind = spec["type"]
    if kind == "Sequence":
        # As floats, which become infinite instead of growing with the file.
        return math.prod(_growth(part) for part in spec["normalizers"])
    if kind == "Replace":
        return max(1.0, len(spec["content"]) / max(1, len(spec["pattern"].get("String", ""))))
    if kind == "Prepend":
        return 1.0 + len(spec["prepend"])
    return 1.0
