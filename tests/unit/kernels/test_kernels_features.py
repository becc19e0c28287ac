"""Operators of drafters that read hidden states: what is stored is read again, by static forms too."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from headrace.kernels import paged
from headrace.kernels.correct_logits.reference import correct_logits
from headrace.kernels.load_features.reference import load_features
from headrace.kernels.random import Shape, batch, normal
from headrace.kernels.registry import OPTIONAL
from headrace.kernels.store_features import static
from headrace.kernels.store_features.reference import store_features
from headrace.kernels.take_rows.reference import take_rows
from headrace.kernels.widen_logits.reference import widen_logits
from headrace.types import KVLayout, LayerKV

CPU = torch.device("cpu")
SPECS = {spec.name: spec for spec in OPTIONAL}


@pytest.mark.parametrize("width", [1, 47, 48, 49, 96])
def test_features_of_any_width_are_read_as_they_were_stored(width: int) -> None:
    rng = np.random.default_rng(width)
    step = batch(rng, Shape((3, 1, 20), (0, 17, 5)), CPU)
    kv = paged.alloc(KVLayout((LayerKV(1, 8), LayerKV(3, 16)), 16, "float32"), 8, CPU)
    x = normal(rng, 24, width, device=CPU)
    assert store_features(x, step, kv, 1) is x
    assert torch.equal(load_features(step, kv, 1, width), x)
    assert not any(store[0].any() for store in (kv.keys, kv.values)), "other layers are left alone"


@pytest.mark.parametrize("seed", range(8))
def test_the_static_form_stores_the_same(seed: int) -> None:
    for dtype in ("float32", "bfloat16"):
        given = SPECS["store_features"].generate(np.random.default_rng(seed), CPU, dtype)
        if given["kv"].layout.dtype == "float8_e4m3":
            continue
        other = copy.deepcopy(given["kv"])
        store_features(**given)
        static.store_features(**{**given, "kv": other})
        for mine, theirs in ((given["kv"].keys, other.keys), (given["kv"].values, other.values)):
            assert torch.equal(mine[0], theirs[0])
        width = given["x"].shape[1]
        assert torch.equal(
            load_features(given["batch"], given["kv"], 0, width), load_features(given["batch"], other, 0, width)
        )


def test_requested_rows_are_taken_in_their_order() -> None:
    rng = np.random.default_rng(2)
    step = batch(rng, Shape((5, 1, 9), (0, 3, 40)), CPU)
    x = normal(rng, 15, 7, device=CPU)
    assert torch.equal(take_rows(x, step), torch.stack([x[row] for row in step.rows.tolist()]))


def test_logits_of_a_reduced_vocabulary_stand_at_their_tokens() -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    wide = widen_logits(logits, torch.tensor([-1, 0, -1, 1, -1], dtype=torch.int32))
    nothing = -torch.inf
    assert wide.tolist() == [[nothing, 1.0, nothing, 2.0, nothing], [nothing, 3.0, nothing, 4.0, nothing]]


def test_the_logits_of_each_blocks_draft_are_corrected() -> None:
    logits = torch.arange(12.0).view(6, 2)
    corrections = torch.tensor([[100.0, 0.0], [0.0, 200.0]])
    assert correct_logits(logits, corrections, 0, 3).tolist() == [[100.0, 1.0], [6.0, 207.0]]
    assert correct_logits(logits, corrections, 2, 3).tolist() == [[104.0, 5.0], [10.0, 211.0]]
