"""Tiny random models with experts, and their GGUFs as a converter writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import tiny_models
import torch
from gguf import GGMLQuantizationType as Type
from gguf_export import gguf_name, interleave, writer_of
from tiny_models import make

_QWEN = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "head_dim": 32,
    "norm_topk_prob": True,
}
_SHARED = {**_QWEN, "norm_topk_prob": False, "shared_expert_intermediate_size": 64}
del _SHARED["head_dim"]
_DEEPSEEK = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.75,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", _QWEN),
    "qwen3_moe-plain-shares": ("qwen3_moe", {**_QWEN, "norm_topk_prob": False, "attention_bias": True}),
    "qwen3_moe-some-dense": ("qwen3_moe", {**_QWEN, "decoder_sparse_step": 2, "num_hidden_layers": 4,
        "mlp_only_layers": [1]}),
    "qwen2_moe": ("qwen2_moe", _SHARED),
    "qwen2_moe-renormalised": ("qwen2_moe", {**_SHARED, "norm_topk_prob": True, "qkv_bias": False,
        "shared_expert_intermediate_size": 40}),
    "qwen2_moe-some-dense": ("qwen2_moe", {**_SHARED, "num_hidden_layers": 4, "decoder_sparse_step": 2}),
    "qwen2_moe-window": ("qwen2_moe", {**_SHARED, "use_sliding_window": True, "sliding_window": 7,
        "max_window_layers": 2}),
    "dots1": ("dots1", {**_DEEPSEEK, "n_group": 4, "topk_group": 2, "sliding_window": None}),
    "dots1-window": ("dots1", {**_DEEPSEEK, "norm_topk_prob": False, "first_k_dense_replace": 0, "attention_bias": True,
        "sliding_window": 7, "max_window_layers": 1}),
    "glm4_moe": ("glm4_moe", {**_DEEPSEEK, "head_dim": 32, "use_qk_norm": True}),
    "glm4_moe-bias": ("glm4_moe", {**_DEEPSEEK, "n_shared_experts": 1, "attention_bias": True,
        "partial_rotary_factor": 0.25}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-window": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 7}),
}  # fmt: skip


def make_moe(variant: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """As `tiny_models.make`."""
    kind, changes = VARIANTS[variant]
    tiny_models.VARIANTS.setdefault(variant, (kind, changes))
    try:
        model = make(variant, dtype, **more)
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(len(name))) * 0.2)
        return model
    finally:
        del tiny_models.VARIANTS[variant]


def save_moe(variant: str, directory: Path, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    model = make_moe(variant, dtype, **more)
    model.save_pretrained(directory)
    return model


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    """By GGUF name, views of the model's own."""
    found = {}
    for name, tensor in model.state_dict().items():
        layer = re.match(r"model\.layers\.(\d+)\.mlp\.(.*)", name)
        if layer is None or re.search(r"mlp\.(gate|up|down)_proj", name):
            found[gguf_name(name, sandwich=False)] = tensor
            continue
        block, rest = f"blk.{layer[1]}.ffn_", layer[2]
        shared = re.fullmatch(r"shared_experts?\.(gate|up|down)_proj\.weight", rest)
        if rest == "gate.weight":
            found[block + "gate_inp.weight"] = tensor
        elif rest == "gate.e_score_correction_bias":
            found[f"blk.{layer[1]}.exp_probs_b.bias"] = tensor
        elif rest == "shared_expert_gate.weight":
            found[block + "gate_inp_shexp.weight"] = tensor.squeeze(0)
        elif shared is not None:
            found[f"{block}{shared[1]}_shexp.weight"] = tensor
        elif rest == "experts.gate_up_proj":
            half = tensor.shape[1] // 2
            found |= {block + "gate_exps.weight": tensor[:, :half], block + "up_exps.weight": tensor[:, half:]}
        else:
            found[block + "down_exps.weight"] = tensor
    return found


def _add_deepseek(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.n_group > 1:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if config.model_type == "glm4_moe":
        head = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        writer.add_rope_dimension_count(int(head * config.rope_parameters["partial_rotary_factor"]))


def export_moe(variant: str, path: Path, quantization: Type, **more: Any) -> Any:
    """Write the model; router and norms stay float32, the rest is of the type, and the model's own weights become
    those."""
    model = make_moe(variant, **more)
    config = model.config
    arch = {"mixtral": "llama"}.get(config.model_type, config.model_type.replace("_", ""))
    writer = writer_of(config, path, arch)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_expert_count(config.num_experts if arch == "qwen2moe" else config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "head_dim") and arch != "llama":
        writer.add_key_length(config.head_dim)
    if arch != "llama":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch in ("dots1", "glm4moe"):
        _add_deepseek(writer, config)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in _tensors(model).items():
        kind = Type.F32 if tensor.dim() == 1 or "gate_inp" in name else quantization
        data = tensor.float().numpy()
        own = name.split(".")[2] if name.startswith("blk") else ""
        ordered = interleave(data, heads[own]) if arch == "llama" and own in heads else data
        stored = name.replace("ffn_norm", "post_attention_norm") if arch == "glm4moe" else name
        writer.add_tensor(stored, gguf.quantize(ordered, kind), raw_dtype=kind)
        tensor.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(data, kind), kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
