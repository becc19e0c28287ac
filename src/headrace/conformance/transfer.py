"""Moves inputs to a device and results back, through the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.kernels import paged
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.kernels.registry import binding
from headrace.kernels.weight import Weight
from headrace.platforms.interface import Device, PacksWeights, TorchTensors
from headrace.types import Capabilities

__all__ = ["call", "head_size", "host", "place", "write_cache"]

Array = npt.NDArray[Any]


def head_size(capabilities: Capabilities) -> int:
    """16, or the smallest head size of the device."""
    sizes = capabilities.head_sizes
    return min(sizes) if sizes and 16 not in sizes else 16


def place(device: Device, value: Any) -> Any:
    """Copy a value from the host to the device: a tensor, or a weight, batch or sampling inputs of tensors."""
    if isinstance(value, torch.Tensor):
        home = device.extension(TorchTensors)
        return device.put(value.numpy()) if home is None else value.to(home.torch_device).clone()
    if isinstance(value, Weight):
        return _place_weight(device, value)
    if isinstance(value, Batch | SampleInputs):
        moved = {f.name: place(device, getattr(value, f.name)) for f in fields(value)}
        return type(value)(**moved)
    return value


def _place_weight(device: Device, weight: Weight) -> Weight:
    """Copy a weight to a device with torch tensors; otherwise the operator's `pack` reads it from the host."""
    if device.extension(TorchTensors) is None:
        return replace(weight, prepared={})
    tensors = {name: place(device, tensor) for name, tensor in weight.tensors.items()}
    bias = None if weight.bias is None else place(device, weight.bias)
    parts = tuple(_place_weight(device, part) for part in weight.parts)
    return replace(weight, tensors=tensors, bias=bias, parts=parts, prepared={})


def host(device: Device, value: Any) -> Any:
    """Results as numpy arrays: a tensor, a tuple of tensors, or the sampler's outputs."""
    if isinstance(value, tuple):
        return tuple(host(device, item) for item in value)
    if isinstance(value, SampleOutputs):
        return {f.name: host(device, getattr(value, f.name)) for f in fields(value)}
    return device.get(value).result()


def call(device: Device, name: str, arguments: Mapping[str, Any], kv: Any = None) -> Any:
    """Call one operator on the device with arguments from the host; `kv` replaces their cache. Returns numpy arrays."""
    operator: Callable[..., Any] = getattr(binding(device), name)
    moved = {key: kv if isinstance(value, TorchKV) else place(device, value) for key, value in arguments.items()}
    for value in moved.values():
        if isinstance(operator, PacksWeights) and isinstance(value, Weight):
            operator.pack(value)
    # As the engine calls it. Torch's inference mode would hide operators without an autograd kernel.
    with torch.no_grad():
        return host(device, operator(**moved))


def write_cache(device: Device, kv: Any, source: TorchKV, layer: int = 0) -> None:
    """Fill the device's cache with the content of a host cache, through the device's own `rotary_cache`, without
    rotation."""
    layout = source.layout
    shape, places = layout.layers[layer], len(source.keys[layer]) * layout.block_size
    slots = torch.arange(places)
    block, offset = slots // layout.block_size, slots % layout.block_size
    k = paged.gather(source.keys, source.key_scales, layer, block, offset).flatten(1)
    v = paged.gather(source.values, source.value_scales, layer, block, offset).flatten(1)
    qkv = torch.cat([torch.zeros(places, shape.num_kv_heads * shape.head_dim), k, v], 1)
    table = torch.cat([torch.ones(1, shape.head_dim // 2), torch.zeros(1, shape.head_dim // 2)], 1)
    arguments = {"qkv": qkv, "batch": _one_token_each(slots), "kv": source, "layer": layer, "cos_sin": table}
    more = {"num_q_heads": shape.num_kv_heads, "q_norm": None, "k_norm": None, "eps": 1e-6}
    call(device, "rotary_cache", arguments | more, kv)


def _one_token_each(slots: torch.Tensor) -> Batch:
    """A batch in which every token is a separate sequence at position 0, written to its slot."""
    count = len(slots)
    index = torch.arange(count, dtype=torch.int32)
    zero, one = torch.zeros(count, dtype=torch.int32), torch.ones(count, dtype=torch.int32)
    return Batch(
        sizes=torch.from_numpy(np.array([count, count, 0], np.int32)),
        token_ids=zero,
        positions=zero,
        slot_mapping=slots.to(torch.int32),
        token_seq=index,
        query_start=torch.arange(count + 1, dtype=torch.int32),
        context_lens=one,
        block_tables=zero.view(-1, 1),
        slots=index,
        rows=zero[:0],
    )
