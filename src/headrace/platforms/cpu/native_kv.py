"""The paged cache of the native kernels: keys and values in groups of sixteen, as attention multiplies them
(native/kv.h)."""

from __future__ import annotations

import ctypes

import torch

from headrace.errors import PlatformError
from headrace.kernels import paged
from headrace.kernels.kv import TorchKV
from headrace.platforms.cpu.mapping import map_memory
from headrace.types import KVLayout

__all__ = ["GROUP", "LINE", "KVArgs", "MappedMemory", "NativeKV"]

Tensor = torch.Tensor
GROUP = 16
CODES = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "float8_e4m3": 4}
LINE, _PAGE = 64, 4096


def _spread(size: int) -> int:
    """The stride of blocks of `size` bytes. A large stride is not a multiple of two pages, because the same part of
    every block would then be mapped to a few sets of the processor's cache."""
    return size + _PAGE if size >= 16 * _PAGE and size % (2 * _PAGE) == 0 else size


class KVArgs(ctypes.Structure):
    """hr_kv"""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("heads", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("padded", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("item", ctypes.c_int32),
    )


class MappedMemory:
    """Zeroed memory that the system provides when it is first touched, in huge pages if there are any."""

    def __init__(self, size: int, what: str) -> None:
        """`what`: its purpose, for the error. Raises OutOfMemory."""
        self._map = map_memory(size, what, reserve=False)
        self.size = size

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor over a part of the memory; the tensor keeps the memory alive."""
        count = 1
        for n in shape:
            count *= n
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)

    def rows(self, offset: int, shape: tuple[int, int], stride: int, dtype: torch.dtype) -> Tensor:
        """A tensor as of `tensor`, with rows `stride` bytes apart."""
        if not shape[0] * shape[1]:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=self.size // dtype.itemsize)
        return flat.as_strided(shape, (stride // dtype.itemsize, 1), offset // dtype.itemsize)


class NativeKV:
    """Keys, values and scales of all layers as byte tensors; only the native operators know their layout.

    keys and values [num_blocks, heads * block_size * padded] elements, scales float32 [num_blocks, heads * block_size].
    The rows of one block of all layers are next to each other.
    """

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        if layout.block_size % GROUP:
            raise PlatformError(f"cpu: block_size {layout.block_size} is not a multiple of {GROUP}")
        self.layout, self.num_blocks = layout, num_blocks
        self.dtype = paged.DTYPES[layout.dtype]
        scaled = self.dtype.itemsize == 1
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.key_scales: list[Tensor] = []
        self.value_scales: list[Tensor] = []
        parts: list[tuple[list[Tensor], int, int, torch.dtype]] = []
        at = 0
        for l in layout.layers:
            tokens = l.num_kv_heads * layout.block_size
            padded = -(-l.head_dim // GROUP) * GROUP
            kinds = [(store, tokens * padded, self.dtype) for store in (self.keys, self.values)]
            kinds += [(store, tokens, torch.float32) for store in (self.key_scales, self.value_scales) if scaled]
            for store, count, dtype in kinds:
                parts.append((store, at, count, dtype))
                at += -(-count * dtype.itemsize // LINE) * LINE
        self.block_bytes = at
        """Bytes of one block, all of its parts together."""
        self.stride = _spread(at)
        memory = MappedMemory(num_blocks * self.stride, f"a KV cache of {num_blocks} blocks")
        for store, offset, count, dtype in parts:
            store.append(memory.rows(offset, (num_blocks, count), self.stride, dtype))

    def stores(self) -> list[Tensor]:
        """All tensors whose first dimension is the block."""
        return [*self.keys, *self.values, *self.key_scales, *self.value_scales]

    def args(self, layer: int) -> KVArgs:
        shape = self.layout.layers[layer]
        scales = bool(self.key_scales)
        return KVArgs(
            keys=self.keys[layer].data_ptr(),
            values=self.values[layer].data_ptr(),
            key_scales=self.key_scales[layer].data_ptr() if scales else None,
            value_scales=self.value_scales[layer].data_ptr() if scales else None,
            blocks=self.num_blocks,
            stride=self.stride,
            heads=shape.num_kv_heads,
            dim=shape.head_dim,
            padded=-(-shape.head_dim // GROUP) * GROUP,
            block_size=self.layout.block_size,
            dtype=CODES[self.layout.dtype],
            item=self.dtype.itemsize,
        )

    @staticmethod
    def from_torch(kv: TorchKV) -> NativeKV:
        """A copy of a plain cache."""
        native = NativeKV(kv.layout, kv.keys[0].shape[0])
        for layer in range(len(kv.keys)):
            for is_key, mine, theirs in ((True, native.keys, kv.keys), (False, native.values, kv.values)):
                mine[layer].copy_(native._grouped(theirs[layer], is_key).view_as(mine[layer]))
            if kv.key_scales:
                native.key_scales[layer].copy_(kv.key_scales[layer].flatten(1))
                native.value_scales[layer].copy_(kv.value_scales[layer].flatten(1))
        return native

    def to_torch(self, kv: TorchKV) -> None:
        """Copy all blocks into a plain cache of the same layout."""
        for layer, shape in enumerate(self.layout.layers):
            for is_key, mine, theirs in ((True, self.keys, kv.keys), (False, self.values, kv.values)):
                theirs[layer].copy_(self._plain(mine[layer], is_key, shape.num_kv_heads, shape.head_dim))
            if kv.key_scales:
                kv.key_scales[layer].copy_(self.key_scales[layer].view_as(kv.key_scales[layer]))
                kv.value_scales[layer].copy_(self.value_scales[layer].view_as(kv.value_scales[layer]))

    @property
    def _paired(self) -> bool:
        return self.layout.dtype not in ("float32", "float16")

    def _grouped(self, plain: Tensor, is_key: bool) -> Tensor:
        """[N, H, block_size, d] in groups. 8-bit floats are handled as bytes, because torch cannot index them."""
        narrow = plain.view(torch.uint8) if plain.dtype.itemsize == 1 else plain
        blocks, heads, size, dim = narrow.shape
        padded = -(-dim // GROUP) * GROUP
        wide = narrow.new_zeros(blocks, heads, size // GROUP, GROUP, padded)
        wide[..., :dim] = narrow.view(blocks, heads, size // GROUP, GROUP, dim)
        if not self._paired:
            out = wide.transpose(3, 4) if is_key else wide
        elif is_key:
            out = wide.view(*wide.shape[:4], padded // 2, 2).permute(0, 1, 2, 4, 3, 5)
        else:
            out = wide.view(*wide.shape[:3], GROUP // 2, 2, padded).permute(0, 1, 2, 3, 5, 4)
        return out.contiguous().view(plain.dtype)

    def _plain(self, stored: Tensor, is_key: bool, heads: int, dim: int) -> Tensor:
        padded, size = -(-dim // GROUP) * GROUP, self.layout.block_size
        narrow = stored.view(torch.uint8) if stored.dtype.itemsize == 1 else stored
        lead = (narrow.shape[0], heads, size // GROUP)
        if not self._paired:
            x = narrow.view(*lead, padded, GROUP).transpose(3, 4) if is_key else narrow.view(*lead, GROUP, padded)
        elif is_key:
            x = narrow.view(*lead, padded // 2, GROUP, 2).permute(0, 1, 2, 4, 3, 5).flatten(4, 5)
        else:
            x = narrow.view(*lead, GROUP // 2, padded, 2).permute(0, 1, 2, 3, 5, 4).flatten(3, 4)
        return x[..., :dim].reshape(lead[0], heads, size, dim).contiguous().view(stored.dtype)
