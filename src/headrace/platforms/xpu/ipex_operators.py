"""Norms and gated activations by Intel Extension for PyTorch: `intel_extension_for_pytorch.llm.functional`, version
2.8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.platforms.accelerator.providers import SharedOperator

__all__ = ["IpexAddNorm", "IpexGate", "IpexNorm", "operators"]

Tensor = torch.Tensor
_GELU = {"gelu": "none", "gelu_tanh": "tanh"}


class _Ipex(SharedOperator):
    """A `SharedOperator` of `library`, the module with IPEX's functions."""

    tag = "ipex"

    def __init__(self, name: str, library: Any, other: Callable[..., Any]) -> None:
        super().__init__(name, other)
        self._library = library


class IpexNorm(_Ipex):
    fits = "weights of the activations' type"
    rest = "weights of another type"

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `ops.Ops.rms_norm`."""
        compute = self._library.rms_norm if weight.dtype == x.dtype else self._elsewhere(_differ(x, weight))
        found: Tensor = compute(x, weight, eps)
        return found


class IpexAddNorm(_Ipex):
    fits = "weights and residuals of the activations' type"
    rest = "weights or residuals of another type"

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `ops.Ops.add_rms_norm`."""
        wrong = next((tensor for tensor in (residual, weight) if tensor.dtype != x.dtype), None)
        if wrong is not None:
            found: tuple[Tensor, Tensor] = self._elsewhere(_differ(x, wrong))(x, residual, weight, eps)
            return found
        total = residual.clone()  # IPEX writes the sum to it
        return self._library.add_rms_norm(total, x, weight, None, eps, True), total


class IpexGate(_Ipex):
    fits = "silu, gelu and gelu_tanh"
    rest = "other kinds"

    def __call__(self, x: Tensor, kind: str) -> Tensor:
        """See `ops.Ops.gated_activation`."""
        gate, up = (half.contiguous() for half in x.chunk(2, dim=-1))
        if kind == "silu":
            found: Tensor = self._library.silu_mul(gate, up)
        elif kind in _GELU:
            found = self._library.gelu_mul(gate, up, approximate=_GELU[kind])
        else:
            found = self._elsewhere(f"it has no {kind}")(x, kind)
        return found


def operators(
    library: Any, others: Mapping[str, Callable[..., Any]], device: torch.device
) -> dict[str, SharedOperator]:
    made = {"rms_norm": IpexNorm, "add_rms_norm": IpexAddNorm, "gated_activation": IpexGate}
    return {name: kind(name, library, others[name]) for name, kind in made.items()}


def _differ(x: Tensor, other: Tensor) -> str:
    return f"activations are {x.dtype}, but another input is {other.dtype}".replace("torch.", "")
