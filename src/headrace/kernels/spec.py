"""The specification of an operator: a name, a reference in plain torch, tolerances and an input generator.

Each folder beside this file is one operator. Its `__init__.py` holds the spec; `reference.py` defines the result in
plain torch; `cpu.cpp` and `triton.py` are fast forms that a platform may bind. `Device.op(spec)` returns a platform's
callable, or None: then the reference is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from headrace.kernels.weight import Weight

__all__ = ["OpReasons", "OpSpec", "PacksWeights", "Tagged", "TorchTensors"]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operator of the contract. Paths are `module:attribute`, resolved on first use."""

    name: str
    reference_path: str
    """A callable in plain torch with the operator's signature."""
    generate_path: str
    """`generate(rng: numpy.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]`: keyword arguments of
    one call. Shapes are random and include empty and odd ones. If the operator takes a weight, a fourth argument may be
    a `kernels.random.Weights`, which makes it in another format."""
    tolerance: Mapping[str, float]
    """Largest normalized mean squared error against the reference in float32, by dtype of the inputs."""
    compose_path: str = ""
    """For an operator that other operators can replace: `compose(ops) -> callable` makes it from bound operators. It is
    used on a device that has no form of this operator."""

    @property
    def reference(self) -> Callable[..., Any]:
        return _resolve(self.reference_path)

    @property
    def generate(self) -> Callable[..., dict[str, Any]]:
        return _resolve(self.generate_path)

    @property
    def compose(self) -> Callable[[Any], Callable[..., Any]] | None:
        return _resolve(self.compose_path) if self.compose_path else None


# Optional features of a device or of its operators. `platforms.interface` exports them with the rest of the contract.


@runtime_checkable
class PacksWeights(Protocol):
    """An operator that repacks weights into its own layout."""

    def pack(self, weight: Weight) -> None:
        """Repack a weight and store the result in `weight.prepared`.

        Called once for each weight at load, before the first call with it. If the device declares `host_memory`,
        several threads may call it, each with another weight.
        """


@runtime_checkable
class Tagged(Protocol):
    """An operator whose implementation has a name, shown by `headrace doctor`."""

    tag: str


@runtime_checkable
class OpReasons(Protocol):
    """A device that reports why it lacks operators, or which implementation it uses."""

    def op_reasons(self) -> Mapping[str, str]:
        """The reason by operator name."""


@runtime_checkable
class TorchTensors(Protocol):
    """A device with torch tensors: references replace missing operators, and weights are put on `torch_device`."""

    torch_device: Any
    """A `torch.device`."""


def _resolve(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
