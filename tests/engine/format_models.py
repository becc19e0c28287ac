"""Tiny Llamas in every number format that the engine loads, each made at its first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import quantized_export as export
import tiny_models
import torch
from gguf import GGMLQuantizationType as Type
from gguf_export import gguf_name

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "max_position_embeddings": 512,
}
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ONLINE = {"quantize-int8": "int8", "quantize-int4": "int4"}
STORED = {
    "int4-g32": export.packed_int(4, 32, True),
    "int4-g64": export.packed_int(4, 64, False),
    "int4-g128": export.packed_int(4, 128, True),
    "int8-row": export.packed_int(8, -1, True),
    "awq": export.awq(64),
    "gptq": export.gptq(4, 128, True),
    "gptq-act-order": export.gptq(4, 32, False, True),
    "gptq-3": export.gptq(3, 64, False),
    "w8a8": export.plain_int8(export.INT8_TOKEN, "int8_token"),
    "fp8": export.fp8("channel", export.FP8_TOKEN, "fp8_token"),
    "fp8-blocks": export.fp8("block", export.inputs(8, "float", "group", group_size=128), "fp8_group128"),
    "mxfp4": export.fp4("mxfp4", export.MXFP4, "mxfp4"),
    "mxfp4-weights": export.fp4("mxfp4", None, None),
    "nvfp4": export.fp4("nvfp4", export.NVFP4, "nvfp4"),
}
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""GGUF types, and the byte offsets of a block's float16 scales."""
FORMATS = (*FLOATS, *ONLINE, *STORED, *HALVES)


def drawn_shape(rng: np.random.Generator) -> dict[str, Any]:
    """Sizes that every format can store: all matrices have inputs in whole 256s."""
    head_dim = int(rng.choice([32, 64, 128]))
    heads = 256 * int(rng.choice([1, 2])) // head_dim
    return {
        **SHAPE,
        "hidden_size": 256 * int(rng.choice([1, 2])),
        "intermediate_size": 256 * int(rng.integers(1, 4)),
        "num_hidden_layers": int(rng.choice([1, 2])),
        "num_attention_heads": heads,
        "num_key_value_heads": int(rng.choice([n for n in (1, 2, 4, 8) if heads % n == 0])),
        "head_dim": head_dim,
    }


def make(name: str, directory: Path, shape: dict[str, Any] = SHAPE) -> tuple[Path, str | None]:
    """The model's path, and what `ModelConfig.quantize` should say."""
    if name in HALVES:
        return _gguf(name, directory, shape), None
    if name in STORED:
        return export.write(tiny_models.make("llama", **shape), STORED[name], directory).path, None
    tiny_models.save("llama", directory, FLOATS.get(name, torch.bfloat16), **shape)
    return directory, ONLINE.get(name)


def _blocks(rng: np.random.Generator, kind: Type, shape: tuple[int, ...]) -> np.ndarray:
    """Random codes under small scales: any bytes are a sound block."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // elements, size), dtype=np.uint8)
    for at in HALVES[kind.name]:
        scale = rng.uniform(2e-5, 1e-3 if kind.name.endswith("K") else 2e-2, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = scale[..., np.newaxis].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _gguf(name: str, directory: Path, shape: dict[str, Any]) -> Path:
    """Random matrices of one type in a GGUF."""
    model, rng = tiny_models.make("llama", **shape), np.random.default_rng(len(name))
    config = model.config
    path = directory / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_context_length, 512), (writer.add_embedding_length, config.hidden_size),
        (writer.add_block_count, config.num_hidden_layers), (writer.add_feed_forward_length, config.intermediate_size),
        (writer.add_head_count, config.num_attention_heads), (writer.add_head_count_kv, config.num_key_value_heads),
        (writer.add_key_length, config.head_dim), (writer.add_value_length, config.head_dim),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_vocab_size, 260), (writer.add_eos_token_id, 2),
    ):  # fmt: skip
        add(value)
    for key, tensor in model.state_dict().items():
        if tensor.dim() == 1:
            writer.add_tensor(gguf_name(key, False), tensor.numpy())
        else:
            raw = _blocks(rng, Type[name], tuple(tensor.shape))
            writer.add_tensor(gguf_name(key, False), raw, raw_dtype=Type[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
