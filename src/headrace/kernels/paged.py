"""Reads and writes the paged cache of `kv.TorchKV` by slot, quantized caches included."""

from __future__ import annotations

import torch
from torch.nn import functional

from headrace.errors import PlatformError
from headrace.kernels.kv import TorchKV
from headrace.types import KVLayout

__all__ = ["DTYPES", "SPAN", "alloc", "gather", "span", "write"]

Tensor = torch.Tensor
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "float8_e4m3": torch.float8_e4m3fn,
}
SPAN = 64
"""Positions that `span` reads at a time."""
_LARGEST = {"int8": 127.0, "float8_e4m3": 448.0}


def alloc(layout: KVLayout, num_blocks: int, device: torch.device) -> TorchKV:
    """A zeroed cache. Raises PlatformError for a block size that neither divides 64 nor is a multiple of it."""
    if SPAN % layout.block_size and layout.block_size % SPAN:
        raise PlatformError(f"block size {layout.block_size}: choose a divisor or a multiple of {SPAN}")
    dtype, quantized = DTYPES[layout.dtype], layout.dtype in _LARGEST

    def blocks(heads: int, *rest: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros((num_blocks, heads, layout.block_size, *rest), dtype=dtype, device=device)

    def scales() -> list[Tensor]:
        return [blocks(l.num_kv_heads, dtype=torch.float32) for l in layout.layers] if quantized else []

    keys = [blocks(l.num_kv_heads, l.head_dim) for l in layout.layers]
    values = [blocks(l.num_kv_heads, l.head_dim) for l in layout.layers]
    return TorchKV(layout, keys, values, scales(), scales())


def write(kv: TorchKV, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Store keys and values [T, Hk, d] at slots [T] (block * block_size + offset).

    In a quantized cache, the scale is the largest magnitude divided by the largest code.
    """
    block, offset = slots.long() // kv.layout.block_size, slots.long() % kv.layout.block_size
    largest = _LARGEST.get(kv.layout.dtype)
    for store, scales, x in ((kv.keys, kv.key_scales, k.float()), (kv.values, kv.value_scales, v.float())):
        if largest is None:
            store[layer][block, :, offset] = x.to(store[layer].dtype)
            continue
        scale = x.abs().amax(-1) / largest
        codes = x / torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
        codes = codes.round() if kv.layout.dtype == "int8" else codes
        codes = codes.clamp(-largest, largest).to(store[layer].dtype)
        # Not every device can index 8-bit floats, but every device can index bytes.
        store[layer].view(torch.uint8)[block, :, offset] = codes.view(torch.uint8)
        scales[layer][block, :, offset] = scale


def gather(store: list[Tensor], scales: list[Tensor], layer: int, block: Tensor, offset: Tensor) -> Tensor:
    """The entries at int64 `block` and `offset` (of the same shape), float32 [..., Hk, d]."""
    if not scales:
        return store[layer][block, :, offset].float()
    codes = store[layer].view(torch.uint8)[block, :, offset].view(store[layer].dtype)
    return codes.float() * scales[layer][block, :, offset].unsqueeze(-1)


def span(store: list[Tensor], scales: list[Tensor], layer: int, tables: Tensor, index: int) -> Tensor:
    """Positions 64 `index` to 64 `index` + 63 of the sequences with block tables [S, B]: a new float32 [S, Hk, 64, d].

    Table entries past the end count as block 0.
    """
    size = store[layer].shape[2]
    count, start = max(SPAN // size, 1), index * SPAN // size
    blocks = tables[:, start : start + count].long()
    blocks = functional.pad(blocks, (0, count - blocks.shape[1]))
    inside = slice(index * SPAN % size, index * SPAN % size + min(size, SPAN))

    def take(x: Tensor) -> Tensor:
        picked = x[:, :, inside].index_select(0, blocks.flatten())
        return picked.view(*blocks.shape, *picked.shape[1:]).transpose(1, 2).flatten(2, 3)

    if not scales:
        return take(store[layer]).float()
    codes = take(store[layer].view(torch.uint8)).view(store[layer].dtype)
    return codes.float() * take(scales[layer]).unsqueeze(-1)
