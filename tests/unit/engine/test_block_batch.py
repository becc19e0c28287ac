"""Draws of a round of drafted blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.engine.block_batch import block_draws
from headrace.engine.head_plans import Drafted
from headrace.types import Request, SamplingParams

CONFIG: Any = SimpleNamespace(drafts=3, independent=True)
CHAINED: Any = SimpleNamespace(drafts=3, independent=False)


@pytest.mark.parametrize("allowed", [None, (5, 6)])
def test_draws_made_from_those_of_an_earlier_round_are_the_same(allowed: tuple[int, ...] | None) -> None:
    params = SamplingParams(temperature=0.5, top_k=4, seed=3, presence_penalty=1.0, allowed_token_ids=allowed)
    greedy = SamplingParams(temperature=0.0)
    seqs = [Drafted(Request(str(at), (1, 2), one), [1, 2], 100) for at, one in enumerate((params, greedy))]
    for at, seq in enumerate(seqs):
        seq.known = 2 + at
    before = block_draws(CONFIG, seqs)
    assert before.position.tolist() == [2, 3, 4, 3, 4, 5]
    assert before.params["presence_penalty"].tolist() == [0.0] * 6
    for seq in seqs:
        seq.known += 4
    found, wanted = block_draws(CONFIG, seqs, before), block_draws(CONFIG, seqs)
    assert found.position.tolist() == [6, 7, 8, 7, 8, 9]
    assert before.position.tolist() == [2, 3, 4, 3, 4, 5]
    for name, array in wanted.params.items():
        np.testing.assert_array_equal(found.params[name], array, name, strict=True)
    for name in ("seed", "position", "bias_row", "bias_token", "bias_value", "allowed", "allowed_row"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
    assert (found.params["top_k"] is before.params["top_k"]) == (allowed is None)


def test_draws_one_after_another_have_the_first_place_of_each_block() -> None:
    """The device counts on from there. What is banned at that place is banned for the block."""
    params = SamplingParams(temperature=0.5, seed=3, min_tokens=2, stop_token_ids=(9,))
    seqs = [Drafted(Request(str(at), (1, 2), params), [1, 2], 100) for at in range(2)]
    for at, seq in enumerate(seqs):
        seq.known = 3 + at
    found = block_draws(CHAINED, seqs)
    assert found.position.tolist() == [3, 4]
    assert found.seed.tolist() == [3, 3]
    assert found.bias_row.tolist() == [0], "the second block begins behind the first two tokens"
    assert found.bias_token.tolist() == [9]
