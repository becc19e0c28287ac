"""Measures the error of results against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.conformance.tier_plugin import OperatorError

__all__ = ["WorstError", "nmse"]

Array = npt.NDArray[Any]


def nmse(found: Array, wanted: Array) -> float:
    """Mean squared error over the mean square of the expected values. An infinity at the expected place, as of a banned
    token, counts as right."""
    if not wanted.size:
        return 0.0
    right = ~np.isfinite(wanted) & (found == wanted)
    found64, wanted64 = (np.where(right, 0.0, array.astype(np.float64)) for array in (found, wanted))
    error = float(np.square(found64 - wanted64).mean())
    return error / max(float(np.square(wanted64).mean()), 1e-30)


class WorstError(OperatorError):
    """The largest error of a test's calls, relative to the allowed error."""

    def near(self, found: Array, wanted: Array, allowed: float) -> None:
        """Compare and record. Raises AssertionError with both numbers."""
        assert found.shape == wanted.shape, f"{self.operator}: shape {found.shape}, the reference's is {wanted.shape}"
        error = nmse(found, wanted)
        if not self.allowed or error * self.allowed > self.nmse * allowed:
            self.nmse, self.allowed = error, allowed
        assert error <= allowed, f"{self.operator}: NMSE {error:.1e} in {self.dtype}, {allowed:.0e} is allowed"
