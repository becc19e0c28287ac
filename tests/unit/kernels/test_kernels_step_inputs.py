"""The table of a step's inputs describes every array of a plan; padding gives the sizes of a bucket."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.plans import dummy_plan
from headrace.kernels.inputs import batch_arrays, pad_arrays, plan_arrays
from headrace.kernels.ops import Batch, SampleInputs
from headrace.kernels.step_inputs import PERSISTENT, STEP_INPUTS, padded_sizes
from headrace.types import Bucket

VOCAB = 70
OF_HEADS = {"features", "token_positions", "last_positions", "whole_lens", "unmasked", "bounds"}
OF_HEADS |= {"guesses", "unmoved"}
BUCKET = Bucket(tokens=16, seqs=4, rows=8, blocks=5, biases=8, masks=2)


def test_every_field_of_batch_and_sampler_is_in_the_table_and_nothing_else() -> None:
    wanted = [f.name for f in fields(Batch)] + [f.name for f in fields(SampleInputs)]
    assert sorted(STEP_INPUTS) == sorted([*wanted, "logits", "lengths", "drafts", "named", *OF_HEADS])
    assert frozenset({"history"}) == PERSISTENT


def test_a_plans_arrays_match_the_table() -> None:
    plan = replace(dummy_plan(), lengths=np.ones(1, np.int32))
    plan.sampling.named = np.zeros((1, 8), np.int32)
    arrays = plan_arrays(plan, VOCAB)
    assert {*arrays} == {*STEP_INPUTS} - PERSISTENT - {"logits", "drafts"} - OF_HEADS
    assert {*batch_arrays(plan)} == {f.name for f in fields(Batch)} | {"lengths", "position"}
    assert {*batch_arrays(dummy_plan())} == {f.name for f in fields(Batch)}
    for name, array in arrays.items():
        assert str(array.dtype) == STEP_INPUTS[name].dtype, name
        assert array.ndim == len(STEP_INPUTS[name].dims), name


@pytest.mark.parametrize("biases", [0, 1, 7, 8])
@pytest.mark.parametrize("masks", [None, 1, 2])
def test_padding_gives_the_buckets_sizes_for_every_plan(biases: int, masks: int | None) -> None:
    plan = dummy_plan()
    allowed = None if masks is None else np.full((masks, 3), 7, np.uint32)
    sampling = replace(
        plan.sampling,
        bias_row=np.zeros(biases, np.int32),
        bias_token=np.arange(biases, dtype=np.int32),
        bias_value=np.ones(biases, np.float32),
        allowed=allowed,
        allowed_row=None if masks is None else np.zeros(1, np.int32),
    )
    before = plan_arrays(replace(plan, sampling=sampling), VOCAB)
    sizes = padded_sizes(BUCKET)
    for name, array in pad_arrays(before, BUCKET, 9).items():
        wanted = tuple(sizes.get(d, n) for d, n in zip(STEP_INPUTS[name].dims, before[name].shape, strict=True))
        assert array.shape == wanted, name
        assert array.dtype == before[name].dtype
        held = tuple(slice(n) for n in before[name].shape)
        np.testing.assert_array_equal(array[held], before[name])
    padded = pad_arrays(before, BUCKET, 9)
    assert padded["query_start"].tolist() == [0, 1, 1, 1, 1]
    assert padded["slots"].tolist() == [0, 9, 9, 9]
    assert padded["bias_row"][biases:].tolist() == [-1] * (8 - biases)
    assert padded["allowed_row"][1:].tolist() == [-1] * 7


def test_the_guide_shows_the_table() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "writing-a-backend.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\w+) \| (.*?) \|", guide, re.MULTILINE)
    shown = {name: (dtype, dims.strip("[]`")) for names, dtype, dims in rows for name in re.findall(r"`(\w+)`", names)}
    for one in STEP_INPUTS.values():
        assert shown[one.name] == (one.dtype, ", ".join(one.dims)), one.name


def test_a_bucket_without_biases_and_masks_keeps_their_sizes() -> None:
    arrays = plan_arrays(dummy_plan(), VOCAB)
    padded = pad_arrays(arrays, Bucket(8, 2, 8, 3), 9)
    assert padded["allowed"].shape == arrays["allowed"].shape == (1, 3)
    assert padded["bias_row"].shape == (0,)
