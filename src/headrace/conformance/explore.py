"""Lets hypothesis control the operators' own input generators, so that a failure is shown with its smallest inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

__all__ = ["EXAMPLES", "HypothesisGenerator", "explore"]

EXAMPLES = 12
"""Default number of calls per operator and dtype."""
PHASES = (Phase.generate, Phase.shrink)


class HypothesisGenerator(np.random.Generator):
    """A generator whose single numbers (sizes and choices of a call) hypothesis chooses and shrinks. Arrays are random,
    with a seed that hypothesis chooses."""

    def __new__(cls, data: st.DataObject) -> HypothesisGenerator:
        return super().__new__(cls, np.random.PCG64(0))  # type: ignore[call-arg]

    def __init__(self, data: st.DataObject) -> None:
        super().__init__(np.random.PCG64(data.draw(st.integers(0, 2**32 - 1))))
        self._data = data

    def integers(self, low: Any, high: Any = None, size: Any = None, **more: Any) -> Any:  # type: ignore[override]
        if size is not None or more or np.ndim(low) or np.ndim(high):
            return super().integers(low, high, size, **more)
        first, after = (0, low) if high is None else (low, high)
        return np.int64(self._data.draw(st.integers(int(first), int(after) - 1)))

    def choice(self, a: Any, size: Any = None, **more: Any) -> Any:  # type: ignore[override]
        if size is not None or more or np.ndim(a) != 1:
            return super().choice(a, size, **more)
        return np.asarray(a)[self._data.draw(st.integers(0, len(a) - 1))]


def explore(check: Callable[[np.random.Generator], None], examples: int) -> None:
    """Call `check` with so many generators, the same ones in every run. Raises the error of the smallest failing
    inputs."""

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(HypothesisGenerator(data))

    run()
