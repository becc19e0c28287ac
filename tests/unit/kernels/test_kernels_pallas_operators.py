"""The torch side of the Pallas operators, with fake kernels; the kernels themselves are tested where JAX is
installed."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.kernels import random
from headrace.kernels.attention.static import attention
from headrace.kernels.linear.pallas_pack import KEY, packed
from headrace.kernels.linear.reference import linear
from headrace.kernels.logits.reference import logits
from headrace.kernels.pallaslib import LANES
from headrace.kernels.pallaslib.torch_operators import operators
from headrace.kernels.rotary_cache.reference import rotary_cache
from headrace.kernels.rotary_cache.static import scatter
from headrace.kernels.weight import Weight
from headrace.quant.containers import int4_weight, int8_weight, int_weight
from headrace.quant.online import quantize_weight
from headrace.types import KVLayout, LayerKV

CPU = torch.device("cpu")
Tensor = torch.Tensor
SHAPE = random.Shape((1, 5, 1), (20, 3, 0), 16)


def product(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, *, bits: int, interpret: bool) -> Tensor:
    """The documented result of `linear.pallas.product`."""
    if bits == 4:
        runs = codes.view(torch.uint8).view(len(codes), -1, 128)
        codes = torch.stack([runs & 15, runs >> 4], 2).flatten(1)
    wide = [a.repeat_interleave(128, 0).t() for a in (scales, zeros)]
    return x.float() @ ((codes.float() - wide[1]) * wide[0]).t()


def written(cache: Tensor, slots: Tensor, rows: Tensor, *, sequences: int, interpret: bool) -> Tensor:
    assert sequences == 3
    return scatter(cache, slots, rows)


class Kernels:
    """Fake kernels, and their recorded calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def load(self, name: str) -> Any:
        return SimpleNamespace(product=product, write=written, attention="attention", tile_rows=lambda *shape: shape)

    def call(self, function: Any, *tensors: Any, **static: Any) -> Any:
        self.calls.append((function, static))
        return tensors[0] * 2 if function == "attention" else function(*tensors, **static)

    def operators(self, dtype: torch.dtype | None = torch.float32) -> Any:
        return operators(self.call, dtype, True, self.load)


