"""How much longer a tokenizer's normaliser may make a text: replacements of replacements can write terabytes for a letter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from headrace.errors import CheckpointError

__all__ = ["check_growth"]

_MOST = 1024
"""Characters for one. Published tokenizers stay below ten."""


def check_growth(backend: Tokenizer) -> None:
    """Raises CheckpointError, without a file. To be called before anything is encoded."""
    if backend.normalizer is None:
        return
    growth = _growth(json.loads(backend.normalizer.__getstate__()))
    if growth > _MOST:
        raise CheckpointError(
            f"its normalizer may write {growth:.3g} characters for one: at most {_MOST} are supported"
        )


def _growth(spec: Mapping[str, Any]) -> float:
    kind = spec["type"]
    if kind == "Sequence":
        # As floats, which end at infinity instead of growing with the file.
        return math.prod(_growth(part) for part in spec["normalizers"])
    if kind == "Replace":
        return max(1.0, len(spec["content"]) / max(1, len(spec["pattern"].get("String", ""))))
    if kind == "Prepend":
        return 1.0 + len(spec["prepend"])
    return 1.0
