"""compressed-tensors checkpoints (llm-compressor's format, library version 0.19): one scheme for each group of modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.errors import UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.quant.activations import input_rule
from headrace.quant.bits import unpack_stream
from headrace.quant.cache_hint import CacheHint
from headrace.quant.checks import expect
from headrace.quant.containers import fp8_weight, int4_weight, int8_weight, int_weight, mxfp4_weight, nvfp4_weight
from headrace.quant.scheme import Reader
from headrace.quant.tiles import column_groups, expand_tiles

__all__ = ["CompressedTensors"]

Tensor = torch.Tensor
_FORMATS = (
    "float-quantized",
    "int-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
)


@dataclass(frozen=True, slots=True)
class _Group:
    """One entry of `config_groups`, checked."""

    targets: tuple[str, ...]
    format: str
    bits: int
    kind: str
    """`int` or `float`"""
    strategy: str
    group_size: int | None
    block: tuple[int, int] | None
    symmetric: bool
    activation: str | None


class CompressedTensors:
    """A `Scheme`. Raises UnsupportedModel that names the first setting that is not built."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        for key in ("sparsity_config", "transform_config"):
            value = config.get(key)
            if value and value != {"format": "dense"}:
                raise UnsupportedModel(f"compressed-tensors: {key} = {str(value)[:80]} is not supported")
        self._cache = CacheHint(config.get("kv_cache_scheme"), "compressed-tensors")
        groups = config.get("config_groups") or {}
        whole = config.get("format") or ""
        self._groups = tuple(_read_group(name, group, whole) for name, group in groups.items())
        self._ignore = tuple(config.get("ignore") or ())

    def covers(self, module: str, reader: Reader) -> bool:
        self._cache.read(
            module, reader
        )  # here, since a projection that is ignored may have scales of the cache beside it
        return not _matches(module, self._ignore, by_class=False) and self._find(module) is not None

    def _find(self, module: str) -> _Group | None:
        """By name or pattern first, then by class: every matrix of a decoder but its embedding is a `Linear`."""
        for by_class in (False, True):
            for group in self._groups:
                if _matches(module, group.targets, by_class):
                    return group
        return None

    def load(self, module: str, shape: tuple[int, int], reader: Reader) -> Weight:
        group = self._find(module)
        assert group is not None
        weight = _LOADERS[group.format](module, shape, group, reader)
        weight.activation = group.activation
        if group.activation in ("fp8_tensor", "int8_tensor"):
            scale = reader.get(f"{module}.input_scale").float().reshape(-1)
            weight.tensors["input_scale"] = expect(reader, f"{module}.input_scale", scale, (1,))
        if group.activation == "nvfp4":
            scale = reader.get(f"{module}.input_global_scale").float().reshape(-1)
            weight.tensors["input_global_scale"] = expect(reader, f"{module}.input_global_scale", scale, (1,))
        return weight


def _matches(module: str, targets: Sequence[str], by_class: bool) -> bool:
    if by_class:
        return "Linear" in targets and not module.endswith("embed_tokens")
    for target in targets:
        if target.startswith("re:"):
            if re.match(target[3:], module):
                return True
        elif target == module:
            return True
    return False


def _read_group(name: str, group: Mapping[str, Any], whole: str) -> _Group:
    layout = group.get("format") or whole
    where = f"compressed-tensors: {name}"
    if layout not in _FORMATS:
        raise UnsupportedModel(f"{where}: format {layout!r} is not supported: {', '.join(_FORMATS)} are")
    weights = group.get("weights") or {}
    if group.get("output_activations"):
        raise UnsupportedModel(f"{where}: quantised output_activations are not supported")
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    if weights.get("dynamic") or not isinstance(bits, int):
        raise UnsupportedModel(f"{where}: weights of {bits} bits, dynamic {weights.get('dynamic')} are not supported")
    if (kind == "float" and bits not in (4, 8)) or not 1 <= bits <= 8:
        raise UnsupportedModel(f"{where}: {kind} weights of {bits} bits are not supported")
    strategy = weights.get("strategy") or "tensor"
    if strategy not in ("tensor", "channel", "group", "block", "tensor_group"):
        raise UnsupportedModel(f"{where}: weight strategy {strategy!r} is not supported")
    block = weights.get("block_structure")
    return _Group(
        targets=tuple(group.get("targets") or ()),
        format=layout,
        bits=bits,
        kind=kind,
        strategy=strategy,
        group_size=weights.get("group_size"),
        block=None if block is None else (int(block[0]), int(block[1])),
        symmetric=bool(weights.get("symmetric", True)),
        activation=input_rule(group.get("input_activations"), where),
    )


def _scales(module: str, shape: tuple[int, int], group: _Group, reader: Reader) -> Tensor:
    """float32 [N, G] whatever the strategy."""
    name = f"{module}.weight_scale"
    return expand_tiles(reader, name, reader.get(name).float(), shape, group.block or (shape[0], shape[1]))


