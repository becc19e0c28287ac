"""Two ranks give what one gives, however the weights are stored: schemes, GGUF types, quantised experts, quantising on
load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import format_models
import pytest
import quantized_export as export
import tiny_models
import torch
from gguf import GGMLQuantizationType as Type
from moe_models import export_moe, save_moe
from parallel_formats import WIDE_EXPERTS, k_gguf, quantized_experts, tiled_fp8, unrounded
from parallel_harness import logits, nmse

from headrace.checkpoints.quantizing import quantizing
from headrace.errors import UnsupportedModel
from headrace.models.decoder import DecoderWeights, LayerWeights
from headrace.platforms.cpu.native import missing
from headrace.quant.online import quantize_weight

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
IDS = [5, 17, 80, 33, 2, 9, 64, 71, 12, 12, 90, 41]
SAME = 1e-10
"""Sums in another order, in float32."""
BY_ROW = ("fp8_token", "int8_token", "int8_token_asymmetric")
"""Inputs with one scale per row: each rank computes a scale from its part of the row."""
STORED = (
    "awq", "gptq", "gptq-3", "gptq-act-order", "int4-g32", "int4-g64", "int4-g128", "int8-row", "fp8-blocks", "mxfp4",
    "nvfp4",
)  # fmt: skip


def quantized_weights(weights: DecoderWeights, kind: str) -> DecoderWeights:
    """Every matrix of the layers, quantized after the complete model has been read."""

    def narrow(layer: LayerWeights) -> LayerWeights:
        names = ("qkv", "output", "gate_up", "down")
        made: dict[str, Any] = {name: quantize_weight(getattr(layer, name), kind) for name in names}
        if layer.shared is not None:
            gate_up, down = (quantize_weight(weight, kind) for weight in (layer.shared.gate_up, layer.shared.down))
            made["shared"] = replace(layer.shared, gate_up=gate_up, down=down)
        return replace(layer, **made)

    return replace(weights, layers=[narrow(layer) for layer in weights.layers])


@pytest.mark.parametrize("name", STORED)
def test_schemes_of_checkpoints(name: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path, _ = format_models.make(name, tmp_path / "model")
    check(path, tmp_path)


def test_tiled_fp8(tmp_path: Path) -> None:
    stored = export.write(tiny_models.make("llama", **format_models.SHAPE), tiled_fp8(), tmp_path / "model")
    check(stored.path, tmp_path)


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_gguf_types(kind: str, tmp_path: Path) -> None:
    check(k_gguf(Type[kind], tmp_path / "model.gguf"), tmp_path)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("variant", ["llama", "qwen2_moe"])
def test_weights_quantised_on_load(variant: str, kind: str, tmp_path: Path) -> None:
    """The scale of a row is computed from the complete row, although a rank only has a part of it."""
    path = tmp_path / "model"
    if variant == "llama":
        tiny_models.save(variant, path, torch.bfloat16)
    else:
        save_moe(variant, path, torch.bfloat16)
    (whole,) = logits(path, IDS, 1, tmp_path / "one", then=lambda weights: quantized_weights(weights, kind))
    first, second = logits(path, IDS, 2, tmp_path / "two", read=lambda found: quantizing(found, kind))
    assert torch.equal(first, second)
    assert nmse(first, whole) < SAME
    (wide,) = logits(path, IDS, 1, tmp_path / "wide")
    assert nmse(first, wide) > 1e-6, "quantised at all"


def test_what_is_quantised_already_is_refused_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path, _ = format_models.make("awq", tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="stored as int4: leave --quantize out"):
        logits(path, IDS, 2, tmp_path / "two", read=lambda found: quantizing(found, "int8"))


@pytest.mark.parametrize("name", ["fp8", "w8a8", "experts-fp8", "experts-w8a8"])
def test_inputs_scaled_by_row_are_as_close_on_two_ranks_as_on_one(name: str, tmp_path: Path) -> None:
    """To what the weights give for inputs that are not rounded: each rank's part of a row has a scale of its own, never
    a larger one than the row's."""
    path = tmp_path / "model"
    path.mkdir()
    stored = format_models.STORED[name.removeprefix("experts-")]
    assert stored.activation in BY_ROW
    if name.startswith("experts"):
        quantized_experts("qwen3_moe", stored, path, **WIDE_EXPERTS)
    else:
        format_models.make(name, path)
    (exact,) = logits(path, IDS, 1, tmp_path / "exact", then=unrounded)
    (whole,) = logits(path, IDS, 1, tmp_path / "one")
    first, second = logits(path, IDS, 2, tmp_path / "two")
    assert torch.equal(first, second)
    assert nmse(whole, exact) > 1e-5, "rounded at all"
    assert nmse(first, exact) < 1.25 * nmse(whole, exact)
    assert nmse(first, whole) < 2 * nmse(whole, exact)


