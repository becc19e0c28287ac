"""GGUF's block formats: sizes, and weights that stay in blocks (layouts: ggml's `ggml-common.h`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from headrace.kernels.weight import Weight
from headrace.quant import gguf_k, gguf_simple

__all__ = ["FLOAT_TYPES", "GGUF_TYPES", "BlockType", "gguf_weight"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class BlockType:
    """`unpack` takes uint8 [blocks, bytes] and gives float32 [blocks, elements]."""

    name: str
    elements: int
    """Values a block."""
    bytes: int
    """Bytes a block."""
    unpack: Callable[[Tensor], Tensor]


FLOAT_TYPES: Mapping[int, torch.dtype] = MappingProxyType({0: torch.float32, 1: torch.float16, 30: torch.bfloat16})
"""GGUF type numbers that are plain floats."""
GGUF_TYPES: Mapping[int, BlockType] = MappingProxyType(
    {
        2: BlockType("q4_0", 32, 18, gguf_simple.q4_0),
        3: BlockType("q4_1", 32, 20, gguf_simple.q4_1),
        6: BlockType("q5_0", 32, 22, gguf_simple.q5_0),
        7: BlockType("q5_1", 32, 24, gguf_simple.q5_1),
        8: BlockType("q8_0", 32, 34, gguf_simple.q8_0),
        10: BlockType("q2_k", 256, 84, gguf_k.q2_k),
        11: BlockType("q3_k", 256, 110, gguf_k.q3_k),
        12: BlockType("q4_k", 256, 144, gguf_k.q4_k),
        13: BlockType("q5_k", 256, 176, gguf_k.q5_k),
        14: BlockType("q6_k", 256, 210, gguf_k.q6_k),
        20: BlockType("iq4_nl", 32, 18, gguf_simple.iq4_nl),
        23: BlockType("iq4_xs", 256, 136, gguf_k.iq4_xs),
        39: BlockType("mxfp4", 32, 17, gguf_simple.mxfp4),
    }
)
"""By GGUF type number."""
_BY_SCHEME = {f"gguf:{kind.name}": kind for kind in GGUF_TYPES.values()}


def gguf_weight(kind: BlockType, blocks: Tensor, columns: int, name: str = "") -> Weight:
    """uint8 [N, bytes a row] blocks of an [N, columns] matrix, kept as they are; scheme `gguf:<name>`."""
    assert blocks.shape[1] == columns // kind.elements * kind.bytes
    return Weight(f"gguf:{kind.name}", (blocks.shape[0], columns), {"blocks": blocks}, _unpack, name=name)


def _unpack(weight: Weight) -> Tensor:
    kind = _BY_SCHEME[weight.scheme]
    return kind.unpack(weight.tensors["blocks"].reshape(-1, kind.bytes)).reshape(weight.shape)
