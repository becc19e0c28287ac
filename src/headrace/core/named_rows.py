"""The tokens whose logprobs the rows of a step ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.types import NO_TOKEN, SamplingBatch

__all__ = ["name_rows"]

Ints = npt.NDArray[np.int32]
_WIDTHS = (8, 32, 128)
"""Numbers of names that steps are compiled for."""


def name_rows(sampling: SamplingBatch, rows: Sequence[tuple[int, ...]]) -> None:
    """Set the names of each row. They need the logprob of the row's most likely token."""
    longest = max(map(len, rows), default=0)
    if not longest:
        return
    width = next(size for size in _WIDTHS if size >= longest)
    found: Ints = np.full((len(rows), width), NO_TOKEN, np.int32)
    for row, names in enumerate(rows):
        found[row, : len(names)] = names
    sampling.named, sampling.num_logprobs = found, max(sampling.num_logprobs, 1)
