"""How wide a row of the cache is. Loads neither torch nor JAX."""

from __future__ import annotations

__all__ = ["lanes"]


def lanes(head_dim: int) -> int:
    """What a row of the cache must hold for the kernels: whole lanes, as the chip's memory pads it to anyway."""
    return -(-head_dim // 128) * 128
