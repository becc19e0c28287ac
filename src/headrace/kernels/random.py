"""Random but valid batches, caches and weights, for the operators' input generators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from headrace.kernels import paged
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch
from headrace.kernels.weight import Weight
from headrace.types import KVLayout, LayerKV

__all__ = ["DTYPES", "HEAD_SIZES", "PLAIN", "Plain", "Shape", "Weights", "batch", "cache", "normal", "weight"]

Tensor = torch.Tensor
HEAD_SIZES = (8, 16, 24, 40, 64, 64, 80, 96, 128, 128, 192, 256)
"""Head sizes that generators choose from, the usual ones more often. Some are not powers of two or multiples of 16."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a random batch: tokens per sequence in this step, and cached keys per sequence before it."""

    fresh: tuple[int, ...]
    before: tuple[int, ...]
    block_size: int = 16

    @staticmethod
    def draw(rng: np.random.Generator, longest: int = 150) -> Shape:
        """A random shape: decodes, chunks, complete prompts, sequences without a token, or no sequence at all."""
        count = int(rng.integers(0, 5))
        fresh = tuple(_fresh(rng) for _ in range(count))
        before = tuple(int(rng.choice((0, int(rng.integers(0, longest))))) for _ in range(count))
        return Shape(fresh, before, int(rng.choice([16, 32, 64, 128])))

    @property
    def blocks(self) -> int:
        """Blocks per row of the block table."""
        return max([-(-(a + b) // self.block_size) for a, b in zip(self.fresh, self.before, strict=True)], default=1)


def _fresh(rng: np.random.Generator) -> int:
    """One token with probability 3/5; otherwise a chunk, or zero to four tokens."""
    chunk, few = int(rng.integers(1, 40)), int(rng.integers(0, 40)) % 5
    return int(rng.choice((1, 1, 1, chunk, few)))


def normal(rng: np.random.Generator, *shape: int, device: torch.device, dtype: str = "float32") -> Tensor:
    """Random values of the standard normal distribution."""
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(DTYPES[dtype]).to(device)


def weight(rng: np.random.Generator, rows: int, columns: int, device: torch.device, dtype: str, bias: bool) -> Weight:
    """A random matrix of variance 1 / columns, not quantized."""
    matrix = normal(rng, rows, columns, device=device) / max(columns, 1) ** 0.5
    offset = normal(rng, rows, device=device) if bias else None
    return Weight(dtype, (rows, columns), {"weight": matrix.to(DTYPES[dtype])}, _unpack, offset)


def _unpack(stored: Weight) -> Tensor:
    return stored.tensors["weight"].float()


class Weights(Protocol):
    """Makes the random matrices of one call of a generator."""

    def rows(self, wanted: int) -> int:
        """The number of rows to use, at least `wanted`."""

    def columns(self, wanted: int) -> int:
        """The smallest row length of the format that is at least `wanted`."""

    def __call__(
        self, rng: np.random.Generator, rows: int, columns: int, device: torch.device, dtype: str, bias: bool
    ) -> Weight:
        """A random matrix whose variance is about 1 / columns."""


class Plain:
    """Float matrices of any size."""

    def rows(self, wanted: int) -> int:
        return wanted

    def columns(self, wanted: int) -> int:
        return wanted

    def __call__(
        self, rng: np.random.Generator, rows: int, columns: int, device: torch.device, dtype: str, bias: bool
    ) -> Weight:
        return weight(rng, rows, columns, device, dtype, bias)


PLAIN = Plain()


def batch(rng: np.random.Generator, shape: Shape, device: torch.device, vocab: int = 100) -> Batch:
    """A random batch. Blocks are assigned at random, except block 0.

    The rows are the last token of each sequence that has one, and some others.
    """
    count = len(shape.fresh)
    tables = rng.permutation(np.arange(1, 1 + count * shape.blocks)).reshape(count, shape.blocks)
    positions = [np.arange(b, b + a) for a, b in zip(shape.fresh, shape.before, strict=True)]
    slots = [
        tables[s][p // shape.block_size] * shape.block_size + p % shape.block_size for s, p in enumerate(positions)
    ]
    ends = np.cumsum([0, *shape.fresh])
    total = int(ends[-1])
    last = ends[1:][np.diff(ends) > 0] - 1
    rows = np.union1d(last, rng.integers(0, total, 2) if total else [])

    def ints(values: npt.ArrayLike) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int32)).to(device)

    return Batch(
        sizes=torch.tensor([total, count, len(rows)], dtype=torch.int32),
        token_ids=ints(np.where(rng.random(total) < 0.3, -1, rng.integers(0, vocab, total))),
        positions=ints(np.concatenate([[], *positions])),
        slot_mapping=ints(np.concatenate([[], *slots])),
        token_seq=ints(np.repeat(np.arange(count), shape.fresh)),
        query_start=ints(ends),
        context_lens=ints(np.add(shape.fresh, shape.before)),
        block_tables=ints(tables),
        slots=ints(rng.permutation(count + 2)[:count]),
        rows=ints(rows),
    )


def cache(rng: np.random.Generator, shape: Shape, layer: LayerKV, device: torch.device, dtype: str) -> TorchKV:
    """A random cache in which every slot of every block is filled."""
    blocks = 1 + len(shape.fresh) * shape.blocks
    kv = paged.alloc(KVLayout((layer,), shape.block_size, dtype), blocks, device)
    places = blocks * shape.block_size
    k, v = (normal(rng, places, layer.num_kv_heads, layer.head_dim, device=device) for _ in range(2))
    paged.write(kv, 0, torch.arange(places, device=device), k, v)
    return kv
