"""Plans from kept arrays are those that are made anew."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest
from core_driver import SMALL
from test_core_drafts import requests
from test_core_placed import PlacedOracle, plain

from headrace.core import placed_plans, plan_builder
from headrace.core.decodes import Decodes
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.step_record import StepExtras
from headrace.types import SamplingBatch, StepPlan


def alike(one: StepPlan | SamplingBatch, other: StepPlan | SamplingBatch) -> None:
    """Every field but the core's own has the same value, of the same type."""
    for name in (field.name for field in fields(one)):
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, SamplingBatch):
            alike(mine, theirs)
        elif isinstance(mine, dict):
            assert all(np.array_equal(mine[key], theirs[key]) for key in theirs), name
        elif isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype, name
            assert np.array_equal(mine, theirs), name
        elif name != "tag":
            assert mine == theirs, name


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("right", "eager"), [(1.0, 1.0), (0.7, 0.5)])
@pytest.mark.parametrize("blocks", [36, 129])
def test_kept_arrays_say_what_new_ones_would(
    depth: int, right: float, eager: float, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = list[int]()
    made = placed_plans.Plans._placed

    def compare(
        self: placed_plans.Plans, step: int, decodes: Decodes, chunks: list[PrefillChunk], extras: StepExtras
    ) -> StepPlan:
        expected = plan_builder.build(step, decodes, chunks, extras, self._slots, self._table, self._block_size)
        places = [(chunk.row, chunk.token) for chunk in chunks]
        found = made(self, step, decodes, chunks)
        alike(found, expected)
        assert places == [(chunk.row, chunk.token) for chunk in chunks]
        assert found.tag.count == 0
        assert found.tag.chunks is chunks
        compared.append(len(self._kept))
        return found

    monkeypatch.setattr(placed_plans.Plans, "_placed", lambda self, *given: compare(self, *given, StepExtras()))
    config = replace(SMALL, num_blocks=blocks)
    rng = random.Random(f"{depth} {right} {eager} {blocks}")
    driver = PlacedOracle(config, right, eager, depth, 0, 1.0).drive(depth)
    work = [
        replace(one, params=replace(one.params, max_tokens=100, logprob_token_ids=()))
        for one in plain(requests(rng, 4))
    ]
    driver.add(*work)
    driver.run()
    assert len(compared) > 5
    assert max(compared) <= 32
