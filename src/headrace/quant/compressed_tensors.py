"""compressed-tensors checkpoints (llm-compressor's format, library version 0.19): one scheme per group of modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.errors import UnsupportedModel, excerpt, truncate
from headrace.kernels.weight import Weight
from headrace.quant.activations import input_rule
from headrace.quant.bits import unpack_stream
from headrace.quant.cache_hint import CacheHint
from headrace.quant.checks import expect, floats, indices, one_scale
from headrace.quant.containers import fp8_weight, int4_weight, int8_weight, int_weight, mxfp4_weight, nvfp4_weight
from headrace.quant.scale_tiles import column_groups, expand_tiles
from headrace.quant.scheme import CONFIG_KEY, TensorReader
from headrace.settings import Settings

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
    """One validated entry of `config_groups`."""

    targets: tuple[str, ...]
    format: str
    bits: int
    kind: str
    """`int` or `float`."""
    strategy: str
    group_size: int | None
    block: tuple[int, int] | None
    symmetric: bool
    activation: str | None


class CompressedTensors:
    """The `compressed-tensors` scheme. Raises UnsupportedModel that names the first unsupported setting."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = Settings(config, within=CONFIG_KEY)
        for key in ("sparsity_config", "transform_config"):
            value = settings.get(key)
            if value and value != {"format": "dense"}:
                raise UnsupportedModel(f"compressed-tensors: {key} = {excerpt(value)} is not supported")
        self._cache = CacheHint(settings.get("kv_cache_scheme"), "compressed-tensors")
        whole = settings.text("format", "")
        groups = settings.sections("config_groups")
        self._groups = tuple(_read_group(name, group, whole) for name, group in groups.items())
        self._ignore = _targets(settings, "ignore")

    def covers(self, module: str, reader: TensorReader) -> bool:
        # Read here, because an ignored projection may still have scales of the cache.
        self._cache.read(module, reader)
        return not _matches(module, self._ignore, by_class=False) and self._find(module) is not None

    def _find(self, module: str) -> _Group | None:
        """The module's group, by name or pattern first, then by class: all matrices but the embedding are `Linear`."""
        for by_class in (False, True):
            for group in self._groups:
                if _matches(module, group.targets, by_class):
                    return group
        return None

    def load(self, module: str, shape: tuple[int, int], reader: TensorReader) -> Weight:
        group = self._find(module)
        assert group is not None
        weight = _LOADERS[group.format](module, shape, group, reader)
        weight.activation = group.activation
        if group.activation in ("fp8_tensor", "int8_tensor"):
            weight.tensors["input_scale"] = one_scale(reader, f"{module}.input_scale")
        if group.activation == "nvfp4":
            weight.tensors["input_global_scale"] = one_scale(reader, f"{module}.input_global_scale")
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


def _targets(settings: Settings, key: str) -> tuple[str, ...]:
    """The targets: names of modules, or `re:` and a pattern. Raises CheckpointError for an invalid pattern."""
    targets = tuple(settings.texts(key))
    for target in targets:
        if target.startswith("re:"):
            try:
                re.compile(target[3:])
            except (re.error, RecursionError, OverflowError) as error:
                raise settings.wrong(key, target, f"a regular expression ({error})") from error
    return targets


def _read_group(name: str, group: Settings, whole: str) -> _Group:
    layout = group.text("format", whole)
    where = f"compressed-tensors: {truncate(name, 60)}"
    if layout not in _FORMATS:
        raise UnsupportedModel(f"{where}: format {excerpt(layout)} is not supported: {', '.join(_FORMATS)} are")
    weights = group.section("weights") or Settings({}, within=group.name("weights"))
    if group.get("output_activations"):
        raise UnsupportedModel(f"{where}: quantized output_activations are not supported")
    if not group.get("weights"):
        raise UnsupportedModel(f"{where}: a group without quantized weights is not supported")
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    if weights.get("dynamic"):
        raise UnsupportedModel(f"{where}: weights of dynamic {excerpt(weights.get('dynamic'))} are not supported")
    if kind not in ("int", "float") or (kind == "float" and bits not in (4, 8)) or bits > 8:
        raise UnsupportedModel(f"{where}: {truncate(kind, 40)} weights of {bits} bits are not supported")
    strategy = weights.text("strategy", "tensor")
    if strategy not in ("tensor", "channel", "group", "block", "tensor_group"):
        raise UnsupportedModel(f"{where}: weight strategy {excerpt(strategy)} is not supported")
    return _Group(
        targets=_targets(group, "targets"),
        format=layout,
        bits=bits,
        kind=kind,
        strategy=strategy,
        group_size=_group_size(weights),
        block=weights.pair("block_structure"),
        symmetric=weights.flag("symmetric", True),
        activation=input_rule(group.section("input_activations"), where),
    )


def _group_size(weights: Settings) -> int | None:
    """The group size; None if there are no groups, which is also written as -1."""
    return None if weights.get("group_size") == -1 else weights.optional_integer("group_size")


