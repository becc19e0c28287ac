"""Conversion of blocks to another number of tokens and another split of the heads, on the caches of real devices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from headrace.conformance.conversions import identity_of
from headrace.engine.block_identity import block_form
from headrace.errors import TransferError
from headrace.kernels import paged
from headrace.kernels.gather_blocks.reference import gather_blocks
from headrace.kernels.kv import TorchKV
from headrace.models.config import DecoderConfig, LayerConfig, Rope
from headrace.models.sharding import Shard, local_config
from headrace.platforms.cpu.native_kv import GROUP, LINE, NativeKV
from headrace.transfer.block_form import BlockForm, Conversion, conversion, form_bytes, joins
from headrace.transfer.connectors.connector import Order, Prefix
from headrace.transfer.connectors.conversions import converted
from headrace.transfer.identity import Identity, TransferRefused, check_identity
from headrace.types import KVLayout, LayerKV

_TOKENS, _HEADS, _DIM = 128, 2, 24
_DECODER = DecoderConfig("llama", 96, 4, _HEADS, _DIM, 96, 64, (LayerConfig(),) * 3, (Rope(1e4, _DIM),), 512, 1e-6)
_DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")


@dataclass
class _Orders:
    """A device, as far as it says the order of its blocks."""

    block_padding: tuple[int, int]

    def extension(self, kind: Any) -> Any:
        return self


def _whole(dtype: str, kept_layers: Sequence[LayerKV]) -> list[list[torch.Tensor]]:
    """Of every layer the keys, the values and their scales: [heads, tokens] or [heads, tokens, dim]."""
    torch.manual_seed(0)
    kept = paged.DTYPES[dtype]
    layers = []
    for shape in kept_layers:
        heads = shape.num_kv_heads
        rows = [torch.randint(-100, 100, (heads, _TOKENS, shape.head_dim)).float().to(kept) for _ in range(2)]
        scales = [torch.rand(heads, _TOKENS) for _ in range(2)] if kept.itemsize == 1 else []
        layers.append([*rows, *scales])
    return layers


def _blocks(
    dtype: str, size: int, ranks: int, native: bool, stages: int = 1, drafter: tuple[LayerKV, ...] = ()
) -> tuple[list[bytes], BlockForm]:
    """All tokens in blocks of `size`, as the ranks of an engine give them one behind the other. `drafter`: layers that
    the first rank has besides."""
    parts, rank_bytes = [], []
    whole, own = _whole(dtype, _DECODER.kv_layers), _whole(dtype, drafter)
    for number in range(ranks * stages):
        shard = Shard.of(number, ranks, stages)
        begin, end = shard.layers(_DECODER) if stages > 1 else (0, 3)
        first, last = shard.kv_heads(_DECODER) if ranks > 1 else (0, _HEADS)
        shapes = (*local_config(_DECODER, shard).kv_layers, *(drafter if number == 0 else ()))
        kv = paged.alloc(KVLayout(shapes, size, dtype), _TOKENS // size, torch.device("cpu"))
        kinds = (kv.keys, kv.values, kv.key_scales, kv.value_scales)
        held = [[rows[first:last] for rows in layer] for layer in whole[begin:end]] + (own if number == 0 else [])
        for at, layer in enumerate(held):
            for lists, rows in zip(kinds, layer, strict=False):
                cut = rows.view(len(rows), _TOKENS // size, size, *rows.shape[2:])
                lists[at].view(torch.uint8).copy_(cut.transpose(0, 1).contiguous().view(torch.uint8))
        parts.append(_bytes(NativeKV.from_torch(kv) if native else kv))
        rank_bytes.append(len(parts[-1][0]))
    orders: Any = _Orders((GROUP, LINE) if native else (1, 1))
    layout = KVLayout(_DECODER.kv_layers, size, dtype)
    form = block_form(_DECODER, Shard.of(0, ranks, stages), orders, layout, tuple(rank_bytes), drafter)
    assert form is not None
    return [b"".join(block) for block in zip(*parts, strict=True)], form


def _bytes(kv: Any) -> list[bytes]:
    if isinstance(kv, TorchKV):
        return [bytes(row.numpy()) for row in gather_blocks(kv, torch.arange(len(kv.keys[0])))]
    start = kv.keys[0].data_ptr()
    return [ctypes.string_at(start + at * kv.stride, kv.block_bytes) for at in range(kv.num_blocks)]


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
@pytest.mark.parametrize("dtype", _DTYPES)
def test_blocks_of_another_size_are_those_that_this_engine_would_have(dtype: str, native: bool) -> None:
    for theirs, ours in ((16, 32), (32, 16), (16, 64), (128, 16)):
        there, here = _blocks(dtype, theirs, 1, native), _blocks(dtype, ours, 1, native)
        taken = Conversion((there[1], theirs), (here[1], ours)).begin(0, _TOKENS // ours)
        assert [bytes(one) for block in there[0] for one in taken.take(block)] == here[0]


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_blocks_of_another_split(dtype: str, native: bool) -> None:
    """Ranks, and stages of layers; of four ranks, two have the same head."""
    for theirs, ours in (
        ((16, 1, 1), (16, 2, 1)),
        ((32, 2, 1), (16, 1, 1)),
        ((16, 1, 1), (16, 4, 1)),
        ((16, 4, 1), (16, 2, 1)),
        ((16, 1, 2), (32, 2, 3)),
    ):
        there = _blocks(dtype, theirs[0], theirs[1], native, theirs[2])
        here = _blocks(dtype, ours[0], ours[1], native, ours[2])
        taken = Conversion((there[1], theirs[0]), (here[1], ours[0])).begin(0, _TOKENS // ours[0])
        assert [bytes(one) for block in there[0] for one in taken.take(block)] == here[0]


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
def test_a_drafters_part_lies_on_the_first_rank(native: bool) -> None:
    drafter = (LayerKV(3, 16), LayerKV(1, 40))
    there = _blocks("bfloat16", 16, 1, native, drafter=drafter)
    here = _blocks("bfloat16", 32, 2, native, drafter=drafter)
    taken = Conversion((there[1], 16), (here[1], 32)).begin(0, _TOKENS // 32)
    assert [bytes(one) for block in there[0] for one in taken.take(block)] == here[0]


def test_a_fetch_may_begin_in_the_middle_of_a_block_of_theirs() -> None:
    there, here = _blocks("bfloat16", 64, 1, True), _blocks("bfloat16", 16, 1, True)
    taken = conversion(there[1], 64, here[1], 16).begin(7 * 16, 1)
    assert [bytes(one) for one in taken.take(there[0][1])] == here[0][7:8]


def test_a_device_that_does_not_say_its_order_has_no_form() -> None:
    class Silent:
        def extension(self, kind: Any) -> None:
            return None

    silent: Any = Silent()
    layout = KVLayout(_DECODER.kv_layers, 16, "bfloat16")
    assert block_form(_DECODER, Shard(), silent, layout, (1000,)) is None
    orders: Any = _Orders((1, 1))
    size = layout.bytes_per_block
    assert block_form(_DECODER, Shard(), orders, layout, (size + 4,)) is None, "it has more bytes than it says"
    found = block_form(_DECODER, Shard(), orders, layout, (size,))
    assert found is not None
    assert form_bytes(found, 16) == size


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"content_id": b"other numbers.."}, ("content_id", b"other numbers..".hex())),
        ({"block_size": 24}, ("block_size 24", "16")),
        ({"form": None}, ("block_size 32", "16")),
        ({"dtype": "float32"}, ("dtype float32", "int8")),
    ],
)
def test_what_cannot_be_converted_is_refused_with_both_values(change: dict[str, Any], both: tuple[str, str]) -> None:
    ours, theirs = identity_of(16, 1), identity_of(32, 1)
    check_identity(ours, theirs, "it")
    fields = {name: getattr(theirs, name) for name in theirs.__struct_fields__}
    with pytest.raises(TransferRefused) as caught:
        check_identity(ours, Identity(**{**fields, **change}), "it")
    assert all(value in str(caught.value) for value in both), caught.value


def test_an_order_must_say_its_tokens() -> None:
    ours, theirs = identity_of(16, 1), identity_of(32, 1)
    with pytest.raises(TransferRefused, match=r"32 tokens, tensor parallel 1; here 16 and 1.*does not say"):
        converted(Order("a", [bytes(16)], 1.0), ours, theirs)
    with pytest.raises(TransferError, match="not one of its tokens"):
        converted(Order("a", [bytes(16)], 1.0, prefix=Prefix(range(64), 64)), ours, theirs)
    wrong = Identity(**{**{name: getattr(theirs, name) for name in theirs.__struct_fields__}, "block_bytes": 7})
    with pytest.raises(TransferError, match="have 7 bytes"):
        converted(Order("a", [], 1.0, prefix=Prefix(range(64), 64)), ours, wrong)


@pytest.mark.parametrize(
    "form",
    [
        {"ranks": (((0, 0, 10**12), (1, 0, 2)),)},
        {"ranks": (((0, 0, 2),),)},
        {"ranks": (((0, 0, 2), (1, -1, 3)),)},
        {"ranks": (((0, 0, 2), (1, 0, 2), (2, 0, 2)),)},
        {"ranks": (((0, 0, 2), (1, 0, 2)),) * 100},
        {"align": 0},
        {"align": 1 << 40},
        {"rows": ((6, 6, 4, 4), (10, 10, 4, 4), (1,))},
    ],
)
def test_a_form_of_other_heads_is_refused_at_once(form: dict[str, Any]) -> None:
    """The other end may say anything."""
    ours, theirs = identity_of(16, 1), identity_of(32, 1)
    assert theirs.form is not None
    given = BlockForm(**{**{name: getattr(theirs.form, name) for name in BlockForm.__struct_fields__}, **form})
    fields = {name: getattr(theirs, name) for name in theirs.__struct_fields__}
    with pytest.raises(TransferRefused, match="other layers or KV heads"):
        converted(Order("a", [], 1.0, prefix=Prefix(range(64), 64)), ours, Identity(**{**fields, "form": given}))


def test_sizes_that_join() -> None:
    assert joins(16, 64)
    assert joins(48, 16)
    for other in (24, 0, -16, 16 * 10**9):
        assert not joins(16, other)
        assert not joins(other, 16)
