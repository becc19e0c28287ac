"""A model family as data: the names of its tensors and two functions that read its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.models.config import DecoderConfig

__all__ = ["GGUF_NAMES", "GGUF_SANDWICH", "HF_NAMES", "HF_SANDWICH", "Family", "Names"]


@dataclass(frozen=True, slots=True)
class Names:
    """A checkpoint's names of the decoder's tensors, without `.weight` and `.bias`; `{i}` is the layer."""

    embedding: str
    norm: str
    head: str
    input_norm: str
    q: str
    k: str
    v: str
    output: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    q_norm: str
    k_norm: str
    attention_post_norm: str = ""
    mlp_post_norm: str = ""
    router: str = ""
    router_bias: str = ""
    """The complete name of the tensor."""
    expert_gate: str = ""
    expert_up: str = ""
    expert_down: str = ""
    """With `{e}`, the expert's number; without it, one tensor for all experts."""
    shared_gate: str = ""
    shared_up: str = ""
    shared_down: str = ""
    shared_share: str = ""
    ignored: tuple[str, ...] = ()
    """Regular expressions of tensors that old writers stored and that the model doesn't use."""


@dataclass(frozen=True, slots=True)
class Family:
    """The rules by which one family's checkpoints are read."""

    name: str
    from_hf: Callable[[Mapping[str, Any]], DecoderConfig]
    """Reads a config.json. Raises UnsupportedModel that names the unsupported feature."""
    hf_names: Names
    from_gguf: Callable[[Mapping[str, Any]], DecoderConfig]
    """Reads a GGUF's metadata. `tied`, biases and head norms are set later, from the tensors of the file."""
    gguf_names: Names
    norm_offset: float = 0.0
    """Added to the norms of a Hugging Face checkpoint (Gemma stores w of 1 + w); GGUF converters add it themselves."""
    gguf_interleaved: bool = False
    """The GGUF converter reordered rows of Q and K so that a rotation pairs neighbours instead of halves."""


_LAYER = "model.layers.{i}."
HF_NAMES = Names(
    embedding="model.embed_tokens",
    norm="model.norm",
    head="lm_head",
    input_norm=_LAYER + "input_layernorm",
    q=_LAYER + "self_attn.q_proj",
    k=_LAYER + "self_attn.k_proj",
    v=_LAYER + "self_attn.v_proj",
    output=_LAYER + "self_attn.o_proj",
    mlp_norm=_LAYER + "post_attention_layernorm",
    gate=_LAYER + "mlp.gate_proj",
    up=_LAYER + "mlp.up_proj",
    down=_LAYER + "mlp.down_proj",
    q_norm=_LAYER + "self_attn.q_norm",
    k_norm=_LAYER + "self_attn.k_norm",
    router=_LAYER + "mlp.gate",
    expert_gate=_LAYER + "mlp.experts.{e}.gate_proj",
    expert_up=_LAYER + "mlp.experts.{e}.up_proj",
    expert_down=_LAYER + "mlp.experts.{e}.down_proj",
    shared_gate=_LAYER + "mlp.shared_expert.gate_proj",
    shared_up=_LAYER + "mlp.shared_expert.up_proj",
    shared_down=_LAYER + "mlp.shared_expert.down_proj",
    shared_share=_LAYER + "mlp.shared_expert_gate",
    ignored=(r".*\.rotary_emb\.inv_freq",),
)
GGUF_NAMES = Names(
    embedding="token_embd",
    norm="output_norm",
    head="output",
    input_norm="blk.{i}.attn_norm",
    q="blk.{i}.attn_q",
    k="blk.{i}.attn_k",
    v="blk.{i}.attn_v",
    output="blk.{i}.attn_output",
    mlp_norm="blk.{i}.ffn_norm",
    gate="blk.{i}.ffn_gate",
    up="blk.{i}.ffn_up",
    down="blk.{i}.ffn_down",
    q_norm="blk.{i}.attn_q_norm",
    k_norm="blk.{i}.attn_k_norm",
    router="blk.{i}.ffn_gate_inp",
    expert_gate="blk.{i}.ffn_gate_exps",
    expert_up="blk.{i}.ffn_up_exps",
    expert_down="blk.{i}.ffn_down_exps",
    shared_gate="blk.{i}.ffn_gate_shexp",
    shared_up="blk.{i}.ffn_up_shexp",
    shared_down="blk.{i}.ffn_down_shexp",
    shared_share="blk.{i}.ffn_gate_inp_shexp",
    ignored=(r"blk\.\d+\.attn_rot_embd",),
)


def _sandwich(names: Names, mlp_norm: str, attention_post_norm: str, mlp_post_norm: str) -> Names:
    return replace(names, mlp_norm=mlp_norm, attention_post_norm=attention_post_norm, mlp_post_norm=mlp_post_norm)


HF_SANDWICH = _sandwich(
    HF_NAMES,
    _LAYER + "pre_feedforward_layernorm",
    _LAYER + "post_attention_layernorm",
    _LAYER + "post_feedforward_layernorm",
)
GGUF_SANDWICH = _sandwich(GGUF_NAMES, "blk.{i}.ffn_norm", "blk.{i}.post_attention_norm", "blk.{i}.post_ffw_norm")
