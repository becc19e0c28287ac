"""What the Pallas operators share: the work lists of ragged batches, and their torch side. Importing this loads neither torch nor JAX."""

from __future__ import annotations

__all__ = ["LANES"]

LANES = 128
"""Rows of the cache are whole multiples of these elements: kernels copy whole lanes, and the chip's memory pads to them anyway."""
