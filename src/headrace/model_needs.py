"""Refuses a model whose layers need what a device lacks: features of attention, head sizes, operators."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from headrace.errors import UnsupportedModel
from headrace.types import Capabilities, LayerKV

__all__ = ["check_needs"]

Needs = Sequence[AbstractSet[str]]
"""By layer."""


def check_needs(
    layers: Sequence[LayerKV], attention: Needs, operators: Needs, capabilities: Capabilities, device: str
) -> None:
    """Raises UnsupportedModel that names the layers, the need, and `device`."""
    able = capabilities.attention_features
    for need in sorted(_all(attention) - able):
        declared = ", ".join(sorted(able)) or "none"
        raise UnsupportedModel(
            f"{_with(need, attention)} need attention with {need}, which {device} does not compute (its "
            f"attention_features: {declared}): choose another platform"
        )
    sizes = capabilities.head_sizes
    other = [at for at, layer in enumerate(layers) if sizes and layer.head_dim not in sizes]
    if other:
        raise UnsupportedModel(
            f"{_named(other)} need heads of {layers[other[0]].head_dim}, but {device} computes head sizes "
            f"{', '.join(map(str, sorted(sizes)))}: choose another platform"
        )
    for need in sorted(_all(operators) & capabilities.missing_operators):
        raise UnsupportedModel(
            f"{_with(need, operators)} need the operator {need}, which {device} does not have: choose another platform"
        )


def _all(needs: Needs) -> frozenset[str]:
    return frozenset[str]().union(*needs)


def _with(need: str, needs: Needs) -> str:
    return _named([at for at, found in enumerate(needs) if need in found])


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"layers {shown}" + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
