"""The shape of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["KVLayout", "LayerKV"]


@dataclass(frozen=True, slots=True)
class LayerKV:
    """KV shape of one attention layer. `window` is the sliding window in tokens, None for full attention."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the paged KV cache. Every layer has the same block ids: one block table per sequence."""

    layers: tuple[LayerKV, ...]
    block_size: int
    """Tokens per block."""
    dtype: str
    """`float32`, `bfloat16`, `float16`, `int8` or `float8_e4m3`."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values (int8 and fp8 have one float32 scale per token and
        head)."""
        size = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3": 1}[self.dtype]
        scale = 4 if size == 1 else 0
        return sum(2 * self.block_size * l.num_kv_heads * (l.head_dim * size + scale) for l in self.layers)

    def padded(self, lanes: int) -> KVLayout:
        """The layout of a device that pads rows to a multiple of so many values."""
        layers = (replace(layer, head_dim=-(-layer.head_dim // lanes) * lanes) for layer in self.layers)
        return replace(self, layers=tuple(layers))
