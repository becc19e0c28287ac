"""The Pallas operators as callables that a platform binds: torch tensors in and out, JAX functions between.

A `Call` puts a JAX function into the platform's graph: call(function, *tensors, **static).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from headrace.kernels.kv import TorchKV
from headrace.kernels.linear import static as dense
from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.linear.pallas_pack import PallasPacked, packed
from headrace.kernels.ops import Batch
from headrace.kernels.rotary_cache.static import rotary_cache, scatter
from headrace.kernels.weight import Weight

__all__ = ["Call", "Logits", "Products", "operators"]

Tensor = torch.Tensor
Call = Callable[..., Any]


def operators(
    call: Call,
    dtype: torch.dtype | None,
    interpret: bool = False,
    load: Callable[[str], Any] = importlib.import_module,
) -> Mapping[str, Callable[..., Any]]:
    """The operators `attention`, `rotary_cache`, `linear` and `logits`; the last two have `pack`.

    Imports JAX: raises ImportError if it is not installed. Tests replace the import by another `load`.
    """
    kernels = {name: load(f"headrace.kernels.{name}.pallas") for name in _KERNELS}
    products = Products(kernels["linear"].product, call, dtype, interpret)
    return {
        "attention": partial(_attention, kernels["attention"], call, interpret),
        "rotary_cache": partial(_rotary_cache, kernels["rotary_cache"].write, call, interpret),
        "linear": products,
        "logits": Logits(products),
    }


_KERNELS = ("attention", "linear", "rotary_cache")


def _attention(
    kernel: Any,
    call: Call,
    interpret: bool,
    q: Tensor,
    batch: Batch,
    kv: TorchKV,
    layer: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    alibi: Tensor | None,
) -> Tensor:
    if not len(q) or not len(batch.context_lens):
        return torch.zeros_like(q)
    shape = kv.layout.layers[layer]
    group = q.shape[1] // (shape.num_kv_heads * shape.head_dim)
    scales = [store[layer] if store else None for store in (kv.key_scales, kv.value_scales)]
    found: Tensor = call(
        kernel.attention, q, batch.query_start, batch.positions, batch.block_tables, kv.keys[layer], kv.values[layer],
        *scales, sinks, alibi, scale=float(scale), head_dim=shape.head_dim, window=window, soft_cap=soft_cap,
        tile=kernel.tile_rows(len(q), len(batch.context_lens), group), interpret=interpret,
    )  # fmt: skip
    return found


def _rotary_cache(
    write: Any, call: Call, interpret: bool, qkv: Tensor, batch: Batch, *args: Any, **kwargs: Any
) -> Tensor:
    """`rotary_cache` with the kernel's writes. Scales are too few for a kernel: XLA writes them."""

    def store(cache: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
        if not len(batch.context_lens):
            return scatter(cache, slots, rows)
        rows = functional.pad(rows, (0, cache.shape[-1] - rows.shape[-1]))
        found: Tensor = call(write, cache, slots, rows, sequences=len(batch.context_lens), interpret=interpret)
        return found

    return partial(rotary_cache, store=store)(qkv, batch, *args, **kwargs)


class Products:
    """`linear`: the kernel computes int8 and int4 parts, XLA the others."""

    def __init__(self, kernel: Any, call: Call, dtype: torch.dtype | None, interpret: bool) -> None:
        self._kernel, self._call, self._dtype, self._interpret = kernel, call, dtype, interpret

    def __call__(self, x: Tensor, weight: Weight) -> Tensor:
        return self.wide(x, weight).to(x.dtype)

    def pack(self, weight: Weight) -> None:
        for part in weight.parts or (weight,):
            if packed(part) is None:
                dense.pack(part, self._dtype)

    def wide(self, x: Tensor, weight: Weight) -> Tensor:
        """The product in float32, [T, N]."""
        if not weight.parts:
            return self._part(x, weight)
        out = torch.cat([self._part(x, part) for part in weight.parts], 1)
        return out if weight.bias is None else out + weight.bias

    def _part(self, x: Tensor, weight: Weight) -> Tensor:
        form = packed(weight)
        if form is None or not len(x):
            return dense.product(x, weight, self._dtype)
        out = self._quantized(quantize_activation(x, weight), form)
        return out if weight.bias is None else out + weight.bias

    def _quantized(self, x: Tensor, form: PallasPacked) -> Tensor:
        x = x if form.order is None else x[:, form.order]
        x = functional.pad(x.to(self._dtype or x.dtype), (0, form.scales.shape[0] * 128 - x.shape[1]))
        found: Tensor = self._call(
            self._kernel, x, form.codes, form.scales, form.zeros, bits=form.bits, interpret=self._interpret
        )
        return found


class Logits:
    """`logits` with the products of `Products`."""

    def __init__(self, products: Products) -> None:
        self._products = products
        self.pack = products.pack

    def __call__(self, x: Tensor, batch: Batch, head: Weight, soft_cap: float | None) -> Tensor:
        found = self._products.wide(x[batch.rows.long()], head)
        return found if soft_cap is None else torch.tanh(found / soft_cap) * soft_cap