def _scales(module: str, shape: tuple[int, int], group: _Group, reader: TensorReader) -> Tensor:
    """The scales as float32 [N, G], independently of the strategy."""
    name = f"{module}.weight_scale"
    return expand_tiles(reader, name, floats(reader, name), shape, group.block or (shape[0], shape[1]))


def _group_index(
    module: str, shape: tuple[int, int], group: _Group, groups: int, reader: TensorReader
) -> Tensor | None:
    name = f"{module}.weight_g_idx"
    if reader.has(name):
        index = indices(reader, name, shape[1], groups)
        if int(index.min()) >= 0:
            return index
    size = group.group_size if group.strategy == "group" else group.block[1] if group.block else None
    return column_groups(shape[1], groups, size)


def _packed_int(module: str, shape: tuple[int, int], group: _Group, reader: TensorReader) -> Weight:
    name = f"{module}.weight_packed"
    words = -(-shape[1] * group.bits // 32)
    packed = expect(reader, name, reader.get(name), (shape[0], words), torch.int32)
    if reader.has(f"{module}.weight_shape"):
        stated = reader.get(f"{module}.weight_shape").reshape(-1).tolist()
        if stated != list(shape):
            raise reader.error(f"is {excerpt(stated)}: expected {list(shape)}", f"{module}.weight_shape")
    scales = _scales(module, shape, group, reader)
    zeros = None
    if not group.symmetric:
        zeros = _packed_zeros(module, shape, group, scales.shape[1], reader)
    index = _group_index(module, shape, group, scales.shape[1], reader)
    if group.bits == 4:
        # Eight codes per word, lowest first, equal two per byte, lowest first: a view of the file suffices.
        codes = packed.view(torch.uint8)[:, : -(-shape[1] // 2)]
        return int4_weight(codes, shape[1], scales, zeros, index, name)
    return int_weight(unpack_stream(packed, group.bits, shape[1]), group.bits, scales, zeros, index, name)


def _packed_zeros(module: str, shape: tuple[int, int], group: _Group, groups: int, reader: TensorReader) -> Tensor:
    """Zero points, uint8 [N, G]: packed along the rows if there is one per row, plain int8 if there is only one."""
    name = f"{module}.weight_zero_point"
    stored = reader.get(name)
    if stored.dtype == torch.int32:
        expect(reader, name, stored, (-(-shape[0] * group.bits // 32), groups))
        return unpack_stream(stored.T.contiguous(), group.bits, shape[0]).T.contiguous()
    middle = 1 << (group.bits - 1)
    return expand_tiles(reader, name, (stored.int() + middle).to(torch.uint8), shape, shape)


def _plain(module: str, shape: tuple[int, int], group: _Group, reader: TensorReader) -> Weight:
    """A weight with one code per element: int8 or E4M3, a view of the file."""
    name = f"{module}.weight"
    codes = reader.get(name)
    wanted = torch.float8_e4m3fn if group.kind == "float" else torch.int8
    if group.kind == "float" and group.bits == 4:
        raise reader.error("four-bit floats stored one per byte are not supported", name)
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


def _whole_groups(reader: TensorReader, name: str, shape: tuple[int, int], size: int) -> None:
    if shape[1] % size:
        raise reader.error(f"has {shape[1]} columns: expected a multiple of {size}", name)


def _mxfp4(module: str, shape: tuple[int, int], group: _Group, reader: TensorReader) -> Weight:
    name = f"{module}.weight_packed"
    _whole_groups(reader, name, shape, 32)
    packed = expect(reader, name, reader.get(name), (shape[0], shape[1] // 2), torch.uint8)
    scale = f"{module}.weight_scale"
    scales = expect(reader, scale, reader.get(scale), (shape[0], shape[1] // 32), torch.uint8)
    return mxfp4_weight(packed, scales, name)


def _mxfp8(module: str, shape: tuple[int, int], group: _Group, reader: TensorReader) -> Weight:
    name = f"{module}.weight"
    _whole_groups(reader, name, shape, 32)
    codes = expect(reader, name, reader.get(name), shape, torch.float8_e4m3fn)
    scale = f"{module}.weight_scale"
    exponents = expect(reader, scale, reader.get(scale), (shape[0], shape[1] // 32), torch.uint8)
    return fp8_weight(codes, torch.ldexp(torch.tensor(1.0), exponents.int() - 127), None, name)


def _nvfp4(module: str, shape: tuple[int, int], group: _Group, reader: TensorReader) -> Weight:
    name = f"{module}.weight_packed"
    _whole_groups(reader, name, shape, 16)
    packed = expect(reader, name, reader.get(name), (shape[0], shape[1] // 2), torch.uint8)
    scale = f"{module}.weight_scale"
    scales = expect(reader, scale, reader.get(scale), (shape[0], shape[1] // 16), torch.float8_e4m3fn)
    whole = one_scale(reader, f"{module}.weight_global_scale")
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
