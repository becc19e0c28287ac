"""Pooling on the host: the bits don't depend on chunks, and what is computed again counts once."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.pooling import Pool

SIZE, LENGTH = 24, 37
STATES = np.random.default_rng(5).standard_normal((LENGTH, SIZE)).astype(np.float32)


def pooled(kind: str, cuts: list[int], again: int = 0) -> bytes:
    """`again`: so many tokens before each cut are computed twice."""
    pool = Pool(kind, LENGTH)  # type: ignore[arg-type]
    for before, end in zip([0, *cuts], [*cuts, LENGTH], strict=True):
        start = max(0, before - again)
        if pool.needs(end):
            assert pool.add(start, STATES[start:end])
    return pool.embedding


@pytest.mark.parametrize("kind", ["last", "mean"])
@pytest.mark.parametrize("cuts", [[], [1], [36], [8, 16, 24, 32], list(range(1, 37))], ids=str)
def test_chunks_change_nothing(kind: str, cuts: list[int]) -> None:
    assert pooled(kind, cuts) == pooled(kind, [])
    assert pooled(kind, cuts, again=5) == pooled(kind, [])


def test_the_kinds() -> None:
    np.testing.assert_array_equal(np.frombuffer(pooled("last", [9]), "<f4"), STATES[-1])
    mean = np.frombuffer(pooled("mean", [9]), "<f4")
    np.testing.assert_allclose(mean, STATES.astype(np.float64).mean(0), rtol=1e-6)


def test_what_may_come_from_the_cache() -> None:
    last, mean = Pool("last", 10), Pool("mean", 10)
    assert (last.reusable, mean.reusable) == (9, 0)
    mean.planned = 6
    assert mean.reusable == 6
    mean.forget_plans()
    assert mean.reusable == 0
    assert mean.add(0, STATES[:4])
    mean.planned = 8
    mean.forget_plans()
    assert mean.reusable == 4


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_what_is_not_finite_shows(kind: str) -> None:
    states = STATES.copy()
    states[-1, 3] = np.nan
    assert not Pool(kind, LENGTH).add(0, states)  # type: ignore[arg-type]