@pytest.mark.parametrize(
    "name", ["bfloat16", "awq", "gptq-act-order", "int8-row", "fp8-blocks", "Q4_K", "Q6_K", "Q5_0"]
)
def test_the_default_arithmetic_is_as_exact_on_two_ranks_as_on_one(name: str, tmp_path: Path) -> None:
    """Integer products if the processor has them. Compared with float32, in which the tests above compare."""
    (tmp_path / "model").mkdir()
    if name.startswith("Q"):
        path = k_gguf(Type[name], tmp_path / "model.gguf")
    else:
        path, _ = format_models.make(name, tmp_path / "model")
    (exact,) = logits(path, IDS, 1, tmp_path / "exact")
    (whole,) = logits(path, IDS, 1, tmp_path / "one", dtype=None)
    first, second = logits(path, IDS, 2, tmp_path / "two", dtype=None)
    assert torch.equal(first, second)
    assert nmse(first, exact) < 1.5 * nmse(whole, exact) + SAME


EXPERTS = {
    "int4": export.packed_int(4, 32, True),
    "int4-asymmetric": export.packed_int(4, 64, False),
    "awq": export.awq(32),
    "gptq-act-order": export.gptq(4, 32, True, True),
    "fp8-weights": export.fp8("channel", None, None),
    "fp8-blocks": export.fp8("block", export.inputs(8, "float", "group", group_size=128), "fp8_group128"),
    "mxfp4": export.fp4("mxfp4", None, None),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_quantised_experts(name: str, tmp_path: Path) -> None:
    """Every rank has all of them and half of each one's inner columns; they stand for the values that were packed."""
    stored = EXPERTS[name]
    plain = quantized_experts("qwen3_moe", stored, tmp_path / "model", **WIDE_EXPERTS)
    found = check(tmp_path / "model", tmp_path)
    if stored.activation is None:
        (meant,) = logits(plain, IDS, 1, tmp_path / "plain")
        assert nmse(found, meant) < SAME


@pytest.mark.parametrize("variant", ["qwen2_moe", "dots1"])
def test_a_quantised_shared_expert(variant: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "moe_intermediate_size": 64}
    if variant == "qwen2_moe":
        sizes["shared_expert_intermediate_size"] = 96
    plain = quantized_experts(variant, export.packed_int(4, 32, True), tmp_path / "model", **sizes)
    found = check(tmp_path / "model", tmp_path)
    (meant,) = logits(plain, IDS, 1, tmp_path / "plain")
    assert nmse(found, meant) < SAME


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
@pytest.mark.parametrize("variant", ["qwen3_moe", "qwen2_moe", "dots1"])
def test_gguf_experts(variant: str, kind: str, tmp_path: Path) -> None:
    export_moe(variant, tmp_path / "model.gguf", Type[kind], moe_intermediate_size=96)
    check(tmp_path / "model.gguf", tmp_path)


def check(path: Path, directory: Path) -> torch.Tensor:
    """Logits of a prompt, and of two more tokens, on two ranks, held to those on one. Returns the prompt's."""
    (whole,) = logits(path, IDS, 1, directory / "one", steps=2)
    first, second = logits(path, IDS, 2, directory / "two", steps=2)
    assert whole.isfinite().all()
    assert whole.std() > 1e-3, "a model that says nothing proves nothing"
    assert torch.equal(first, second), "the ranks' sums have the same bits"
    assert nmse(first, whole) < SAME
    return first[: len(IDS)]
