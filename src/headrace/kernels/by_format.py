"""Uses a device's operator for the weight formats that the device declares, and another one for the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from headrace.errors import PlatformError
from headrace.kernels.spec import PacksWeights, Tagged
from headrace.kernels.weight import Weight

__all__ = ["WITH_WEIGHTS", "ByFormat", "undeclared"]

WITH_WEIGHTS = frozenset({"linear", "logits", "embedding", "gated_linear", "moe", "own_experts"})
"""Operators that take a weight."""
_log = logging.getLogger(__name__)
_FLOATS = frozenset({"float32", "bfloat16", "float16"})


def undeclared(weight: Weight, declared: frozenset[str]) -> str | None:
    """The quantized format of a weight or of one of its parts that is not in `declared`; None if there is none."""
    schemes = (part.scheme for part in weight.parts or (weight,))
    return next((scheme for scheme in schemes if scheme not in _FLOATS and scheme not in declared), None)


class ByFormat:
    """Calls `own` for declared formats and `other` for the rest; `other` None: such a weight is an error."""

    def __init__(
        self,
        name: str,
        own: Callable[..., Any],
        other: Callable[..., Any] | None,
        declared: frozenset[str],
        device: str,
    ) -> None:
        self.tag = own.tag if isinstance(own, Tagged) else device
        self._name, self._own, self._other, self._declared, self._device = name, own, other, declared, device
        self._logged: set[str] = set()

    def pack(self, weight: Weight) -> None:
        """Repack the weight for the operator that will get it. Raises PlatformError if no operator can use it."""
        chosen = self._own if undeclared(weight, self._declared) is None else self._elsewhere(weight)
        if isinstance(chosen, PacksWeights):
            chosen.pack(weight)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        weights = (value for value in (*args, *kwargs.values()) if isinstance(value, Weight))
        foreign = next((weight for weight in weights if undeclared(weight, self._declared) is not None), None)
        chosen = self._own if foreign is None else self._elsewhere(foreign)
        return chosen(*args, **kwargs)

    def _elsewhere(self, weight: Weight) -> Callable[..., Any]:
        scheme = undeclared(weight, self._declared)
        assert scheme is not None
        if self._other is None:
            declared = ", ".join(sorted(self._declared)) or "none"
            raise PlatformError(
                f"{self._device}: {self._name} of {weight.name or 'a weight'}, stored as {scheme}: the device's "
                f"quant_formats are {declared}, and no reference can use its tensors: choose another platform"
            )
        if scheme not in self._logged:
            self._logged.add(scheme)
            _log.info("by reference: %s of %s weights (not among the device's quant_formats)", self._name, scheme)
        return self._other
