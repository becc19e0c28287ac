"""Every variant of compressed-tensors, GPTQ and AWQ that their tools write, against a plain dequantization; the rest
refused by name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quantized_export as export
import tiny_models
import torch
from model_harness import logits_of, reference_ops
from quantized_export import Variant, variants, write
from safetensors.torch import load_file, save_file

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.errors import CheckpointError, UnsupportedModel
from headrace.kernels.registry import bind
from headrace.models.decoder import Decoder
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_device import NativeDevice

VARIANTS = variants()
IDS = tiny_models.prompt(9)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_models.make(
        "llama", num_hidden_layers=1, hidden_size=128, intermediate_size=256, num_attention_heads=2, head_dim=64
    )


@pytest.fixture(scope="module")
def device() -> Iterator[NativeDevice | None]:
    made = None if native.missing() else NativeDevice(1, "quantized")
    yield made
    if made is not None:
        made.close()


def matrices(decoder: Decoder) -> dict[str, torch.Tensor]:
    layer = decoder.weights.layers[0]
    parts = {"self_attn.q_proj": layer.qkv.parts[0], "self_attn.k_proj": layer.qkv.parts[1]}
    parts |= {"self_attn.v_proj": layer.qkv.parts[2], "self_attn.o_proj": layer.output}
    parts |= {
        "mlp.gate_proj": layer.gate_up.parts[0],
        "mlp.up_proj": layer.gate_up.parts[1],
        "mlp.down_proj": layer.down,
    }
    return {f"model.layers.0.{name}": part.dequantize() for name, part in parts.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_loaded_weights_equal_the_written_ones(
    name: str, model: Any, device: NativeDevice | None, tmp_path: Path
) -> None:
    variant = VARIANTS[name]
    written = write(model, variant, tmp_path / "model")
    checkpoint = open_checkpoint(written.path)
    decoder = checkpoint.build(reference_ops(), 16)
    down = decoder.weights.layers[0].down
    assert (down.scheme, down.activation) == (variant.scheme, variant.activation)
    found = matrices(decoder)
    assert found.keys() == written.matrices.keys()
    for module, expected in written.matrices.items():
        assert torch.equal(found[module], expected), module
    if device is not None:
        expected = logits_of(decoder, IDS)
        logits = logits_of(checkpoint.build(bind(device), 16), IDS, device=device)
        error = (logits - expected).square().sum() / expected.square().sum()
        assert error < limit(variant)


def limit(variant: Variant) -> float:
    """Rounded inputs may fall the other way, and four bits are coarse; otherwise the head's bfloat16 is all there is,
    and FP8's."""
    if variant.activation is None:
        return 1e-4 if variant.scheme == "fp8_e4m3" else 2e-5
    return 2e-2 if variant.activation in ("mxfp4", "nvfp4") else 2e-3


def _with_group(**change: Any) -> Variant:
    """`packed_int` with its one group of modules changed."""
    variant = export.packed_int(4, 128, True)
    group = {**variant.config["config_groups"]["group_0"], **change}
    return Variant({**variant.config, "config_groups": {"group_0": group}}, variant.pack, variant.scheme)


