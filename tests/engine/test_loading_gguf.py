"""GGUF files: row order, ties, quantized embeddings, rotary factors and every writer's type, against transformers on
dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_export import export
from model_harness import is_view_of, logits_of, reference_ops
from shared_models import check_against_reference, shared_model
from tiny_models import make, prompt, reference_logits

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.errors import UnsupportedModel

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied-bias": {},
    "llama-wide-heads": {"attention.value_length": 32, "rope.dimension_count": 32},
    "qwen2": {},
    "qwen3": {},
    "gemma3": {"attention.sliding_window": 8, "rope.freq_base": 1e6},
}


def check(model: Any, path: Path, length: int = 30) -> None:
    ids = prompt(length)
    decoder = open_checkpoint(path).build(reference_ops(), 64)
    torch.testing.assert_close(logits_of(decoder, ids), reference_logits(model, ids), atol=1e-4, rtol=0)


def tiny(variant: str) -> Any:
    # A GGUF doesn't carry Gemma's attention scale: it is the head's size there, unless the model is the largest.
    return make(variant, **({"query_pre_attn_scalar": 32} if variant.startswith("gemma") else {}))


@pytest.mark.parametrize("quantization", [Type.F32, Type.Q8_0], ids=str)
@pytest.mark.parametrize("variant", sorted(FAMILIES))
def test_every_family_matches_transformers(variant: str, quantization: Type, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    check(export(tiny(variant), path, quantization, FAMILIES[variant]), path)


@pytest.mark.parametrize("quantization", [Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1], ids=str)
def test_every_simple_type_stays_as_stored(quantization: Type, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = export(tiny("llama"), path, quantization)
    check(model, path)
    decoder = open_checkpoint(path).build(reference_ops(), 64)
    stored = {Type.F16: "float16", Type.BF16: "bfloat16"}.get(quantization, f"gguf:{quantization.name.lower()}")
    assert decoder.weights.embedding.scheme == stored
    assert {part.scheme for part in decoder.weights.layers[0].qkv.parts} == {stored}


def test_a_missing_output_matrix_means_the_embedding(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    export(make("llama-tied-bias"), path, Type.Q8_0)
    decoder = open_checkpoint(path).build(reference_ops(), 64)
    assert decoder.weights.head is decoder.weights.embedding
    assert decoder.config.tied


def test_rope_freqs_divide_the_frequencies(tmp_path: Path) -> None:
    """Llama 3's scaling stands in a GGUF as a tensor of factors."""
    model = make("llama-llama3-rope")
    plain = 5e3 ** (-torch.arange(0, 16, 2).double() / 16)
    factors = (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()
    path = tmp_path / "model.gguf"
    writer_metadata = {"rope.freq_base": 5e3}
    original = gguf.GGUFWriter.write_header_to_file

    def with_factors(self: Any, *args: Any, **kwargs: Any) -> None:
        self.add_tensor("rope_freqs.weight", factors)
        original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_factors)
        export(model, path, Type.F32, writer_metadata)
    assert np.ptp(factors) > 1, "the scaling must show"
    check(model, path, 60)


def test_facts_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    export(tiny("gemma3"), path, Type.Q8_0, FAMILIES["gemma3"])
    checkpoint = open_checkpoint(path)
    facts = checkpoint.facts()
    assert (facts.vocab_size, facts.max_position, facts.weight_dtype) == (160, 256, "quantized")
    assert [layer.window for layer in facts.layers] == [8] * 5 + [None]
    assert {(layer.num_kv_heads, layer.head_dim) for layer in facts.layers} == {(2, 32)}
    assert checkpoint.eos_token_ids == (2,)


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    """Nothing is copied but what must be reordered: the map is the memory."""
    path = tmp_path / "model.gguf"
    export(tiny("qwen2"), path, Type.Q8_0)
    decoder = open_checkpoint(path).build(reference_ops(), 64)
    assert is_view_of(decoder.weights.layers[0].down.tensors["blocks"], path)


@pytest.mark.parametrize("key", ["attention.scale", "expert_shared_count", "rope.scaling.yarn_ext_factor"])
def test_a_key_that_may_change_the_arithmetic_is_refused_by_name(key: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    export(make("llama"), path, Type.F32, {key: 4})
    with pytest.raises(UnsupportedModel, match=rf"llama\.{key}"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["llama_yarn_attn1.gguf", "qwen2moe.gguf"])
def test_models_of_another_writer(name: str) -> None:
    """An attention factor of 1.0 beside YaRN's own; a shared expert's gate of two dimensions."""
    check_against_reference(shared_model(name))


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    export(make("llama"), path, Type.Q8_0)
    seen: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(path)
    checkpoint.build(reference_ops(), 64, lambda *at: seen.append(at))
    assert seen == sorted(seen)
    assert seen[-1] == (checkpoint.total_bytes, checkpoint.total_bytes)
