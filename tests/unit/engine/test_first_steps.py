"""The steps before the first request."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.engine.first_steps import first_plans
from headrace.engine.runner import RunnerConfig
from headrace.types import KVLayout, LayerKV


def config(seqs: int = 8, drafts: int = 5, budget: int = 64, length: int = 100) -> RunnerConfig:
    return RunnerConfig(KVLayout((LayerKV(1, 8),), 4, "float32"), 20, seqs, budget, length, 50, drafts)


def test_steps_with_few_and_with_many_rows_that_the_device_places() -> None:
    one, few, many = first_plans(config(), static_shapes=False)
    assert (one.num_rows, one.lengths) == (1, None)
    assert few.lengths is not None
    assert many.lengths is not None
    assert few.num_rows == 1
    assert 8 < many.num_rows <= 14, "more rows than sequences are another size"
    for plan in (few, many):
        assert not plan.block_tables.any(), "block 0, which no sequence has"
        assert plan.positions.max() < plan.block_tables.shape[1] * 4
        assert np.array_equal(plan.row_seq, np.arange(plan.num_seqs).repeat(plan.num_rows // plan.num_seqs))
        assert np.array_equal(plan.context_lens, np.diff(plan.query_start))


@pytest.mark.parametrize(("given", "static"), [(config(drafts=0), False), (config(length=1), False), (config(), True)])
def test_one_step_where_the_device_drafts_nothing_or_compiles_each_size(given: RunnerConfig, static: bool) -> None:
    (plan,) = first_plans(given, static)
    assert (plan.num_tokens, plan.lengths) == (1, None)


def test_within_the_limits_of_small_engines() -> None:
    for given in (config(budget=5), config(seqs=1), config(length=3), config(seqs=2, budget=12)):
        for plan in first_plans(given, static_shapes=False):
            assert plan.num_tokens <= given.max_num_batched_tokens
            assert plan.num_seqs <= given.max_num_seqs
            assert plan.positions.max() < given.max_model_len
