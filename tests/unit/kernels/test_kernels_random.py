"""The inputs that generators make: every kind of sequence, in consistent batches."""

from __future__ import annotations

import numpy as np
import torch

from headrace.kernels import random, registry

CPU = torch.device("cpu")
SHAPES = [random.Shape.draw(np.random.default_rng(seed)) for seed in range(300)]


def test_every_kind_of_sequence_is_generated() -> None:
    pairs = [pair for shape in SHAPES for pair in zip(shape.fresh, shape.before, strict=True)]
    assert any(not shape.fresh for shape in SHAPES)
    for wanted in ((0, False), (0, True), (1, False), (1, True)):
        assert any((fresh, before > 0) == wanted for fresh, before in pairs), wanted
    assert any(fresh > 16 and before > 0 for fresh, before in pairs)
    assert any(shape.fresh and not sum(shape.fresh) for shape in SHAPES)


def test_rows_are_the_last_tokens_of_sequences_that_have_tokens() -> None:
    for seed, shape in enumerate(SHAPES):
        batch = random.batch(np.random.default_rng(seed), shape, CPU)
        tokens, sequences, rows = batch.sizes.tolist()
        assert (tokens, sequences) == (sum(shape.fresh), len(shape.fresh))
        assert len(batch.rows) == rows
        assert batch.rows.unique().tolist() == batch.rows.tolist()
        ends = batch.query_start[1:][batch.query_start.diff() > 0] - 1
        assert set(ends.tolist()) <= set(batch.rows.tolist()) <= set(range(tokens))
        assert len(batch.slot_mapping.unique()) == tokens


def test_heads_are_of_many_sizes() -> None:
    spec = next(spec for spec in registry.OPS if spec.name == "attention")
    drawn = {spec.generate(np.random.default_rng(seed), CPU, "float32")["kv"].keys[0].shape[-1] for seed in range(60)}
    assert {24, 80, 96, 192, 256} <= drawn <= set(random.HEAD_SIZES)