def _group_index(module: str, shape: tuple[int, int], group: _Group, groups: int, reader: Reader) -> Tensor | None:
    name = f"{module}.weight_g_idx"
    if reader.has(name):
        index = expect(reader, name, reader.get(name), (shape[1],)).int()
        if int(index.min()) >= 0:
            return index
    size = group.group_size if group.strategy == "group" else group.block[1] if group.block else None
    return column_groups(shape[1], groups, size)


def _packed_int(module: str, shape: tuple[int, int], group: _Group, reader: Reader) -> Weight:
    name = f"{module}.weight_packed"
    words = -(-shape[1] * group.bits // 32)
    packed = expect(reader, name, reader.get(name), (shape[0], words), torch.int32)
    if reader.has(f"{module}.weight_shape"):
        expect(reader, name, torch.empty(tuple(reader.get(f"{module}.weight_shape").tolist()), device="meta"), shape)
    scales = _scales(module, shape, group, reader)
    zeros = None
    if not group.symmetric:
        zeros = _packed_zeros(module, shape, group, scales.shape[1], reader)
    index = _group_index(module, shape, group, scales.shape[1], reader)
    if group.bits == 4:
        # Eight codes to a word, lowest first, is two to a byte, lowest first: a view of the file.
        codes = packed.view(torch.uint8)[:, : -(-shape[1] // 2)]
        return int4_weight(codes, shape[1], scales, zeros, index, name)
    return int_weight(unpack_stream(packed, group.bits, shape[1]), group.bits, scales, zeros, index, name)


def _packed_zeros(module: str, shape: tuple[int, int], group: _Group, groups: int, reader: Reader) -> Tensor:
    """uint8 [N, G]; packed down the rows where the strategy has one a row, plain int8 where there is one in all."""
    name = f"{module}.weight_zero_point"
    stored = reader.get(name)
    if stored.dtype == torch.int32:
        expect(reader, name, stored, (-(-shape[0] * group.bits // 32), groups))
        return unpack_stream(stored.T.contiguous(), group.bits, shape[0]).T.contiguous()
    middle = 1 << (group.bits - 1)
    return expand_tiles(reader, name, (stored.int() + middle).to(torch.uint8), shape, shape)


def _plain(module: str, shape: tuple[int, int], group: _Group, reader: Reader) -> Weight:
    """One code an element: int8 or E4M3, a view of the file."""
    name = f"{module}.weight"
    codes = reader.get(name)
    wanted = torch.float8_e4m3fn if group.kind == "float" else torch.int8
    if group.kind == "float" and group.bits == 4:
        raise reader.error("four-bit floats one to a byte are not supported", name)
    expect(reader, name, codes, shape, wanted)
    scales = _scales(module, shape, group, reader)
    index = _group_index(module, shape, group, scales.shape[1], reader)
    if group.kind == "float":
        return fp8_weight(codes, scales, index, name)
    zeros = None
    if not group.symmetric:
        stored = reader.get(f"{module}.weight_zero_point")
        zeros = expand_tiles(reader, f"{module}.weight_zero_point", stored, shape, group.block or shape)
    return int8_weight(codes, scales, zeros, index, name)


def _mxfp4(module: str, shape: tuple[int, int], group: _Group, reader: Reader) -> Weight:
    name = f"{module}.weight_packed"
    packed = expect(reader, name, reader.get(name), (shape[0], shape[1] // 2), torch.uint8)
    scale = f"{module}.weight_scale"
    scales = expect(reader, scale, reader.get(scale), (shape[0], shape[1] // 32), torch.uint8)
    return mxfp4_weight(packed, scales, name)


def _mxfp8(module: str, shape: tuple[int, int], group: _Group, reader: Reader) -> Weight:
    name = f"{module}.weight"
    codes = expect(reader, name, reader.get(name), shape, torch.float8_e4m3fn)
    scale = f"{module}.weight_scale"
    exponents = expect(reader, scale, reader.get(scale), (shape[0], shape[1] // 32), torch.uint8)
    return fp8_weight(codes, torch.ldexp(torch.tensor(1.0), exponents.int() - 127), None, name)


def _nvfp4(module: str, shape: tuple[int, int], group: _Group, reader: Reader) -> Weight:
    name = f"{module}.weight_packed"
    packed = expect(reader, name, reader.get(name), (shape[0], shape[1] // 2), torch.uint8)
    scale = f"{module}.weight_scale"
    scales = expect(reader, scale, reader.get(scale), (shape[0], shape[1] // 16), torch.float8_e4m3fn)
    whole = reader.get(f"{module}.weight_global_scale")
    return nvfp4_weight(packed, scales, whole, name)


_LOADERS = {
    "float-quantized": _plain,
    "int-quantized": _plain,
    "naive-quantized": _plain,
    "pack-quantized": _packed_int,
    "mxfp4-pack-quantized": _mxfp4,
    "mxfp8-quantized": _mxfp8,
    "nvfp4-pack-quantized": _nvfp4,
}
