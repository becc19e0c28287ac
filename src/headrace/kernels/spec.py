"""What an operator is: a name, a reference in plain torch, tolerances and an input generator.

Each folder beside this file is one operator. Its `__init__.py` holds the spec; `reference.py` says in plain torch what is
computed; `cpu.cpp` and `triton.py` are fast forms that a platform may bind. `Device.op(spec)` returns a platform's callable
or None, and then the reference serves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["OpSpec"]


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


def _resolve(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
