"""`gather_blocks` and `scatter_blocks`: whole blocks as bytes, in place and for compilers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from headrace.kernels import paged
from headrace.kernels.gather_blocks.reference import gather_blocks
from headrace.kernels.registry import OPTIONAL
from headrace.kernels.scatter_blocks import static
from headrace.kernels.scatter_blocks.reference import scatter_blocks
from headrace.types import KVLayout, LayerKV

SPECS = {spec.name: spec for spec in OPTIONAL}
CPU = torch.device("cpu")


@pytest.mark.parametrize("kept", sorted(paged.DTYPES))
def test_a_blocks_bytes_are_all_of_it(kept: str) -> None:
    layout = KVLayout((LayerKV(2, 16), LayerKV(1, 32)), 16, kept)
    kv = paged.alloc(layout, 5, CPU)
    packed = gather_blocks(kv, torch.tensor([3, 1], dtype=torch.int32))
    assert packed.shape == (2, layout.bytes_per_block)
    scatter_blocks(kv, torch.tensor([2], dtype=torch.int32), torch.full((1, packed.shape[1]), 17, dtype=torch.uint8))
    for store in (*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales):
        cells = store.view(torch.uint8)
        assert bool((cells[2] == 17).all())
        assert not bool(cells[[0, 1, 3, 4]].any())


@pytest.mark.parametrize("seed", range(12))
def test_what_is_read_is_what_was_written(seed: int) -> None:
    dtype = ["float32", "bfloat16", "float16"][seed % 3]
    given = SPECS["scatter_blocks"].generate(np.random.default_rng(seed), CPU, dtype)
    kv, ids, packed = given["kv"], given["ids"], given["packed"]
    other = copy.deepcopy(kv)
    others = torch.tensor([at for at in range(len(kv.keys[0])) if at not in ids.tolist()], dtype=torch.int32)
    before = gather_blocks(kv, others)
    assert scatter_blocks(kv, ids, packed) is ids
    assert torch.equal(gather_blocks(kv, ids), packed)
    assert torch.equal(gather_blocks(kv, others), before)
    held = list(other.keys)
    static.scatter_blocks(other, ids, packed)
    assert held[0] is not other.keys[0], "tensors are replaced"
    every = torch.arange(len(kv.keys[0]), dtype=torch.int32)
    assert torch.equal(gather_blocks(other, every), gather_blocks(kv, every))