def weights() -> list[tuple[str, Weight, bool]]:
    rng = np.random.default_rng(3)
    eights = torch.from_numpy(rng.integers(-128, 128, (24, 384)).astype(np.int8))
    fours = torch.from_numpy(rng.integers(0, 256, (24, 192)).astype(np.uint8))

    def scales(groups: int) -> Tensor:
        return torch.from_numpy(rng.uniform(0.5, 1, (24, groups)).astype(np.float32))

    zeros = torch.from_numpy(rng.integers(0, 16, (24, 3)).astype(np.uint8))
    index = torch.from_numpy(rng.permutation(np.arange(384) // 128).astype(np.int32))
    uneven = torch.zeros(384, dtype=torch.int32)
    return [
        ("one scale a row", int8_weight(eights, scales(1), None, None, ""), True),
        ("groups", int8_weight(eights, scales(3), zeros.to(torch.int8), None, ""), True),
        ("small groups", int8_weight(eights, scales(12), None, None, ""), False),
        ("int4", int4_weight(fours, 384, scales(3), None, None, ""), True),
        ("int4 with zeros", int4_weight(fours, 384, scales(3), zeros, None, ""), True),
        ("int4 in act-order", int4_weight(fours, 384, scales(3), zeros, index, ""), True),
        ("int4 in an odd order", int4_weight(fours, 384, scales(3), zeros, uneven, ""), False),
        ("an odd row", int4_weight(fours[:, :50], 99, scales(1), None, None, ""), True),
        ("int8 from unsigned", int_weight(eights.view(torch.uint8), 8, scales(3), None, None, ""), True),
        ("wide", random.weight(rng, 24, 384, CPU, "float32", False), False),
    ]


@pytest.mark.parametrize(("name", "weight", "own"), weights(), ids=lambda x: x if isinstance(x, str) else "")
def test_products(name: str, weight: Weight, own: bool) -> None:
    kernels = Kernels()
    operator = kernels.operators()["linear"]
    operator.pack(weight)
    assert (packed(weight) is not None) == own
    form = weight.prepared[KEY]
    x = random.normal(np.random.default_rng(4), 5, weight.shape[1], device=CPU)
    assert torch.allclose(operator(x, weight), linear(x, weight), rtol=1e-3, atol=1e-2)
    assert bool(kernels.calls) == own
    assert weight.prepared[KEY] is form, "packed once"
    assert operator(x[:0], weight).shape == (0, 24)


def test_stacks_and_biases_and_rounded_inputs() -> None:
    rng = np.random.default_rng(5)
    wide = [random.weight(rng, rows, 256, CPU, "float32", bias=False) for rows in (16, 8)]
    parts = tuple(quantize_weight(weight, kind) for weight, kind in zip(wide, ("int8", "int4"), strict=True))
    stack = Weight("stack", (24, 256), {}, lambda w: w.dequantize(), bias=torch.arange(24.0), parts=parts)
    x = random.normal(rng, 3, 256, device=CPU)
    table = Kernels().operators()
    assert torch.allclose(table["linear"](x, stack), linear(x, stack), atol=1e-3)
    parts[0].bias = torch.ones(16)
    assert torch.allclose(table["linear"](x, parts[0]), linear(x, parts[0]), atol=1e-3)
    batch = random.batch(rng, random.Shape((3,), (0,), 16), CPU)
    for cap in (None, 5.0):
        found = table["logits"](x, batch, stack, cap)
        assert torch.allclose(found, logits(x, batch, stack, cap), atol=1e-3)
    assert table["logits"].pack == table["linear"].pack


def test_attention_gets_the_shapes_of_its_work() -> None:
    rng, kernels = np.random.default_rng(6), Kernels()
    batch, kv = random.batch(rng, SHAPE, CPU), random.cache(rng, SHAPE, LayerKV(2, 16), CPU, "int8")
    q = random.normal(rng, 7, 6 * 16, device=CPU)
    own = kernels.operators()["attention"]
    assert torch.equal(own(q, batch, kv, 0, 0.25, 9, None, None, None), 2 * q)
    assert kernels.calls == [
        (
            "attention",
            {"scale": 0.25, "head_dim": 16, "window": 9, "soft_cap": None, "tile": (7, 3, 3), "interpret": True},
        )
    ]
    assert not len(own(q[:0], batch, kv, 0, 0.25, None, None, None, None))
    assert attention(q, batch, kv, 0, 0.25, None, None, None, None).shape == q.shape


def test_rows_are_padded_to_complete_lanes() -> None:
    rng, kernels = np.random.default_rng(8), Kernels()
    layout = KVLayout(tuple(LayerKV(2, size) for size in (16, 128, 192)), 16, "float32").padded(LANES)
    assert [layer.head_dim for layer in layout.layers] == [128, 128, 256]
    batch, kv = random.batch(rng, SHAPE, CPU), random.cache(rng, SHAPE, LayerKV(2, 16), CPU, "float32")
    narrow = copy.deepcopy(kv)
    for store in (kv.keys, kv.values):
        store[0] = torch.nn.functional.pad(store[0], (0, 112))
    qkv, table = random.normal(rng, 7, 6 * 16, device=CPU), torch.cat([torch.ones(64, 8), torch.zeros(64, 8)], 1)
    own = kernels.operators()["rotary_cache"]
    for cache in (kv, narrow):
        own(qkv, batch, cache, 0, table, 2, None, None, 1e-6)
    assert torch.equal(kv.keys[0][..., :16], narrow.keys[0])
    assert not kv.keys[0][..., 16:].any()


@pytest.mark.parametrize("store", ["float32", "int8"])
def test_keys_and_values_are_written_by_the_kernel(store: str) -> None:
    rng, kernels = np.random.default_rng(7), Kernels()
    batch, kv = random.batch(rng, SHAPE, CPU), random.cache(rng, SHAPE, LayerKV(2, 16), CPU, store)
    assert kv.layout == KVLayout((LayerKV(2, 16),), 16, store)
    qkv = random.normal(rng, 7, 6 * 16, device=CPU)
    table = torch.cat([torch.ones(64, 8), torch.zeros(64, 8)], 1)
    wanted = copy.deepcopy(kv)
    q = rotary_cache(qkv, batch, wanted, 0, table, 2, None, None, 1e-6)
    own = kernels.operators()["rotary_cache"]
    assert torch.allclose(own(qkv, batch, kv, 0, table, 2, None, None, 1e-6), q)
    assert torch.equal(kv.keys[0], wanted.keys[0])
    assert torch.equal(kv.values[0], wanted.values[0])
    assert len(kernels.calls) == 2
