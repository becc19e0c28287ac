"""The choice of a block's tokens: the same draw and the same limits as the sampler's, corrected from left to right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.kernels.sample.philox import gumbel
from headrace.kernels.sample.truncate import truncate
from headrace.speculation.block_choice import BlockChoice, BlockHead, BlockRow

VOCAB, DEPTH = 50, 4


def candidates(rng: np.random.Generator, count: int, kept: int = VOCAB) -> tuple[Any, Any]:
    """Token ids and scores [count, DEPTH, kept], the likeliest first."""
    scores = rng.normal(size=(count, DEPTH, VOCAB)).astype(np.float32) * 2
    ids = np.argsort(-scores, axis=2)[:, :, :kept]
    return ids, np.take_along_axis(scores, ids, 2)


def sampled(row: BlockRow, at: int, ids: Any, scores: Any) -> int:
    """What the reference of `sample` chooses from these scores."""
    logits = torch.full((VOCAB,), -torch.inf)
    logits[torch.from_numpy(ids)] = torch.from_numpy(scores)
    for token, value in (row.biases or {}).items():
        logits[token] += value
    if row.allowed is not None:
        logits[[token for token in range(VOCAB) if token not in row.allowed]] = -torch.inf
    if row.temperature < 1e-5:
        return int(logits.argmax())
    scaled = (logits - logits.max()) / row.temperature
    seed = torch.tensor([row.seed - 2**64 if row.seed >= 2**63 else row.seed])
    noise = gumbel(seed, torch.tensor([row.position + at]), VOCAB)[0]
    return int((truncate(scaled, row.top_k, row.min_p, row.top_p) + noise).argmax())


ROWS = [
    BlockRow(3, 10),
    BlockRow(4, 11, seed=7, temperature=1.0),
    BlockRow(5, 1000, seed=2**64 - 3, temperature=0.6, top_k=5),
    BlockRow(6, 12, seed=9, temperature=1.3, top_p=0.7),
    BlockRow(7, 13, seed=10, temperature=1.0, min_p=0.2),
    BlockRow(8, 14, seed=11, temperature=0.9, top_k=20, top_p=0.9, min_p=0.05),
    BlockRow(9, 15, seed=12, temperature=1.0, biases={3: 4.0, 8: -100.0}),
    BlockRow(1, 16, biases={5: 100.0}),
    BlockRow(2, 17, seed=13, temperature=2.0, allowed=frozenset(range(10))),
]


@pytest.mark.parametrize("seed", range(5))
def test_every_position_is_drawn_as_the_sampler_draws(seed: int) -> None:
    ids, scores = candidates(np.random.default_rng(seed), len(ROWS))
    found = BlockChoice(BlockHead()).choose(ROWS, ids, scores, {})
    assert found.survival is None
    for at, row in enumerate(ROWS):
        assert found.tokens[at] == [sampled(row, place, ids[at, place], scores[at, place]) for place in range(DEPTH)]


def test_rows_are_independent_of_their_company() -> None:
    ids, scores = candidates(np.random.default_rng(9), len(ROWS), 20)
    choice = BlockChoice(BlockHead())
    together = choice.choose(ROWS, ids, scores, {}).tokens
    apart = [choice.choose([row], ids[at : at + 1], scores[at : at + 1], {}).tokens[0] for at, row in enumerate(ROWS)]
    assert together == apart


def test_a_reduced_vocabulary_is_drawn_with_the_noise_of_the_targets_tokens() -> None:
    rng = np.random.default_rng(4)
    kept = np.sort(rng.permutation(VOCAB)[:20]).astype(np.int64)
    ids = np.stack([np.stack([rng.permutation(20)[:8] for _ in range(DEPTH)]) for _ in ROWS])
    scores = rng.normal(size=ids.shape).astype(np.float32)
    found = BlockChoice(BlockHead(draft_ids=kept)).choose(ROWS, ids, scores, {})
    for at, row in enumerate(ROWS):
        expected = [sampled(row, place, kept[ids[at, place]], scores[at, place]) for place in range(DEPTH)]
        assert found.tokens[at] == expected


def test_equal_scores_give_the_lower_token() -> None:
    ids = np.array([[[9, 4, 7]]])
    assert BlockChoice(BlockHead()).choose([ROWS[0]], ids, np.zeros((1, 1, 3), np.float32), {}).tokens == [[4]]


def test_a_markov_head_follows_the_token_that_was_chosen() -> None:
    chain = np.zeros((VOCAB, VOCAB), np.float32)
    chain[np.arange(VOCAB), (np.arange(VOCAB) + 7) % VOCAB] = 50
    head = BlockHead(markov="vanilla", markov_in=chain, markov_out=np.eye(VOCAB, dtype=np.float32))
    ids, scores = candidates(np.random.default_rng(1), len(ROWS))
    rows = [BlockRow(row.anchor, row.position, row.seed, row.temperature) for row in ROWS]
    found = BlockChoice(head).choose(rows, ids, scores, {})
    assert found.tokens == [[(row.anchor + 7 * (at + 1)) % VOCAB for at in range(DEPTH)] for row in rows]


def test_estimates_are_products_from_left_to_right() -> None:
    products = {"confidence": np.array([[[0.0], [2.0], [-2.0], [0.0]]], np.float32)}
    ids, scores = candidates(np.random.default_rng(2), 1)
    found = BlockChoice(BlockHead(estimates=True, confidence_bias=0.5)).choose(ROWS[:1], ids, scores, products)
    assert found.survival is not None
    odds = 1 / (1 + np.exp(-(products["confidence"][0, :, 0] + 0.5)))
    np.testing.assert_allclose(found.survival[0], np.cumprod(odds), rtol=1e-5)
