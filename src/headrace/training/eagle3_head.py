"""The EAGLE-3 head (arXiv:2503.01840), in the layout of SafeAILab and SpecForge.

g_i = fc(the residual streams entering three layers of the target at position i, side by side). The layer attends over
concat(input_layernorm(embedding of token i + 1), hidden_norm(g_i)), with g_i as its residual. Its output u is the next
step's g; logits = lm_head(norm(u)) over a reduced vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.training.chain_head import ChainHead, DraftLayer
from headrace.training.head_layers import HeadShape, Norm, linear
from headrace.training.training_head import Example, TargetTables, vocabulary_tables

__all__ = ["Eagle3Head"]


class _FusingLayer(DraftLayer):
    def __init__(self, shape: HeadShape, generator: torch.Generator) -> None:
        super().__init__(shape, 2 * shape.hidden, generator)
        self.hidden_norm = Norm(shape.hidden, shape.eps)


class Eagle3Head(ChainHead):
    method = "eagle3"

    def __init__(
        self, shape: HeadShape, tables: TargetTables, ids: Tensor, drafts: int, generator: torch.Generator
    ) -> None:
        """`ids` int64 [Vd], ascending: the draft vocabulary."""
        super().__init__(shape, tables, drafts)
        self.points = (min(2, shape.layers), shape.layers // 2, max(shape.layers - 3, 0))
        self._ids = ids
        self.fc = linear(len(self.points) * shape.hidden, shape.hidden, generator)
        self.midlayer = _FusingLayer(shape, generator)
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = linear(shape.hidden, len(ids), generator)
        with torch.no_grad():
            self.lm_head.weight.copy_(tables.head[ids])

    @property
    def layer(self) -> DraftLayer:
        return self.midlayer

    @property
    def ids(self) -> Tensor:
        return self._ids

    def fused(self, example: Example) -> Tensor:
        fused: Tensor = self.fc(example.features)
        return fused

    def inputs(self, tokens: Tensor, before: Tensor, first: int) -> tuple[Tensor, Tensor]:
        embedded = self.midlayer.input_layernorm(self.tables.embedding[tokens])
        return torch.cat([embedded, self.midlayer.hidden_norm(before)], -1), before

    def outputs(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        return self.lm_head(self.norm(mixed)), mixed

    @torch.no_grad()
    def warm_start(self, layers: Sequence[Mapping[str, Tensor]]) -> None:
        """Start as the target's last layer over the latest of the three features; the embedding's half of the
        attention and the other features keep their small random values."""
        hidden, last = self.shape.hidden, layers[-1]
        self.fc.weight[:, -hidden:] += torch.eye(hidden)
        for name, parameter in self.midlayer.named_parameters():
            if name in last:
                part = (
                    parameter[:, hidden:]
                    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
                    else parameter
                )
                part.copy_(last[name])
        self.midlayer.hidden_norm.weight.copy_(last["input_layernorm.weight"])
        self.norm.weight.copy_(last["norm.weight"])

    def tensors(self) -> dict[str, Tensor]:
        own = {name: tensor.detach() for name, tensor in self.named_parameters()}
        return {**own, **vocabulary_tables(self._ids, self.shape.vocab)}

    def settings(self) -> dict[str, Any]:
        shape = self.shape
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_attention_heads": shape.q_heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": shape.eps,
            "rope_theta": shape.rope.theta,
            "vocab_size": shape.vocab,
            "draft_vocab_size": len(self._ids),
            "max_position_embeddings": shape.positions,
            "tie_word_embeddings": False,
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": list(self.points),
                "norm_before_fc": False,
            },
        }
