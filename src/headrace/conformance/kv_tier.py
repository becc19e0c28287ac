"""Tier 4: the cache stores what is written, at the right slot, in the order of the launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from headrace.conformance.operators_tier import need_arithmetic, nmse
from headrace.conformance.tiers import tier
from headrace.conformance.transfer import head_size
from headrace.errors import OutOfMemory
from headrace.kernels.inputs import batch_of
from headrace.kernels.ops import OptionalOps
from headrace.kernels.registry import OPTIONAL, bind
from headrace.platforms.interface import KV, Device, Executable, Tensor, TorchTensors
from headrace.types import Bucket, KVLayout, LayerKV

__all__ = ["CacheUnderTest", "KVTier"]

Array = npt.NDArray[Any]
_HEADS, _BLOCKS = 2, 8


class CacheUnderTest:
    """A cache of one layer, with one step that writes given keys and values and one that reads them through attention.

    A query of zeros gives all keys the same weight, so attention returns the mean of the values in its context.
    """

    def __init__(self, device: Device, dtype: str, heads: int = _HEADS) -> None:
        self.device = device
        self.size = device.capabilities().block_sizes[0]
        self.dim = head_size(device.capabilities())
        self.layout = KVLayout((LayerKV(heads, self.dim),), self.size, dtype)
        self.kv: KV = device.alloc_kv(self.layout, _BLOCKS)
        self._ops = bind(device)
        self._heads = heads
        tokens = _BLOCKS * self.size
        self._write: Executable = device.compile(self._write_step, Bucket(tokens, tokens, tokens, _BLOCKS))
        self._read: Executable = device.compile(self._read_step, Bucket(tokens, tokens, tokens, _BLOCKS))

    def write(self, slots: Array, values: Array) -> None:
        """Write values [T, heads * dim] at slots block * size + offset; the keys are the same."""
        arrays = _batch(np.zeros(len(slots)), slots, np.zeros((len(slots), 1)))
        qkv = np.concatenate([np.zeros_like(values), values, values], 1).astype(np.float32)
        self.kv, outputs = self._write(self.kv, self._put(arrays | {"x": qkv, "cos_sin": _upright(self.dim)}))
        self.last = outputs["q"]

    def means(self, tables: Array, lengths: Array) -> Array:
        """[S, heads * dim]: the mean of the first `length` values of each block table."""
        arrays = _batch(lengths - 1, np.zeros(len(lengths)), tables)
        query = np.zeros((len(lengths), self._heads * self.dim), np.float32)
        self.kv, outputs = self._read(self.kv, self._put(arrays | {"x": query}))
        found: Array = self.device.get(outputs["out"]).result()[: len(lengths)]
        return found

    def moved(self, ids: Array, packed: Array | None = None) -> Array:
        """Write the blocks `ids` from bytes, if they are given; returns the bytes of the blocks then."""
        bucket = Bucket(len(ids), len(ids), len(ids), 1)
        inputs = {"block_ids": ids.astype(np.int32)} | ({} if packed is None else {"packed": packed})
        if packed is not None:
            scatter = self.device.compile(self._scatter_step, bucket)
            self.kv, _ = scatter(self.kv, self._put(inputs))
        gather = self.device.compile(self._gather_step, bucket)
        self.kv, outputs = gather(self.kv, self._put({"block_ids": inputs["block_ids"]}))
        found: Array = self.device.get(outputs["packed"]).result()
        return found

    def _gather_step(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        return kv, {"packed": cast(OptionalOps, self._ops).gather_blocks(kv, inputs["block_ids"])}

    def _scatter_step(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        ids = cast(OptionalOps, self._ops).scatter_blocks(kv, inputs["block_ids"], inputs["packed"])
        return kv, {"ids": ids}

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        self.kv = self.device.copy_blocks(self.kv, [a for a, _ in pairs], [b for _, b in pairs])

    def _put(self, arrays: dict[str, Array]) -> dict[str, Tensor]:
        return {name: self.device.put(array) for name, array in arrays.items()}

    def _write_step(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        batch = batch_of(inputs)
        q = self._ops.rotary_cache(inputs["x"], batch, kv, 0, inputs["cos_sin"], self._heads, None, None, 1e-6)
        return kv, {"q": q}

    def _read_step(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        batch = batch_of(inputs)
        return kv, {"out": self._ops.attention(inputs["x"], batch, kv, 0, 0.25, None, None, None, None)}


def _upright(dim: int) -> Array:
    return np.concatenate([np.ones((1, dim // 2)), np.zeros((1, dim // 2))], 1).astype(np.float32)


def _batch(positions: Array, slots: Array, tables: Array) -> dict[str, Array]:
    """A batch in which every token is a separate sequence."""
    count = len(positions)
    index = np.arange(count)
    arrays = {
        "sizes": np.array([count, count, 0]),
        "token_ids": np.zeros(count),
        "positions": positions,
        "slot_mapping": slots,
        "token_seq": index,
        "query_start": np.arange(count + 1),
        "context_lens": positions + 1,
        "block_tables": tables,
        "slots": index,
        "rows": index[:0],
    }
    return {name: np.ascontiguousarray(array, np.int32) for name, array in arrays.items()}


def need_blocks(device: Device) -> None:
    """Skip if blocks cannot be moved: the device has no form of these operators, and no reference takes its tensors."""
    if device.extension(TorchTensors) is None:
        names = ("gather_blocks", "scatter_blocks")
        if any(device.op(spec) is None for spec in OPTIONAL if spec.name in names):
            pytest.skip("the optional operators gather_blocks and scatter_blocks are not declared")


_LIMIT = {"float32": 1e-10, "bfloat16": 1e-4, "float16": 1e-6, "int8": 1e-3, "float8_e4m3": 5e-3}


@tier("kv")
class KVTier:
    @pytest.fixture(params=["float32", "bfloat16", "float16", "int8", "float8_e4m3"])
    def cache(self, device: Device, request: pytest.FixtureRequest) -> CacheUnderTest:
        need_arithmetic(device)
        if request.param not in device.capabilities().kv_dtypes:
            pytest.skip(f"KV dtype {request.param} is not declared")
        return CacheUnderTest(device, request.param)

    def near(self, cache: CacheUnderTest, found: Array, wanted: Array) -> None:
        assert nmse(found, wanted) <= _LIMIT[cache.layout.dtype]

    def test_every_place_of_a_block_is_its_own(self, cache: CacheUnderTest) -> None:
        values = _numbers(cache, cache.size)
        cache.write(3 * cache.size + np.arange(cache.size), values)
        tables, lengths = np.full((cache.size, 1), 3), 1 + np.arange(cache.size)
        wanted = np.cumsum(values, 0) / lengths[:, None]
        self.near(cache, cache.means(tables, lengths), wanted)

    def test_tables_map_positions_across_blocks(self, cache: CacheUnderTest) -> None:
        values = _numbers(cache, 2 * cache.size)
        cache.write(
            np.concatenate([5 * cache.size + np.arange(cache.size), 2 * cache.size + np.arange(cache.size)]), values
        )
        lengths = np.array([cache.size, cache.size + 1, 2 * cache.size])
        wanted = np.stack([values[:n].mean(0) for n in lengths])
        self.near(cache, cache.means(np.tile([5, 2], (3, 1)), lengths), wanted)

    def test_a_place_written_again_holds_the_new(self, cache: CacheUnderTest) -> None:
        values = _numbers(cache, 2)
        cache.write(np.array([cache.size]), values[:1])
        cache.write(np.array([cache.size]), values[1:])
        self.near(cache, cache.means(np.array([[1]]), np.array([1])), values[1:])

    def test_writes_leave_other_blocks_alone(self, cache: CacheUnderTest) -> None:
        values = _numbers(cache, 3 * cache.size)
        for block in (1, 2, 3):
            cache.write(
                block * cache.size + np.arange(cache.size), values[(block - 1) * cache.size : block * cache.size]
            )
        cache.write(2 * cache.size + np.arange(cache.size), -values[: cache.size])
        wanted = np.stack(
            [values[: cache.size].mean(0), -values[: cache.size].mean(0), values[2 * cache.size :].mean(0)]
        )
        self.near(cache, cache.means(np.array([[1], [2], [3]]), np.full(3, cache.size)), wanted)

    def test_a_copied_block_is_whole_and_independent(self, cache: CacheUnderTest) -> None:
        values = _numbers(cache, cache.size)
        cache.write(cache.size + np.arange(cache.size), values)
        cache.copy([(1, 4)])
        cache.write(cache.size + np.arange(cache.size), -values)
        wanted = np.stack([-values.mean(0), values.mean(0)])
        self.near(cache, cache.means(np.array([[1], [4]]), np.full(2, cache.size)), wanted)

    def test_copies_read_before_they_write(self, cache: CacheUnderTest) -> None:
        values = _numbers(cache, 2 * cache.size)
        cache.write(cache.size + np.arange(2 * cache.size), values)
        cache.copy([(1, 2), (2, 1)])
        wanted = np.stack([values[cache.size :].mean(0), values[: cache.size].mean(0)])
        self.near(cache, cache.means(np.array([[1], [2]]), np.full(2, cache.size)), wanted)

    def test_copies_and_steps_keep_their_order(self, cache: CacheUnderTest) -> None:
        """A chain of writes and copies without waiting in between."""
        values = _numbers(cache, 8)
        for turn in range(8):
            cache.write(np.array([cache.size]), values[turn : turn + 1])
            cache.copy([(1, 2 + turn % 4)])
        wanted = np.stack([values[4], values[5], values[6], values[7]])
        self.near(cache, cache.means(np.array([[2], [3], [4], [5]]), np.ones(4, np.int64)), wanted)

    def test_no_copies_is_no_work(self, cache: CacheUnderTest) -> None:
        values = _numbers(cache, 1)
        cache.write(np.array([cache.size]), values)
        cache.copy([])
        self.near(cache, cache.means(np.array([[1]]), np.array([1])), values)

    def test_blocks_move_to_another_cache_as_bytes(self, cache: CacheUnderTest) -> None:
        """What `gather_blocks` reads, `scatter_blocks` writes to other blocks of another cache, bit by bit; block 0 is
        padding."""
        need_blocks(cache.device)
        values = _numbers(cache, 2 * cache.size)
        cache.write(cache.size + np.arange(2 * cache.size), values)
        packed = cache.moved(np.array([2, 1, 0, 3]))
        assert packed.dtype == np.uint8
        assert packed.ndim == 2
        other = CacheUnderTest(cache.device, cache.layout.dtype)
        padded = np.concatenate([packed[:2], np.zeros_like(packed[:1]), packed[3:]])
        np.testing.assert_array_equal(other.moved(np.array([5, 7, 0, 1]), padded)[[0, 1, 3]], packed[[0, 1, 3]])
        tables, lengths = np.array([[7, 5], [5, 7]]), np.array([2 * cache.size, cache.size])
        wanted = np.stack([values.mean(0), values[cache.size :].mean(0)])
        self.near(other, other.means(tables, lengths), wanted)
        np.testing.assert_array_equal(other.means(tables, lengths), cache.means(np.array([[1, 2], [2, 1]]), lengths))

    def test_moved_blocks_and_steps_keep_their_order(self, cache: CacheUnderTest) -> None:
        """A block is read before a later step writes to it, and written before a later step reads it."""
        need_blocks(cache.device)
        values = _numbers(cache, 4)
        cache.write(np.array([cache.size]), values[:1])
        for turn in range(1, 4):
            packed = cache.moved(np.array([1, 0]))
            cache.write(np.array([cache.size]), values[turn : turn + 1])
            cache.moved(np.array([1 + turn, 0]), packed)
        self.near(cache, cache.means(np.array([[2], [3], [4], [1]]), np.ones(4, np.int64)), values)

    def test_too_large_a_cache_is_refused_with_numbers(self, device: Device) -> None:
        total = device.memory()[1]
        store, head_sizes = min(device.capabilities().kv_dtypes), device.capabilities().head_sizes
        layout = KVLayout((LayerKV(8, max(head_sizes, default=128)),) * 64, device.capabilities().block_sizes[0], store)
        with pytest.raises(OutOfMemory, match=r"\d+.*\d+"):
            device.alloc_kv(layout, 4 * total // layout.bytes_per_block)


def _numbers(cache: CacheUnderTest, rows: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, _HEADS * cache.dim)).astype(np.float32)
