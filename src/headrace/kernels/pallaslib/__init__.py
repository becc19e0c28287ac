"""Code that the Pallas operators share: the work lists of ragged batches, and the operators for torch tensors.

Importing this package loads neither torch nor JAX.
"""

from __future__ import annotations

__all__ = ["LANES"]

LANES = 128
"""Elements that the rows of a cache are padded to: kernels copy complete lanes, and the chip's memory pads to them
anyway."""
