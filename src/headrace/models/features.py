"""Hidden states of a decoder for a drafter that reads them: one vector of features per token, kept in the cache.

A *capture point* l, from 0 to the number of layers L, is the residual stream after l layers: 0 is the embedding's
output, L what enters the final norm. `FINAL` is the output of the final norm. The features of a token depend on the
tokens up to it alone. They are kept in the same blocks as its keys and values, so that a cached, copied or recomputed
block has them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from headrace.kernels.ops import Batch, Ops, OptionalOps
from headrace.kernels.weight import Weight
from headrace.types import LayerKV

__all__ = ["FINAL", "FeatureTap", "Tap", "TapPart", "feature_layer"]

Tensor = torch.Tensor
FINAL = -1
"""The capture point after the final norm."""


class Tap(Protocol):
    """Reads the hidden states of every step."""

    def add(self, total: Tensor | None, point: int, hidden: Tensor) -> Tensor | None:
        """Called at every capture point, in ascending order, with what the last call returned."""

    def keep(self, total: Tensor | None, batch: Batch, kv: Any) -> None:
        """Called after the last one: store what has been made."""


@dataclass(frozen=True, slots=True)
class TapPart:
    """What one capture point adds to the features."""

    weight: Weight | None = None
    """[features, hidden]; None: the hidden state itself, which must then be the only part."""
    norm: Tensor | None = None
    """float32 [hidden]: the RMS norm of the hidden state before the product."""


@dataclass(frozen=True, slots=True)
class FeatureTap:
    """Makes the features of all tokens of a step and keeps them: the sum over the capture points of a product."""

    ops: Ops
    parts: Mapping[int, Sequence[TapPart]]
    """By capture point."""
    layer: int
    """The layer of the cache that keeps them."""
    width: int
    ones: Tensor
    """float32 [width]; the only operator that adds also normalizes."""
    norm_eps: float

    def add(self, total: Tensor | None, point: int, hidden: Tensor) -> Tensor | None:
        """The sum of the parts up to a capture point. `hidden` [T, hidden] is not changed."""
        for part in self.parts.get(point, ()):
            x = hidden if part.norm is None else self.ops.rms_norm(hidden, part.norm, self.norm_eps)
            x = x if part.weight is None else self.ops.linear(x, part.weight)
            total = x if total is None else self.ops.add_rms_norm(x, total, self.ones, self.norm_eps)[1]
        return total

    def keep(self, total: Tensor | None, batch: Batch, kv: Any) -> None:
        """Store the features of all tokens of the step."""
        assert total is not None
        cast(OptionalOps, self.ops).store_features(total, batch, kv, self.layer)


def feature_layer(width: int, head_dim: int) -> LayerKV:
    """The layer of a cache that keeps `width` values per token."""
    return LayerKV(-(-width // (2 * head_dim)), head_dim)
