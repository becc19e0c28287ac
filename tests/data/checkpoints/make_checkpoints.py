"""Makes the tiny compressed-tensors checkpoints beside this file, with that format's own library, and their reference
logits.

Run by hand where a variant is added: `pip install compressed-tensors==0.19.0`, then `python make_checkpoints.py`. Every
model
is a random one-layer Llama; weights are rounded to nearest. `reference.safetensors` holds, a variant, the logits of 12
tokens that transformers computes in float32 with inputs quantised as the scheme says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
IDS = torch.tensor([[5, 17, 80, 33, 2, 9, 64, 71, 12, 12, 90, 41]])
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
TOKEN8 = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP8_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
TILES = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
GROUP128 = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": True}
MX = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
NV = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "scale_dtype": "torch.float8_e4m3fn",
}


def int4(**more: Any) -> dict[str, Any]:
    return {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, **more}


VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "w8a8-dynamic": ("int-quantized", INT8, TOKEN8),
    "w8a8-asymmetric": ("int-quantized", {**INT8, "symmetric": False}, {**TOKEN8, "symmetric": False}),
    "w8a8-static": ("int-quantized", {**INT8, "strategy": "tensor"}, {**INT8, "strategy": "tensor", "dynamic": False}),
    "fp8-dynamic": ("float-quantized", FP8, FP8_TOKEN),
    "fp8-static": ("float-quantized", {**FP8, "strategy": "tensor"}, {**FP8, "strategy": "tensor", "dynamic": False}),
    "fp8-tiles": ("float-quantized", TILES, GROUP128),
    "w4a16": ("pack-quantized", int4(), None),
    "w4a16-asymmetric": ("pack-quantized", int4(symmetric=False), None),
    "w4a16-channel": ("pack-quantized", {**int4(), "strategy": "channel", "group_size": None}, None),
    "w3a16": ("pack-quantized", int4(num_bits=3, symmetric=False), None),
    "w8a16": ("pack-quantized", int4(num_bits=8, group_size=64), None),
    "w4a8": ("pack-quantized", int4(), TOKEN8),
    "mxfp4": ("mxfp4-pack-quantized", MX, {**MX, "dynamic": True}),
    "nvfp4": ("nvfp4-pack-quantized", NV, {**NV, "dynamic": "local"}),
    "nvfp4a16": ("nvfp4-pack-quantized", NV, None),
}


def tiny(intermediate: int) -> Any:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=intermediate,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = (parameter + torch.randn_like(parameter) * 0.1).detach().bfloat16().float()
    return model


def tiles(weight: torch.Tensor, args: Any) -> torch.Tensor:
    """[..., values that share a scale]"""
    if args.strategy == "tensor":
        return weight.reshape(1, -1)
    if args.strategy == "block":
        height, width = args.block_structure
        rows, columns = -(-weight.shape[0] // height), -(-weight.shape[1] // width)
        padded = torch.zeros(rows * height, columns * width)
        padded[: weight.shape[0], : weight.shape[1]] = weight
        return padded.view(rows, height, columns, width).transpose(1, 2).flatten(2)
    size = args.group_size or weight.shape[1]
    return weight.unflatten(1, (-1, size))


def quantise(model: Any, config: QuantizationConfig, static: dict[str, tuple[float, float]]) -> None:
    apply_quantization_config(model, config)
    for name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            continue
        pieces, whole = tiles(module.weight.data, scheme.weights), None
        low, high = pieces.amin(-1), pieces.amax(-1)
        if scheme.weights.strategy == "tensor_group":
            whole = generate_gparam(low.min(), high.max())
            module.weight_global_scale.data.copy_(whole)
        scale, zero = calculate_qparams(low, high, scheme.weights, global_scale=whole)
        module.weight_scale.data = scale.reshape(module.weight_scale.shape)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data = zero.reshape(module.weight_scale.shape).to(torch.int8)
        least, most = (torch.tensor(value) for value in static[name])
        if hasattr(module, "input_global_scale"):
            module.input_global_scale.data.copy_(generate_gparam(least, most))
        if hasattr(module, "input_scale"):
            scale, _ = calculate_qparams(least, most, scheme.input_activations)
            module.input_scale.data.copy_(scale)


def ranges(model: Any) -> dict[str, tuple[float, float]]:
    """The least and greatest input of every matrix on the reference tokens."""
    found: dict[str, tuple[float, float]] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, args, name=name: found.update({name: (float(args[0].min()), float(args[0].max()))})
        )
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    with torch.no_grad():
        model(IDS)
    for hook in hooks:
        hook.remove()
    return found


def make(variant: str) -> torch.Tensor:
    layout, weights, inputs = VARIANTS[variant]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": layout}
    settings = {"config_groups": {"group_0": group}, "ignore": ["lm_head"], "format": layout}
    model = tiny(256 if variant == "fp8-tiles" else 192)  # inputs come in whole groups of 128 there
    static = ranges(model)
    quantise(model, QuantizationConfig(**settings), static)
    with torch.no_grad():
        logits = model(IDS).logits[0]
    ModelCompressor.from_pretrained_model(model).compress_model(model)
    out = HERE / variant
    out.mkdir(exist_ok=True)
    state = {key: value.contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    state = {key: value.bfloat16() if "norm" in key or "embed" in key else value for key, value in state.items()}
    save_file(state, out / "model.safetensors")
    written = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    written["quantization_config"] = {**json.loads(QuantizationConfig(**settings).model_dump_json()), "format": layout}
    written["quantization_config"]["quant_method"] = "compressed-tensors"
    (out / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    return logits


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(VARIANTS)
    save_file({variant: make(variant).clone() for variant in chosen}, HERE / "reference.safetensors")
