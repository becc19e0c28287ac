"""GGUF's block formats: their sizes, and weights that are stored in blocks (layouts: ggml's `ggml-common.h`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from headrace.kernels.weight import Weight
from headrace.quant import gguf_k, gguf_simple
from headrace.quant.gguf_types import BLOCK_SIZES

__all__ = ["FLOAT_TYPES", "GGUF_TYPES", "BlockType", "gguf_weight"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class BlockType:
    """One block format. `unpack` maps uint8 [blocks, bytes] to float32 [blocks, elements]."""

    name: str
    elements: int
    """Values per block."""
    bytes: int
    """Bytes per block."""
    unpack: Callable[[Tensor], Tensor]


FLOAT_TYPES: Mapping[int, torch.dtype] = MappingProxyType({0: torch.float32, 1: torch.float16, 30: torch.bfloat16})
"""Plain float types by GGUF type number."""
_UNPACK = {
    kind: getattr(gguf_k if elements == 256 else gguf_simple, name) for kind, (name, elements, _) in BLOCK_SIZES.items()
}
GGUF_TYPES: Mapping[int, BlockType] = MappingProxyType(
    {kind: BlockType(*sizes, _UNPACK[kind]) for kind, sizes in BLOCK_SIZES.items()}
)
"""Block formats by GGUF type number."""
_BY_SCHEME = {f"gguf:{kind.name}": kind for kind in GGUF_TYPES.values()}


def gguf_weight(kind: BlockType, blocks: Tensor, columns: int, name: str = "") -> Weight:
    """The weight of an [N, columns] matrix stored as blocks, uint8 [N, bytes per row]; scheme `gguf:<name>`."""
    assert blocks.shape[1] == columns // kind.elements * kind.bytes
    return Weight(f"gguf:{kind.name}", (blocks.shape[0], columns), {"blocks": blocks}, _unpack, name=name)


def _unpack(weight: Weight) -> Tensor:
    kind = _BY_SCHEME[weight.scheme]
    return kind.unpack(weight.tensors["blocks"].reshape(-1, kind.bytes)).reshape(weight.shape)