STATIC_ASYMMETRIC = {**export.inputs(8, "int", "tensor", False), "symmetric": False}
REFUSED: dict[str, tuple[Variant, dict[str, Any], str]] = {
    "gptq marlin": (export.gptq(4, 32, True), {"checkpoint_format": "marlin"}, "marlin"),
    "gptq marlin, older": (export.gptq(4, 32, True), {"is_marlin_format": True}, "is_marlin_format"),
    "gptq bitblas by its newer key": (
        export.gptq(4, 32, True), {"checkpoint_format": None, "format": "bitblas"}, "bitblas"
    ),
    "gptq other words": (export.gptq(4, 32, True), {"pack_dtype": "int16"}, "pack_dtype = 'int16'"),
    "awq gemv": (export.awq(32), {"version": "GEMV"}, "gemv"),
    "awq gemv_fast": (export.awq(32), {"version": "gemv_fast"}, "gemv_fast"),
    "awq of GPTQModel": (export.awq(32), {"version": None, "checkpoint_format": "gemv"}, "gemv"),
    "awq of its authors": (export.awq(32), {"backend": "llm-awq"}, "llm-awq"),
    "awq of other widths": (export.awq(32), {"bits": 8}, "8 bits"),
    "w8a8 static, asymmetric": (export.plain_int8(STATIC_ASYMMETRIC, None), {}, "static, asymmetric"),
    "w8a8 by channel": (export.plain_int8(export.inputs(8, "int", "channel"), None), {}, "per channel"),
    "w4a4": (export.plain_int8(export.inputs(4, "int", "token"), None), {}, "int of 4 bits"),
    "mxfp8 inputs": (
        export.mxfp8(export.inputs(8, "float", "group", group_size=32)), {}, "float of 8 bits per group .group 32"
    ),
    "fp8 by groups of 64": (
        export.fp8("channel", export.inputs(8, "float", "group", group_size=64), None), {}, "group 64"
    ),
    "cache of 4 bits": (
        export.packed_int(4, 128, True), {"kv_cache_scheme": export.inputs(4, "int", "tensor", False)}, "of 4 bits"
    ),
    "attention's own": (_with_group(weights=None), {}, "a group without quantized weights"),
    "fp8 methods of other scales": (
        export.gptq(4, 32, True),
        {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
        "ue8m0",
    ),
    "auto-round, rounded inputs": (
        export.gptq(4, 32, True), {"quant_method": "auto-round", "packing_format": "auto_round", "act_bits": 8},
        "inputs of 8 bits",
    ),
    "auto-round of llm-compressor": (
        export.gptq(4, 32, True), {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor"},
        "auto_round:llm_compressor",
    ),
    "bitsandbytes": (export.gptq(4, 32, True), {"quant_method": "bitsandbytes"}, "bitsandbytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_feature_is_refused_by_name(name: str, model: Any, tmp_path: Path) -> None:
    variant, change, named = REFUSED[name]
    config = {**variant.config, **change}
    written = write(model, Variant(config, variant.pack, variant.scheme), tmp_path / "model")
    with pytest.raises(UnsupportedModel, match=named):
        open_checkpoint(written.path)


@pytest.mark.parametrize(
    "change", [{"version": "GEMM"}, {"version": None}, {"version": None, "checkpoint_format": "gemm"}]
)
def test_names_of_the_same_layout(change: dict[str, Any], model: Any, tmp_path: Path) -> None:
    variant = export.awq(64, **change)
    written = write(model, variant, tmp_path / "model")
    found = matrices(open_checkpoint(written.path).build(reference_ops(), 16))
    assert all(torch.equal(found[name], expected) for name, expected in written.matrices.items())


@pytest.mark.parametrize("stem", ["{attention}.{letter}", "{attention}.{letter}_proj.output"])
@pytest.mark.parametrize("ignored", [[], ["re:.*self_attn.*"]], ids=["all", "but-attention"])
def test_calibrated_scales_of_the_cache_are_read_and_not_used(
    stem: str, ignored: list[str], model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    variant = export.fp8("channel", export.FP8_TOKEN, "fp8_token")
    config = {**variant.config, "kv_cache_scheme": export.inputs(8, "float", "tensor", False)}
    written = write(model, Variant(config, variant.pack, variant.scheme), tmp_path / "model")
    names = [stem.format(attention="model.layers.0.self_attn", letter=letter) + "_scale" for letter in "kv"]
    file = written.path / "model.safetensors"
    stored = {**load_file(file), **{name: torch.tensor([0.02], dtype=torch.bfloat16) for name in names}}
    if ignored:
        _leave_attention_plain(written, model, config, stored)
    save_file(stored, file)
    with caplog.at_level(logging.INFO, "headrace"):
        decoder = open_checkpoint(written.path).build(reference_ops(), 16)
    assert "kv_cache_scheme" in caplog.text
    assert decoder.weights.layers[0].qkv.parts[0].scheme == ("bfloat16" if ignored else "fp8_e4m3")
    stored[names[1]] = torch.zeros(1)
    save_file(stored, file)
    with pytest.raises(CheckpointError, match="above zero"):
        open_checkpoint(written.path).build(reference_ops(), 16)


def _leave_attention_plain(written: export.Written, model: Any, config: dict[str, Any], stored: dict[str, Any]) -> None:
    for name in [name for name in stored if "self_attn" in name and not name.endswith(("k_scale", "v_scale"))]:
        if "output_scale" not in name:
            del stored[name]
    plain = {name: tensor for name, tensor in model.state_dict().items() if "self_attn" in name}
    stored |= {name: tensor.bfloat16() for name, tensor in plain.items()}
    found = json.loads((written.path / "config.json").read_text())
    found["quantization_config"] = {**config, "ignore": ["lm_head", "re:.*self_attn.*"]}
    (written.path / "config.json").write_text(json.dumps(found))


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_gptq_writes_a_bias_for_every_module(value: float, model: Any, tmp_path: Path) -> None:
    """AutoGPTQ's files have zeros where the architecture has no bias; what is not zero is added."""
    variant = export.gptq(4, 64, True)

    def pack(matrix: torch.Tensor) -> export.Packed:
        tensors, values = variant.pack(matrix)
        return {**tensors, "bias": torch.full((len(matrix),), value, dtype=torch.float16)}, values

    written = write(model, Variant(variant.config, pack, "int4"), tmp_path / "model")
    layer = open_checkpoint(written.path).build(reference_ops(), 16).weights.layers[0]
    for weight in (layer.qkv, layer.down):
        if value == 0:
            assert weight.bias is None
        else:
            assert torch.equal(weight.bias, torch.full((weight.shape[0],), value))
