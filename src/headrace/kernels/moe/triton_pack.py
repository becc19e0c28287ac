"""Packs the experts' matrices for the Triton products: one tensor for all parts of a stack, made once at load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from headrace.kernels.linear import triton_pack as linear
from headrace.kernels.linear.triton_pack import TritonPacked
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["KEY", "Experts", "experts"]

Tensor = torch.Tensor
_log = logging.getLogger(__name__)
KEY = "triton:experts"
"""The key of the packed experts in `Weight.prepared`."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Packed experts.

    `form` is the first part. All parts have the same form; the tensors hold all of them, with one more dimension.
    """

    form: TritonPacked
    codes: Tensor
    scales: Tensor | None = None
    offsets: Tensor | None = None
    order: Tensor | None = None
    by_reference: bool = False
    """Each part rounds its inputs with its own scales, so that a grouped product is not possible."""

    @property
    def size(self) -> int:
        """Elements of one part's codes."""
        return self.codes[0].numel()


def experts(weight: Weight, config: LaunchConfig) -> Experts:
    """The packed experts of a weight, made at the first call."""
    found: Experts | None = weight.prepared.get(KEY)
    if found is None:
        found = weight.prepared[KEY] = _pack(weight, config)
    return found


def _pack(weight: Weight, config: LaunchConfig) -> Experts:
    forms = [_form(part, config) for part in weight.parts]
    if any(form.source is not None for form in forms) and not _same_rounding(weight.parts):
        _log.info("%s: each expert rounds its inputs separately: the reference is used", weight.name or "experts")
        return Experts(forms[0], forms[0].codes, by_reference=True)
    if len({_key(form) for form in forms}) > 1:
        _log.info("%s: the experts' formats differ: they are dequantized to %s", weight.name or "experts", config.dtype)
        forms = [TritonPacked("dense", part.dequantize().to(config.dtype), part.shape) for part in weight.parts]
    codes = torch.stack([form.codes for form in forms])
    if forms[0].kind == "dense":
        _share(weight.parts, codes)
    scales, offsets, order = (_join([getattr(f, name) for f in forms]) for name in ("scales", "offsets", "order"))
    return Experts(replace(forms[0], codes=codes[0]), codes, scales, offsets, order)


def _form(part: Weight, config: LaunchConfig) -> TritonPacked:
    """The packed form of `linear`, removed from the part's `prepared`."""
    form = linear.packed(part, config)[0]
    del part.prepared[linear.KEY]
    return form


def _key(form: TritonPacked) -> tuple[object, ...]:
    given = tuple(x if x is None else (x.dtype, tuple(x.shape)) for x in (form.codes, form.scales, form.offsets))
    return form.kind, form.shape, form.offset, form.unit, form.order is None, given


def _same_rounding(parts: Sequence[Weight]) -> bool:
    """Whether inputs can be rounded once for all parts: one rule, which depends only on each row."""
    static = ("int8_tensor", "fp8_tensor", "nvfp4")
    return len({part.activation for part in parts}) == 1 and parts[0].activation not in static


def _join(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [x for x in tensors if x is not None]
    return torch.stack(present) if present else None


def _share(parts: Sequence[Weight], codes: Tensor) -> None:
    """Replace the parts' matrices by views, so that memory holds them once."""
    for index, part in enumerate(parts):
        if set(part.tensors) == {"weight"} and part.tensors["weight"].dtype == codes.dtype:
            part.tensors["weight"] = codes[index]
