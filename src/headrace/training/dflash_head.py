"""The DFlash head (arXiv:2602.06036): a block of tokens in one pass.

c_i = hidden_norm(fc(the target's hidden states after several layers at position i, side by side)). Every layer projects
keys and values of all c_i before the block. The block is [the last known token, mask, mask, …] at its positions; its
rows attend to the context and to each other, in both directions. Position s + j of a block from s predicts the token
there: of a draft vocabulary with an output matrix of the head's own (the layout of `speculators`), or of all tokens
with the target's (that of z-lab).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.training.head_layers import GatedMLP, HeadShape, Norm, SelfAttention, attend, linear
from headrace.training.training_head import (
    Draws,
    Example,
    TargetTables,
    TrainingHead,
    cross_entropy,
    vocabulary_tables,
)

__all__ = ["DFlashHead"]

_ANCHORS = 128
"""Blocks of an answer in each step of the training: they share the target's hidden states, which take longest."""
_MEASURED = 16
"""Blocks of an answer whose drafts are compared."""
_GAMMA = 4.0
"""The weight of draft j is e^(-(j - 1) / gamma): a draft counts only if all before it are accepted."""
_FEATURES = 5


class _BlockLayer(nn.Module):
    def __init__(self, shape: HeadShape, generator: torch.Generator) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = SelfAttention(shape, shape.hidden, generator, qk_norm=True)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = GatedMLP(shape, generator)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, anchors: Tensor, block: int) -> Tensor:
        """x [A B, H] at `positions`, A blocks; each sees the context [T, H] before its anchor."""
        attention = self.self_attn
        normed = self.input_layernorm(x)
        cache = attention.entries(context, torch.arange(len(context)))
        own = [
            part.view(-1, block, *part.shape[1:]).repeat_interleave(block, 0)
            for part in attention.entries(normed, positions)
        ]
        visible = torch.arange(len(context)) < anchors.repeat_interleave(block).unsqueeze(1)
        q = attention.queries(normed, positions)
        x = x + attention.o_proj(attend(q, cache, visible, (own[0], own[1])))
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class DFlashHead(TrainingHead):
    method = "dflash"

    def __init__(
        self,
        shape: HeadShape,
        tables: TargetTables,
        ids: Tensor | None,
        drafts: int,
        layers: int,
        mask: int,
        generator: torch.Generator,
    ) -> None:
        """`ids` int64 [Vd], ascending: the draft vocabulary; None: all tokens. `mask`: a token that no text has, whose
        embedding stands for an unknown token."""
        super().__init__()
        self._ids = ids
        self.shape, self.tables, self.drafts, self.mask = shape, tables, drafts, mask
        last = shape.layers - 1
        steps = (1 + at * (shape.layers - 4) // (_FEATURES - 1) for at in range(_FEATURES))
        self.layer_ids = tuple(sorted({min(max(step, 0), last) for step in steps}))
        self.points = tuple(number + 1 for number in self.layer_ids)
        self.fc = linear(len(self.points) * shape.hidden, shape.hidden, generator)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(_BlockLayer(shape, generator) for _ in range(layers))
        self.norm = Norm(shape.hidden, shape.eps)
        if ids is not None:
            self.lm_head = linear(shape.hidden, len(ids), generator)
            with torch.no_grad():
                self.lm_head.weight.copy_(tables.head[ids])

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, Vd] or [R, vocab], of rows that `blocks` gives."""
        found: Tensor = self.tables.logits(hidden) if self._ids is None else self.lm_head(hidden)
        return found

    def blocks(self, example: Example, anchors: Tensor) -> Tensor:
        """[A, drafts, H]: the normalized output of the blocks from positions `anchors` [A], of the masked rows."""
        block = self.drafts + 1
        context = self.hidden_norm(self.fc(example.features))
        positions = (anchors.unsqueeze(1) + torch.arange(block)).flatten()
        tokens = torch.full((len(anchors), block), self.mask)
        tokens[:, 0] = example.tokens[anchors]
        x = self.tables.embedding[tokens.flatten()]
        for layer in self.layers:
            x = layer(x, context, positions, anchors, block)
        hidden: Tensor = self.norm(x)
        return hidden.view(len(anchors), block, -1)[:, 1:]

    def loss(self, example: Example, generator: torch.Generator) -> tuple[Tensor, float]:
        """Cross-entropy of every masked row of random blocks against the target's distribution at its position, over
        the draft vocabulary. Rows whose sample is not in it do not count."""
        places = self._places(example)
        if not places:
            return torch.zeros(()), 0.0
        order = torch.randperm(len(places), generator=generator)[:_ANCHORS]
        anchors = torch.arange(places.start, places.stop)[order]
        rows = (anchors.unsqueeze(1) + torch.arange(self.drafts)).flatten()
        with torch.no_grad():
            first = places.start
            target = self.tables.logits(example.final[first:-1], self._ids)[rows - first]
        samples = example.tokens[rows + 1]
        known = torch.ones(len(samples)) if self._ids is None else torch.isin(samples, self._ids).float()
        losses = cross_entropy(self.logits(self.blocks(example, anchors).flatten(0, 1)), target)
        weights = torch.exp(-torch.arange(self.drafts) / _GAMMA).repeat(len(anchors)) * known
        return (losses * weights).sum(), float(weights.sum())

    def agreement(self, example: Example) -> Tensor:
        places = self._places(example)
        if not places:
            return torch.zeros(0, self.drafts, dtype=torch.bool)
        anchors = torch.arange(places.start, places.stop, max(1, math.ceil(len(places) / _MEASURED)))
        positions = (anchors.unsqueeze(1) + 1 + torch.arange(self.drafts)).flatten()
        logits = self.logits(self.blocks(example, anchors).flatten(0, 1))
        found = Draws(example, self._ids, self.shape.vocab).pick(logits, positions) == example.tokens[positions]
        return found.view(-1, self.drafts)

    def _places(self, example: Example) -> range:
        """The tokens of the answer that have a complete block after them."""
        return range(example.prompt, len(example.tokens) - self.drafts)

    @torch.no_grad()
    def warm_start(self, layers: Sequence[Mapping[str, Tensor]]) -> None:
        """Start as the target's last layers over the latest of the features; the others keep their small random
        values. Where the target has no norms of queries and keys, theirs give the size that these have on average."""
        for own, known in zip(list(self.layers)[::-1], layers[::-1], strict=False):
            for name, parameter in own.named_parameters():
                if name in known:
                    parameter.copy_(known[name])
            for kind in "qk":
                if f"self_attn.{kind}_norm.weight" not in known:
                    rows = known[f"self_attn.{kind}_proj.weight"] * known["input_layernorm.weight"]
                    own.get_parameter(f"self_attn.{kind}_norm.weight").fill_(rows.pow(2).sum(1).mean().sqrt())
        hidden = self.shape.hidden
        self.fc.weight[:, -hidden:] += torch.eye(hidden)
        self.hidden_norm.weight.copy_(layers[-1]["input_layernorm.weight"])
        self.norm.weight.copy_(layers[-1]["norm.weight"])

    def tensors(self) -> dict[str, Tensor]:
        own = {name: tensor.detach() for name, tensor in self.named_parameters()}
        return own if self._ids is None else {**own, **vocabulary_tables(self._ids, self.shape.vocab)}

    def settings(self) -> dict[str, Any]:
        shape, block = self.shape, self.drafts + 1
        layers = {
            "model_type": "qwen3",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_attention_heads": shape.q_heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "num_hidden_layers": len(self.layers),
            "layer_types": ["full_attention"] * len(self.layers),
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": shape.eps,
            "rope_theta": shape.rope.theta,
            "vocab_size": shape.vocab,
            "max_position_embeddings": shape.positions,
        }
        if self._ids is None:
            return {
                "architectures": ["DFlashDraftModel"],
                **layers,
                "block_size": block,
                "num_target_layers": shape.layers,
                "tie_word_embeddings": True,
                "dflash_config": {"mask_token_id": self.mask, "target_layer_ids": list(self.layer_ids)},
            }
        return {
            "architectures": ["DFlashSpeculator"],
            "speculators_model_type": "dflash",
            "transformer_layer_config": layers,
            "block_size": block,
            "draft_vocab_size": len(self._ids),
            "target_hidden_size": shape.hidden,
            "mask_token_id": self.mask,
            "aux_hidden_state_layer_ids": list(self.points),
            "sample_from_anchor": False,
            "sliding_window_non_causal": True,
            "tie_word_embeddings": False,
        }
