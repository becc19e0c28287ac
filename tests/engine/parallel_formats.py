"""Tiny checkpoints of every stored form, of shapes whose parts two ranks can hold."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import format_models
import gguf
import numpy as np
import quantized_export as export
import tiny_models
import torch
from gguf import GGMLQuantizationType as Type
from gguf_export import gguf_name, writer_of
from moe_models import save_moe
from quantized_export import Packed, Variant
from safetensors.torch import load_file, save_file

from headrace.kernels.weight import Weight
from headrace.models.decoder import DecoderWeights

Tensor = torch.Tensor
K_SHAPE: dict[str, Any] = {
    **format_models.SHAPE, "hidden_size": 256, "intermediate_size": 512, "head_dim": 128, "num_attention_heads": 4,
}  # fmt: skip
"""Two blocks of 256 in every row that is cut."""
WIDE_EXPERTS: dict[str, Any] = {
    "hidden_size": 256,
    "moe_intermediate_size": 256,
    "head_dim": 64,
    "num_hidden_layers": 2,
}


def k_gguf(kind: Type, path: Path) -> Path:
    """Random blocks of one type in every matrix of a llama's layers, the rest in floats."""
    model, rng = tiny_models.make("llama", **K_SHAPE), np.random.default_rng(int(kind))
    writer = writer_of(model.config, path, "llama")
    writer.add_key_length(model.config.head_dim)
    writer.add_value_length(model.config.head_dim)
    for key, tensor in model.state_dict().items():
        name = gguf_name(key, sandwich=False)
        if tensor.dim() == 1 or ".layers." not in key:
            writer.add_tensor(name, tensor.numpy())
        else:
            writer.add_tensor(name, format_models._blocks(rng, kind, tuple(tensor.shape)), raw_dtype=kind)
    _finish(writer)
    return path


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantized_experts(variant: str, stored: Variant, directory: Path, **more: Any) -> Path:
    """A mixture of experts whose layers' matrices, but for the routers, are packed; beside it, in `plain`, what they
    stand for.

    Returns the path of the second.
    """
    save_moe(variant, directory, **more)
    plain = directory / "plain"
    plain.mkdir()
    tensors, values = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in load_file(directory / "model.safetensors").items():
        if tensor.dim() != 2 or ".layers." not in name or _is_router(name):
            tensors[name] = values[name] = tensor
            continue
        packed, values[name] = stored.pack(tensor.float())
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{suffix}": value.contiguous() for suffix, value in packed.items()}
    config = json.loads((directory / "config.json").read_text())
    own = {**stored.config, "ignore": ["lm_head", r"re:.*[._]gate$"]}
    for path, found, settings in (
        (directory, tensors, {**config, "quantization_config": own}), (plain, values, config),
    ):  # fmt: skip
        save_file(found, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(settings))
    return plain


def _is_router(name: str) -> bool:
    return name.endswith((".gate.weight", ".shared_expert_gate.weight"))


def tiled_fp8() -> Variant:
    """The `fp8` method of DeepSeek's and Qwen's own checkpoints."""
    tiles = export.fp8("block", None, None)

    def pack(matrix: Tensor) -> Packed:
        tensors, values = tiles.pack(matrix)
        return {"weight": tensors["weight"], "weight_scale_inv": tensors["weight_scale"]}, values

    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
    return Variant(config, pack, "fp8_e4m3", "fp8_group128")


def unrounded(weights: DecoderWeights) -> DecoderWeights:
    """The same weights without a rule for their inputs."""

    def plain(weight: Weight) -> Weight:
        return replace(weight, activation=None, parts=tuple(plain(part) for part in weight.parts))

    def all_plain(holder: Any) -> Any:
        found = {f.name: plain(part) for f in fields(holder) if isinstance(part := getattr(holder, f.name), Weight)}
        return replace(holder, **found)

    layers = [
        replace(all_plain(layer), shared=None if layer.shared is None else all_plain(layer.shared))
        for layer in weights.layers
    ]
    return replace(weights, layers=layers)
