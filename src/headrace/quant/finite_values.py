"""Finds NaN and infinity in stored weights and their scales, in host memory, at the speed of reading them.

A value is not finite if all bits of its exponent are set. Read as integers, such values are the largest: the positive
ones among signed integers, the negative ones among unsigned integers. So two maxima are enough, and no value is
converted. For GGUF blocks, only the bytes that hold the exponents of the scales are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import CheckpointError
from headrace.kernels.weight import Weight
from headrace.quant.gguf_types import BLOCK_SIZES

__all__ = ["check_vector", "check_weight"]

_PIECE = 1 << 20
"""Bytes checked at a time: they stay in a core's cache for the second maximum and for the packing that follows."""
_TOPS: Mapping[torch.dtype, tuple[type[np.generic], type[np.generic], int]] = MappingProxyType(
    {
        torch.float32: (np.int32, np.uint32, 0x7F800000),
        torch.bfloat16: (np.int16, np.uint16, 0x7F80),
        torch.float16: (np.int16, np.uint16, 0x7C00),
        torch.float8_e4m3fn: (np.int8, np.uint8, 0x7F),
    }
)
"""(signed type, unsigned type, smallest positive bit pattern that is not finite) by dtype."""
_BLOCK_SCALES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "iq4_nl": (0,), "iq4_xs": (0,),
        "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
    }
)  # fmt: skip
"""Byte offsets of a block's float16 scales and minima."""
_BLOCK_BYTES = {f"gguf:{name}": size for name, _, size in BLOCK_SIZES.values()}
_POSITIVE = ("global_scale", "input_scale", "input_global_scale")
"""Scales that divide values or inputs: zero is invalid."""


def check_weight(weight: Weight, path: str) -> None:
    """Check a weight whose tensors are in host memory.

    Raises CheckpointError that names the file's tensor if a stored value, a scale or a bias is not finite, or if a
    scale of the matrix or of its inputs is not positive.
    """
    for part in weight.parts:
        check_weight(part, path)
    for key, tensor in weight.tensors.items():
        if key in _POSITIVE and not bool((tensor > 0).all()):
            found = tensor.reshape(-1)[0].item()
            raise CheckpointError(f"its {key} is {found}: expected a positive number", path, weight.name)
        if not _finite(weight.scheme, key, tensor):
            what = "values" if key in ("weight", "codes", "blocks") else key
            raise CheckpointError(f"its {what} hold NaN or infinity: fetch or save the file again", path, weight.name)
    if weight.bias is not None:
        check_vector(weight.bias, path, f"{weight.name} (bias)")


def check_vector(vector: torch.Tensor, path: str, name: str) -> None:
    """Check a norm or a bias. Raises CheckpointError if a value is not finite."""
    if not bool(torch.isfinite(vector).all()):
        raise CheckpointError("its values hold NaN or infinity: fetch or save the file again", path, name)


def _finite(scheme: str, key: str, tensor: torch.Tensor) -> bool:
    if key == "blocks":
        return _finite_blocks(scheme, tensor)
    if scheme == "mxfp4" and key == "scales":
        return _finite_exponents(tensor.numpy())
    return tensor.dtype not in _TOPS or _finite_floats(tensor)


def _finite_floats(tensor: torch.Tensor) -> bool:
    signed, unsigned, top = _TOPS[tensor.dtype]
    integers = torch.int8 if tensor.element_size() == 1 else torch.int16 if tensor.element_size() == 2 else torch.int32
    table: npt.NDArray[np.generic] = tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1).view(integers).numpy()
    sign = 1 << (8 * tensor.element_size() - 1)
    step = max(1, _PIECE // max(1, table.shape[1] * table.itemsize))
    for at in range(0, len(table), step):
        piece = table[at : at + step]
        if piece.size and (piece.view(signed).max() >= top or piece.view(unsigned).max() >= sign + top):
            return False
    return True


def _finite_blocks(scheme: str, blocks: torch.Tensor) -> bool:
    size = _BLOCK_BYTES[scheme]
    table: npt.NDArray[np.uint8] = blocks.reshape(-1, size).numpy()
    if scheme == "gguf:mxfp4":
        return _finite_exponents(table[:, 0])
    for at in _BLOCK_SCALES[scheme.removeprefix("gguf:")]:
        high = table[:, at + 1]
        if high.size and (high.view(np.int8).max() >= 0x7C or high.max() >= 0xFC):
            return False
    return True


def _finite_exponents(exponents: npt.NDArray[np.uint8]) -> bool:
    """Whether no E8M0 scale is 255, which is NaN (OCP Microscaling Formats, section 5.4.1)."""
    return not exponents.size or int(exponents.max()) < 0xFF
