"""The native mixture of experts, whole or distributed over ranks, on the packed weights of `native_linear`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.linear.cpu_pack import PackedWeight
from headrace.kernels.moe.routing import Routing
from headrace.kernels.weight import Weight
from headrace.platforms.cpu.native_args import ACTIVATIONS, FIXED, Dim
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_linear import HasLauncher, NativeLinear

__all__ = ["ExpertsArgs", "MoEArgs", "NativeMoE"]

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


class ExpertsArgs(ctypes.Structure):
    """`hr_experts_args`"""

    _fields_ = (("moe", MoEArgs), *((name, ctypes.c_int32) for name in ("begin", "held", "ranks")))


class NativeMoE:
    """The operators `moe`, `own_experts` and `mix_experts`. The weights are packed like those of `linear`; the matrices
    of the experts are parts of a stack."""

    def __init__(self, owner: HasLauncher, matrices: NativeLinear, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called before the operators of distributed experts: it raises if the library has other
        arguments."""
        self._owner = owner
        self._matrices = matrices
        self._check = check

    def table(self) -> Mapping[str, Callable[..., Any]]:
        return {"moe": self.moe, "own_experts": self.own_experts, "mix_experts": self.mix_experts}

    def pack(self, weight: Weight) -> None:
        self._matrices.pack(weight)

    def moe(
        self, x: Tensor, router: Tensor, gate_up: Weight, down: Weight, bias: Tensor | None, routing: Routing, kind: str
    ) -> Tensor:
        """See `ops.OptionalOps.moe`. Raises PlatformError if the weights have another number of experts than
        `router`."""
        launcher = self._owner.launcher
        with launcher.own():
            rows, y = launcher.rows(x), launcher.empty(launcher.rows(x), x.shape)
            args, keep = self._products(launcher, x, router, (gate_up, down), bias, routing, kind, router.shape[1], y)
            args.m = rows
            launcher.call("moe", args, keep)
            return y.to(x.dtype)

    def own_experts(
        self,
        x: Tensor,
        router: Tensor,
        gate_up: Weight,
        down: Weight,
        bias: Tensor | None,
        routing: Routing,
        kind: str,
        first: int,
    ) -> Tensor:
        """See `ops.OptionalOps.own_experts`."""
        self._check()
        launcher = self._owner.launcher
        with launcher.own():
            held = len(self._matrices.packed(down).parts)  # the stack itself may be gone by now
            rows, pairs = launcher.rows(x), len(x) * routing.top_k
            y = launcher.empty(_pairs(rows, routing), (pairs, x.shape[1]))
            args, keep = self._products(launcher, x, router, (gate_up, down), bias, routing, kind, held, y)
            args.m = rows
            launcher.call("own_experts", ExpertsArgs(args, first, held, 1), keep)
            return y

    def mix_experts(self, outputs: Tensor, router: Tensor, bias: Tensor | None, routing: Routing, ranks: int) -> Tensor:
        """See `ops.OptionalOps.mix_experts`."""
        self._check()
        launcher = self._owner.launcher
        with launcher.own():
            given = _floats(outputs, router, bias)
            rows, columns = launcher.rows(router), outputs.shape[1] // ranks
            y = launcher.empty(rows, (len(router), columns))
            chosen, shares = _choice(launcher, rows, len(router), routing)
            x, scores, offsets = (None if t is None else t.data_ptr() for t in given)
            args = MoEArgs(x=x, router=scores, bias=offsets, y=y.data_ptr(), chosen=chosen.data_ptr(),
                shares=shares.data_ptr(), m=rows, columns=columns, **_rules(router, routing))  # fmt: skip
            keep = [*(t for t in given if t is not None), y, chosen, shares]
            launcher.call("mix_experts", ExpertsArgs(args, 0, 0, ranks), keep)
            return y.to(router.dtype)

    def _products(
        self,
        launcher: Launcher,
        x: Tensor,
        router: Tensor,
        weights: tuple[Weight, Weight],
        bias: Tensor | None,
        routing: Routing,
        kind: str,
        held: int,
        y: Tensor,
    ) -> tuple[MoEArgs, list[Any]]:
        """(arguments but for the number of tokens, the objects that they point to); `weights` hold `held` experts."""
        if kind not in ACTIVATIONS:
            raise PlatformError(f"moe: kind {kind!r}: choose one of {', '.join(ACTIVATIONS)}")
        columns, width, rows = x.shape[1], weights[1].shape[1], launcher.rows(x)
        given = _floats(x, router, bias)
        packed = self._matrices.packed(weights[0]), self._matrices.packed(weights[1])
        _check(packed, held, columns, width)
        pairs, count = _pairs(rows, routing), len(x) * routing.top_k
        order, place = (launcher.empty(pairs, (count,), torch.int32) for _ in range(2))
        first = launcher.empty(Dim(FIXED, held + 1), (held + 1,), torch.int32)
        hidden, out = (launcher.empty(pairs, (count, n)) for n in (width, columns))
        buffers = (*_choice(launcher, rows, len(x), routing), order, place, first, hidden, out)
        tokens, scores, offsets = (None if t is None else t.data_ptr() for t in given)
        args = MoEArgs(
            tokens, scores, offsets, y.data_ptr(), *(weight.address for weight in packed),
            *(t.data_ptr() for t in buffers), columns=columns, width=width, kind=ACTIVATIONS[kind],
            **_rules(router, routing),
        )  # fmt: skip
        return args, [*(t for t in given if t is not None), y, *buffers, *packed]


def _floats(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.float().contiguous() for t in tensors]


def _pairs(rows: Dim, routing: Routing) -> Dim:
    return Dim(rows.dim, rows.fixed * routing.top_k)


def _choice(launcher: Launcher, rows: Dim, tokens: int, routing: Routing) -> tuple[Tensor, Tensor]:
    """Buffers of the chosen experts and of their shares."""
    pairs, count = _pairs(rows, routing), tokens * routing.top_k
    return launcher.empty(pairs, (count,), torch.int32), launcher.empty(pairs, (count,))


def _rules(router: Tensor, routing: Routing) -> dict[str, Any]:
    """The fields that describe the choice."""
    return {
        "experts": router.shape[1], "top_k": routing.top_k, "sigmoid": routing.score == "sigmoid",
        "renormalize": routing.renormalize, "groups": routing.groups, "top_groups": routing.top_groups,
        "group_best": routing.group_best, "scale": routing.scale,
    }  # fmt: skip


def _check(weights: Sequence[PackedWeight], experts: int, columns: int, width: int) -> None:
    expected = (("gate and up", 2 * experts, (width, columns)), ("down", experts, (columns, width)))
    for weight, (name, count, shape) in zip(weights, expected, strict=True):
        shapes = {(part.rows, weight.shape[1]) for part in weight.parts}
        if len(weight.parts) != count or shapes != {shape}:
            found = f"{len(weight.parts)} matrices of {sorted(shapes)}"
            raise PlatformError(f"moe: {name}: {found}, expected {count} of {shape}")
