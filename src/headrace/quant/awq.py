"""AWQ's layout (arXiv:2306.00978, as AutoAWQ's GEMM kernels read it): four bits, eight interleaved outputs per word.

`qweight` int32 [K, N / 8], `qzeros` int32 [G, N / 8], `scales` float16 [G, N].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headrace.errors import UnsupportedModel, excerpt
from headrace.kernels.weight import Weight
from headrace.quant.bits import unpack_stream
from headrace.quant.checks import expect, floats
from headrace.quant.containers import int_weight
from headrace.quant.scheme import CONFIG_KEY, TensorReader
from headrace.settings import Settings

__all__ = ["AWQ"]

Tensor = torch.Tensor
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Output j of a word is stored in nibble _PLACES[j]."""


class AWQ:
    """The `awq` scheme."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = Settings(config, within=CONFIG_KEY)
        named = (settings.optional_text(key) for key in ("version", "checkpoint_format", "format"))
        version = next(filter(None, named), "gemm").lower()
        if version != "gemm":
            raise UnsupportedModel(f"awq: version {excerpt(version)} is not supported: gemm is")
        if settings.get("backend") == "llm-awq":
            raise UnsupportedModel("awq: backend 'llm-awq' has a different layout and is not supported")
        bits = settings.integer("bits", settings.integer("w_bit", 4))
        if bits != 4:
            raise UnsupportedModel(f"awq: {bits} bits are not supported: 4 are")

    def covers(self, module: str, reader: TensorReader) -> bool:
        return reader.has(f"{module}.qweight")

    def load(self, module: str, shape: tuple[int, int], reader: TensorReader) -> Weight:
        rows, columns = shape
        if rows % 8:
            raise reader.error(f"has {rows} outputs: expected a multiple of 8", f"{module}.qweight")
        packed, scales = reader.get(f"{module}.qweight"), floats(reader, f"{module}.scales")
        expect(reader, f"{module}.qweight", packed, (columns, rows // 8), torch.int32)
        groups = scales.shape[0] if scales.dim() == 2 else 0
        if groups == 0 or columns % groups:
            raise reader.error(
                f"has shape {list(scales.shape)}: {columns} inputs don't divide into {groups} groups",
                f"{module}.scales",
            )
        expect(reader, f"{module}.scales", scales, (groups, rows))
        zeros = None
        if reader.has(f"{module}.qzeros"):
            stored = reader.get(f"{module}.qzeros")
            expect(reader, f"{module}.qzeros", stored, (groups, rows // 8), torch.int32)
            zeros = _outputs(stored, rows).T.contiguous()
        codes = _outputs(packed, rows).T.contiguous()
        return int_weight(codes, 4, scales.T.contiguous(), zeros, None, f"{module}.qweight")


def _outputs(packed: Tensor, rows: int) -> Tensor:
    """Unpack int32 [M, rows / 8] to uint8 [M, rows], outputs in order."""
    return unpack_stream(packed, 4, rows).view(-1, rows // 8, 8)[:, :, list(_PLACES)].reshape(-1, rows)
