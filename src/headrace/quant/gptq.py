"""GPTQ's layout (arXiv:2210.17323, as AutoGPTQ writes it): every width, group size, symmetry and activation order.

`qweight` int32 [K bits / 32, N] holds codes in bit streams down the columns, `qzeros` int32 [G, N bits / 32] zero
points along the rows, `scales` float16 [G, N], `g_idx` int32 [K] the group of every input. Version 1 stores each zero
point minus one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headrace.errors import UnsupportedModel, excerpt
from headrace.kernels.weight import Weight
from headrace.quant.bits import unpack_stream
from headrace.quant.checks import expect, floats, indices
from headrace.quant.containers import int_weight
from headrace.quant.scheme import CONFIG_KEY, TensorReader
from headrace.settings import Settings

__all__ = ["GPTQ"]

Tensor = torch.Tensor
_WIDTHS = (2, 3, 4, 8)


class GPTQ:
    """The `gptq` scheme. The shapes of a module's tensors give the width of its codes, so mixed widths need no rule."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = Settings(config, within=CONFIG_KEY)
        layout = settings.text("checkpoint_format", settings.text("format", "gptq"))
        if layout not in ("gptq", "gptq_v2"):
            raise UnsupportedModel(f"gptq: checkpoint_format {excerpt(layout)} is not supported: gptq and gptq_v2 are")
        settings.refuse("gptq", {"is_marlin_format": False, "pack_dtype": "int32"})
        meta = settings.section("meta")
        if meta is not None and meta.get("adapter"):
            raise UnsupportedModel("gptq: an adapter inside the checkpoint is not supported")
        self._offset = 1 if layout == "gptq" else 0

    def covers(self, module: str, reader: TensorReader) -> bool:
        return reader.has(f"{module}.qweight")

    def load(self, module: str, shape: tuple[int, int], reader: TensorReader) -> Weight:
        rows, columns = shape
        name = f"{module}.qweight"
        packed = reader.get(name)
        bits = packed.shape[0] * 32 // columns if packed.dim() == 2 else 0
        if bits not in _WIDTHS:
            raise reader.error(
                f"has shape {list(packed.shape)}: no width of 2, 3, 4 or 8 bits gives {columns} inputs", name
            )
        expect(reader, name, packed, (columns * bits // 32, rows), torch.int32)
        scales = floats(reader, f"{module}.scales")
        groups = scales.shape[0] if scales.dim() == 2 else 0
        expect(reader, f"{module}.scales", scales, (max(groups, 1), rows))
        stored = reader.get(f"{module}.qzeros")
        expect(reader, f"{module}.qzeros", stored, (groups, -(-rows * bits // 32)), torch.int32)
        # Zero points are stored modulo 2^bits, so adding the one back must wrap, too.
        zeros = (unpack_stream(stored, bits, rows) + self._offset) & ((1 << bits) - 1)
        codes = unpack_stream(packed.T.contiguous(), bits, columns)
        index = self._group_index(module, columns, groups, reader)
        weight = int_weight(codes, bits, scales.T.contiguous(), zeros.T.contiguous(), index, name)
        if reader.has(f"{module}.bias"):
            # AutoGPTQ writes a bias for every module: all zeros if the architecture has none.
            bias = expect(reader, f"{module}.bias", floats(reader, f"{module}.bias"), (rows,))
            weight.bias = bias if bool(bias.any()) else None
        return weight

    def _group_index(self, module: str, columns: int, groups: int, reader: TensorReader) -> Tensor | None:
        """The group of each column; None if the groups are equal runs in order."""
        name = f"{module}.g_idx"
        if not reader.has(name):
            if columns % groups:
                raise reader.error(f"is missing: {columns} inputs don't divide into {groups} groups", name)
            return None
        index = indices(reader, name, columns, groups)
        if int(index.min()) < 0:
            raise reader.error(f"names group {int(index.min())}", name)
        if columns % groups == 0 and bool((index == torch.arange(columns) // (columns // groups)).all()):
            return None
        return index
