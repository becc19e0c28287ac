"""A multi-token prediction head (DeepSeek-V3, arXiv:2412.19437, section 2.2), with DeepSeek's names on a Llama layer.

x_i = eh_proj(concat(enorm(embedding of token i + 1), hnorm(h_i))) with the target's h_i after its final norm, and the
embedding zeroed at position 0. One ordinary layer; the target's own output matrix over shared_head.norm of its output,
which is also the next step's h. The layer is of the target's own kind, so its rotation is the target's, and it has
norms of queries and keys if the target's layers have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.training.chain_head import ChainHead, DraftLayer
from headrace.training.head_layers import HeadShape, Norm, linear
from headrace.training.training_head import Example, TargetTables

__all__ = ["MTPHead"]


class _SharedHead(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden, shape.eps)


class MTPHead(ChainHead):
    method = "mtp"

    def __init__(
        self, shape: HeadShape, tables: TargetTables, drafts: int, qk_norm: bool, generator: torch.Generator
    ) -> None:
        super().__init__(shape, tables, drafts)
        self.points = ()
        self.enorm = Norm(shape.hidden, shape.eps)
        self.hnorm = Norm(shape.hidden, shape.eps)
        self.eh_proj = linear(2 * shape.hidden, shape.hidden, generator)
        self.block = DraftLayer(shape, shape.hidden, generator, qk_norm)
        self.shared_head = _SharedHead(shape)

    @property
    def layer(self) -> DraftLayer:
        return self.block

    @property
    def ids(self) -> None:
        return None

    def fused(self, example: Example) -> Tensor:
        return example.final

    def inputs(self, tokens: Tensor, before: Tensor, first: int) -> tuple[Tensor, Tensor]:
        embedded = self.tables.embedding[tokens]
        if first == 0:
            embedded = torch.cat([torch.zeros_like(embedded[:1]), embedded[1:]])
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(before)], -1))
        return self.block.input_layernorm(x), x

    def outputs(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.shared_head.norm(mixed)
        return self.tables.logits(hidden), hidden

    @torch.no_grad()
    def warm_start(self, layers: Sequence[Mapping[str, Tensor]]) -> None:
        """Start as the target's last layer over its final hidden states."""
        last = layers[-1]
        self.eh_proj.weight[:, self.shape.hidden :] += torch.eye(self.shape.hidden)
        for name, parameter in self.block.named_parameters():
            parameter.copy_(last[name])
        self.shared_head.norm.weight.copy_(last["norm.weight"])

    def tensors(self) -> dict[str, Tensor]:
        prefix = f"model.layers.{self.shape.layers}."
        return {prefix + name.removeprefix("block."): tensor.detach() for name, tensor in self.named_parameters()}

    def settings(self) -> dict[str, Any]:
        shape = self.shape
        return {
            "architectures": ["LlamaForCausalLMNextN"],
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_attention_heads": shape.q_heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "num_hidden_layers": shape.layers,
            "num_nextn_predict_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": shape.eps,
            "rope_theta": shape.rope.theta,
            "vocab_size": shape.vocab,
            "max_position_embeddings": shape.positions,
            "tie_word_embeddings": True,
        }
