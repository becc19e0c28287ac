"""Sound settings of checkpoints, and what a damaged or hostile file makes of them."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "eos_token_id": [1, 2],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "truncate": True}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
DEEPSEEK = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
GROUP = {
    "targets": ["Linear", "re:.*proj"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128], "symmetric": True},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True},
}
SCHEMES: tuple[dict[str, Any], ...] = (
    {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "kv_cache_scheme": "x"},
    {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": 128},
    {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq", "meta": {"adapter": None}},
    {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "extra_config": {"a": {"act_bits": 16}}},
    {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": GROUP},
        "kv_cache_scheme": {"num_bits": 8},
    },
)
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"rope_scaling": LLAMA3, "mlp_bias": False},
    "MistralForCausalLM": {"sliding_window": 7, "layer_types": ["sliding_attention"] * 3},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "Qwen3ForCausalLM": {"rope_scaling": YARN},
    "Gemma3ForCausalLM": {
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 24,
        "final_logit_softcapping": 1.5,
        "rope_local_base_freq": 1e4,
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 1e4}},
    },
    "MixtralForCausalLM": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen2MoeForCausalLM": {**EXPERTS, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1},
    "Qwen3MoeForCausalLM": {**EXPERTS, "mlp_only_layers": [1]},
    "Dots1ForCausalLM": DEEPSEEK,
    "Glm4MoeForCausalLM": {**DEEPSEEK, "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 1},
}
META: dict[str, Any] = {
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 3,
    "attention.head_count": 4,
    "attention.head_count_kv": np.array([2, 2, 2], np.uint32),
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 8,
    "context_length": 128,
    "vocab_size": 100,
    "rope.dimension_count": 16,
    "rope.freq_base": 1e4,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.original_context_length": 64,
}
META_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": META_EXPERTS,
    "qwen2": {},
    "qwen3": {},
    "gemma3": {"rope.freq_base_swa": 1e4, "final_logit_softcapping": 1.5},
    "qwen2moe": {**META_EXPERTS, "expert_shared_feed_forward_length": 32},
    "qwen3moe": META_EXPERTS,
    "dots1": {**META_EXPERTS, "expert_gating_func": 2, "leading_dense_block_count": 1, "expert_weights_scale": 1.5},
    "glm4moe": {**META_EXPERTS, "expert_gating_func": 2, "nextn_predict_layers": 1, "expert_group_count": 1},
}


def hf_config(architecture: str) -> dict[str, Any]:
    return copy.deepcopy({"architectures": [architecture], **SIZES, **FAMILIES[architecture]})


def gguf_metadata(arch: str) -> dict[str, Any]:
    keys = {f"{arch}.{key}": value for key, value in (META | ARCHITECTURES[arch]).items()}
    ends = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eos_token_ids": np.array([1, 2], np.uint32)}
    return copy.deepcopy({"general.architecture": arch, "split.count": 1, **keys, **ends})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**4, 10**9, 2**31, 2**63, 10**400, -(10**400),
    0.5, -0.5, 1e-300, 1e308, float("nan"), float("inf"), float("-inf"),
    "", "x", "16", "full_attention", "\ud800", "é\n\0", "y" * 100_000, "re:(", "re:" + "(" * 5000,
    [], [0], [-1], [None], ["x"], [[]], [128, 0], [1, 2, 3], ["x"] * 3, [10**9] * 3, nested(50),
    {}, {"a": 1}, {"": {}}, {"num_bits": 8}, {"\ud800": "\ud800"}, {"content": 3}, {"1": {"content": 5}},
)  # fmt: skip
ARRAYS: tuple[Any, ...] = (
    np.array([], np.float32),
    np.array([2, 2, 2], np.uint32),
    np.array([1.5, np.nan], np.float32),
    np.zeros(5000, np.int64),
    np.array([True, False]),
)


def mutate(rng: random.Random, document: dict[str, Any], arrays: bool = False) -> dict[str, Any]:
    """A copy with one to three fields replaced, removed, or renamed; fields of inner objects and lists too."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place: Any = changed
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.7:
                place = place[key]
                continue
            _change(rng, place, key, VALUES + ARRAYS if arrays else VALUES)
            break
    return changed


def _change(rng: random.Random, place: Any, key: Any, values: tuple[Any, ...]) -> None:
    if rng.random() < 0.1:
        moved = place.pop(key)
        if isinstance(place, dict) and rng.random() < 0.5:
            place[f"{key}x"] = moved
    else:
        place[key] = copy.deepcopy(rng.choice(values))


def damage(rng: random.Random, content: bytes) -> bytes:
    """Bytes changed, cut out, or put in."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            changed[at : at + rng.choice((1, 4, 8))] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\xff" * 4, b"\0\0\0\x80"))
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 64)]
        else:
            changed[at:at] = rng.choice((b"[" * 2000, b"{", b'"', b"NaN", b"-", b"1e999", b"\\ud800", b"9" * 40))
    return bytes(changed)
