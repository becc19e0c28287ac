"""Which tensors of a drafter are tables, by their names."""

from __future__ import annotations

__all__ = ["is_matrix"]

_TABLES = ("embed", "markov_w", "codebook")


def is_matrix(name: str) -> bool:
    """Whether a tensor of two dimensions is a matrix of products, which may be quantised, and no table that is looked
    up."""
    return name.endswith(".weight") and not any(part in name for part in _TABLES)
