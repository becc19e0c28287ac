"""The native cache in memory: the size and place of a block, and the pages that a few tokens touch."""

from __future__ import annotations

import mmap
from itertools import pairwise

import numpy as np
import pytest
import torch

from headrace.kernels import paged
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.cpu.native_kv import NativeKV
from headrace.types import KVLayout, LayerKV

UNEQUAL = (LayerKV(3, 64), LayerKV(1, 20), LayerKV(2, 128))


def filled(layout: KVLayout, blocks: int) -> NativeKV:
    kv, drawn = NativeKV(layout, blocks), torch.Generator().manual_seed(0)
    for store in kv.stores():
        store.view(torch.uint8).copy_(torch.randint(0, 100, store.view(torch.uint8).shape, generator=drawn))
    return kv


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float8_e4m3"])
def test_parts_of_a_block_lie_together_and_apart_from_all_others(dtype: str) -> None:
    kv = NativeKV(KVLayout(UNEQUAL, 32, dtype), 5)
    first = min(store.data_ptr() for store in kv.stores())
    taken = []
    for store in kv.stores():
        for block in range(5):
            begin = store[block].data_ptr() - first
            size = store[block].numel() * store.element_size()
            assert block * kv.stride <= begin
            assert begin + size <= (block + 1) * kv.stride
            assert begin % 64 == 0
            taken.append((begin, begin + size))
    for (_, end), (begin, _) in pairwise(sorted(taken)):
        assert end <= begin


def test_a_large_block_is_no_multiple_of_two_pages() -> None:
    """The same part of every block would meet in a few sets of the processor's cache."""
    large = NativeKV(KVLayout((LayerKV(8, 128),) * 32, 16, "bfloat16"), 3)
    assert large.stride == 32 * 2 * 8 * 16 * 128 * 2 + 4096
    assert NativeKV(KVLayout((LayerKV(2, 64),), 16, "bfloat16"), 3).stride == 2 * 2 * 16 * 64 * 2


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system tells no process's memory by page")
def test_a_block_of_all_layers_touches_little_memory() -> None:
    """Not a page, or a huge one, of each layer's own region: that is most of what a first step costs."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE

    kv, before = NativeKV(KVLayout((LayerKV(3, 64),) * 30, 16, "bfloat16"), 20_000), resident()
    for store in kv.stores():
        store[1].fill_(1)
    assert resident() - before < 8 << 20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_copied_blocks_are_complete_and_nothing_else_changes(dtype: str) -> None:
    device = NativeDevice(threads=2)
    try:
        kv = filled(KVLayout(UNEQUAL, 16, dtype), 7)
        before = [store.clone() for store in kv.stores()]
        device.copy_blocks(kv, [1, 2, 5], [2, 4, 1])
        device.wait()
        for store, old in zip(kv.stores(), before, strict=True):
            for block, source in enumerate([0, 5, 1, 3, 2, 5, 6]):
                assert torch.equal(store[block].view(torch.uint8), old[source].view(torch.uint8)), block
    finally:
        device.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float8_e4m3"])
def test_there_and_back(dtype: str) -> None:
    layout = KVLayout(UNEQUAL, 16, dtype)
    plain = paged.alloc(layout, 4, torch.device("cpu"))
    drawn = np.random.default_rng(0)
    for store in (*plain.keys, *plain.values, *plain.key_scales, *plain.value_scales):
        narrow = store.view(torch.uint8) if store.dtype.itemsize == 1 else store
        narrow.copy_(torch.from_numpy(drawn.integers(0, 100, tuple(store.shape))))
    back = paged.alloc(layout, 4, torch.device("cpu"))
    NativeKV.from_torch(plain).to_torch(back)
    for name in ("keys", "values", "key_scales", "value_scales"):
        for mine, theirs in zip(getattr(back, name), getattr(plain, name), strict=True):
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
