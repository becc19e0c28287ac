"""Logits of tiny random models from safetensors equal transformers' within 1e-4, for every family and feature."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_harness import logits_of, reference_ops
from tiny_models import VARIANTS, load_reference, prompt, reference_logits, save

from headrace.checkpoints.checkpoint import open_checkpoint


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_logits_equal_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = save(variant, tmp_path)
    ids = prompt(40)
    decoder = open_checkpoint(tmp_path).build(reference_ops(), 64)
    expected = reference_logits(model, ids)
    assert expected.std() > 0.1, "a model that says nothing proves nothing"
    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "mistral-window"])
def test_chunks_give_the_logits_of_the_complete_prompt(variant: str, tmp_path: Path) -> None:
    save(variant, tmp_path)
    ids = prompt(30)
    decoder = open_checkpoint(tmp_path).build(reference_ops(), 64)
    torch.testing.assert_close(logits_of(decoder, ids, chunk=7), logits_of(decoder, ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_stay_stored_and_are_computed_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    save("llama", tmp_path, dtype)
    checkpoint = open_checkpoint(tmp_path)
    decoder = checkpoint.build(reference_ops(), 64)
    assert checkpoint.facts().weight_dtype == str(dtype).removeprefix("torch.")
    assert decoder.weights.layers[0].down.scheme == checkpoint.facts().weight_dtype
    ids = prompt(20)
    expected = reference_logits(load_reference(tmp_path), ids)
    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=1e-4, rtol=0)
