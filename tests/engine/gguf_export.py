"""Write a tiny transformers model as a GGUF, as a converter would, and hand back the model with the weights it then
has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

_NAMES = [
    (r"model\.embed_tokens", "token_embd"),
    (r"model\.norm", "output_norm"),
    (r"lm_head", "output"),
    (r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj", r"blk.\1.attn_\2"),
    (r"model\.layers\.(\d+)\.self_attn\.([qk])_norm", r"blk.\1.attn_\2_norm"),
    (r"model\.layers\.(\d+)\.self_attn\.o_proj", r"blk.\1.attn_output"),
    (r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj", r"blk.\1.ffn_\2"),
    (r"model\.layers\.(\d+)\.input_layernorm", r"blk.\1.attn_norm"),
    (r"model\.layers\.(\d+)\.pre_feedforward_layernorm", r"blk.\1.ffn_norm"),
    (r"model\.layers\.(\d+)\.post_feedforward_layernorm", r"blk.\1.post_ffw_norm"),
]


def gguf_name(name: str, sandwich: bool) -> str:
    module, _, kind = name.rpartition(".")
    post = "post_attention_norm" if sandwich else "ffn_norm"
    for pattern, replacement in [*_NAMES, (r"model\.layers\.(\d+)\.post_attention_layernorm", rf"blk.\1.{post}")]:
        if re.fullmatch(pattern, module):
            return re.sub(pattern, replacement, module) + "." + kind
    raise AssertionError(f"no GGUF name for {name}")


def interleave(data: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q and K as the Llama converter orders them."""
    return data.reshape(heads, 2, -1, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)


def writer_of(config: Any, path: Path, arch: str) -> gguf.GGUFWriter:
    """A writer that holds what every family's files say of their shape."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    return writer


def export(model: Any, path: Path, quantization: Type, metadata: dict[str, Any] | None = None) -> Any:
    """Write the model; matrices quantised where the type allows. Its own weights become the dequantised ones."""
    config = model.config
    arch = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = writer_of(config, path, arch)
    writer.add_key_length(
        config.head_dim if hasattr(config, "head_dim") else config.hidden_size // config.num_attention_heads
    )
    writer.add_eos_token_id(2)
    for key, value in (metadata or {}).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{arch}.{key}", value)
    state = model.state_dict()
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.float().numpy()
        if arch == "gemma3" and data.ndim == 1 and "norm" in name:
            data = data + 1
        kind = quantization if data.ndim == 2 else Type.F32
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        found = re.search(r"self_attn\.([qk])_proj", name)
        if arch == "llama" and found:
            raw = gguf.quantize(interleave(data, heads[found[1]]), kind)
        else:
            raw = gguf.quantize(data, kind)
        writer.add_tensor(gguf_name(name, arch == "gemma3"), raw, raw_dtype=kind)
        if data.ndim == 2:
            tensor.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(data, kind), kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
