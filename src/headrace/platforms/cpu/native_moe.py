"""The native mixture of experts, on the packed weights of `native_linear`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.linear.cpu_pack import PackedWeight
from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight
from headrace.platforms.cpu.native_args import ACTIVATIONS, FIXED, Dim
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_linear import HasLauncher, NativeLinear

__all__ = ["MoEArgs", "NativeMoE"]

Tensor = torch.Tensor
_BUFFERS = ("chosen", "shares", "order", "place", "first", "hidden", "out")
_NUMBERS = (
    "experts", "top_k", "columns", "width", "sigmoid", "renormalize", "groups", "top_groups", "group_best", "kind",
)  # fmt: skip


class MoEArgs(ctypes.Structure):
    """`hr_moe_args` of `kernels/moe/cpu.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "router", "bias", "y", "gate_up", "down", *_BUFFERS)),
        ("m", Dim),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        ("scale", ctypes.c_float),
    )


class NativeMoE:
    """The operator `moe`. Its weights are packed like those of `linear`; the matrices of the experts are parts of a
    stack."""

    def __init__(self, owner: HasLauncher, matrices: NativeLinear) -> None:
        self._owner = owner
        self._matrices = matrices

    def pack(self, weight: Weight) -> None:
        self._matrices.pack(weight)

    def moe(
        self, x: Tensor, router: Tensor, gate_up: Weight, down: Weight, bias: Tensor | None, routing: Routing, kind: str
    ) -> Tensor:
        """See `ops.OptionalOps.moe`. Raises PlatformError if the weights have another number of experts than
        `router`."""
        experts, columns, width = router.shape[1], x.shape[1], down.shape[1]
        if kind not in ACTIVATIONS:
            raise PlatformError(f"moe: kind {kind!r}: choose one of {', '.join(ACTIVATIONS)}")
        launcher = self._owner.launcher
        with launcher.own():
            given = [x.float().contiguous(), router.float().contiguous()]
            offsets = None if bias is None else bias.float().contiguous()
            packed = self._matrices.packed(gate_up), self._matrices.packed(down)
            _check(packed, experts, columns, width)
            rows, y = launcher.rows(x), launcher.empty(launcher.rows(x), x.shape)
            buffers = _buffers(launcher, rows, len(x), routing.top_k, (experts, width, columns))
            args = MoEArgs(
                *(t.data_ptr() for t in given), None if offsets is None else offsets.data_ptr(), y.data_ptr(),
                *(weight.address for weight in packed), *(t.data_ptr() for t in buffers), rows, experts, routing.top_k,
                columns, width, routing.score == "sigmoid", routing.renormalize, routing.groups, routing.top_groups,
                routing.group_best, ACTIVATIONS[kind], routing.scale,
            )  # fmt: skip
            keep: list[Any] = [*given, y, *buffers, *packed]
            launcher.call("moe", args, keep if offsets is None else [*keep, offsets])
            return y.to(x.dtype)


def _buffers(launcher: Launcher, rows: Dim, tokens: int, top_k: int, sizes: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """The buffers in the order of `_BUFFERS`."""
    experts, width, columns = sizes
    pairs, count = Dim(rows.dim, rows.fixed * top_k), tokens * top_k
    chosen, order, place = (launcher.empty(pairs, (count,), torch.int32) for _ in range(3))
    shares = launcher.empty(pairs, (count,))
    first = launcher.empty(Dim(FIXED, experts + 1), (experts + 1,), torch.int32)
    hidden, out = (launcher.empty(pairs, (count, n)) for n in (width, columns))
    return chosen, shares, order, place, first, hidden, out


def _check(weights: tuple[PackedWeight, PackedWeight], experts: int, columns: int, width: int) -> None:
    expected = (("gate and up", 2 * experts, (width, columns)), ("down", experts, (columns, width)))
    for weight, (name, count, shape) in zip(weights, expected, strict=True):
        shapes = {(part.rows, weight.shape[1]) for part in weight.parts}
        if len(weight.parts) != count or shapes != {shape}:
            found = f"{len(weight.parts)} matrices of {sorted(shapes)}"
            raise PlatformError(f"moe: {name}: {found}, expected {count} of {shape}")
