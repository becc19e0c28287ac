"""What an operator is: a name, a reference in plain torch, tolerances and an input generator.

Each folder beside this file is one operator. Its `__init__.py` holds the spec; `reference.py` says in plain torch what is
computed; `cpu.cpp` and `triton.py` are fast forms that a platform may bind. `Device.op(spec)` returns a platform's callable
or None, and then the reference serves.
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
    """`generate(rng: numpy.random.Generator, device: torch.device, dtype: str) -> dict[str, Any]`: keyword arguments of one call;
    shapes are drawn at random, empty and odd ones included. Where the operator takes a weight, a fourth argument may be a
    `kernels.random.Weights`, which draws it in another format."""
    tolerance: Mapping[str, float]
    """Largest normalised mean squared error against the reference in float32, by dtype of the inputs."""
    compose_path: str = ""
    """For an operator that others can be put together to: `compose(ops) -> callable`, out of bound operators. It serves a device
    that has no form of the whole."""

    @property
    def reference(self) -> Callable[..., Any]:
        return _resolve(self.reference_path)

    @property
    def generate(self) -> Callable[..., dict[str, Any]]:
        return _resolve(self.generate_path)

    @property
    def compose(self) -> Callable[[Any], Callable[..., Any]] | None:
        return _resolve(self.compose_path) if self.compose_path else None


# What a device's operator, or the device, may have besides. `platforms.interface` offers them with the rest of the contract.


@runtime_checkable
class PacksWeights(Protocol):
    """An operator that lays out weights in its own way."""

    def pack(self, weight: Weight) -> None:
        """Called once for each weight at load, before the first call with it; keep the layout in `weight.prepared`. May be called
        by several threads, each with another weight, where the device declares `host_memory`."""


@runtime_checkable
class Tagged(Protocol):
    """An operator whose implementation has a name, which `headrace doctor` shows."""

    tag: str


@runtime_checkable
class OpReasons(Protocol):
    """A device that says why it lacks operators, or what those that it has are."""

    def op_reasons(self) -> Mapping[str, str]:
        """By operator."""


@runtime_checkable
class TorchTensors(Protocol):
    """A device whose tensors are torch's: references serve what it lacks, and weights are placed on `torch_device`."""

    torch_device: Any
    """A `torch.device`."""


def _resolve(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
