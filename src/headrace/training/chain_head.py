"""Heads that draft one token after another with one layer, fed with their own output: training-time test.

Token i + 1 is known where a chain starts from position i, and its step j (from 0) drafts token i + 2 + j. The chains of
all positions of an answer are computed together. Step 0 has the target's features, and its keys and values are those of
the KV cache. Step j has the output of the step before at the same chain, stands at position i + j, and attends to the
cache up to i and to the chain's own entries after it (EAGLE-3, arXiv:2503.01840).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from headrace.training.head_layers import GatedMLP, HeadShape, Norm, SelfAttention, attend
from headrace.training.training_head import Draws, Example, TargetTables, TrainingHead, cross_entropy

__all__ = ["ChainHead", "DraftLayer"]

_DECAY = 0.8
"""The weight of each step beside the step before."""


class DraftLayer(nn.Module):
    """The parts of one Llama layer whose attention reads inputs of `width`."""

    def __init__(self, shape: HeadShape, width: int, generator: torch.Generator, qk_norm: bool = False) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = SelfAttention(shape, width, generator, qk_norm)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = GatedMLP(shape, generator)

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """The residual stream after the layer, from the attention's output before its last projection."""
        residual = residual + self.self_attn.o_proj(attended)
        mixed: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return mixed


class ChainHead(TrainingHead):
    """A head with one layer and a chain of `drafts` steps."""

    def __init__(self, shape: HeadShape, tables: TargetTables, drafts: int) -> None:
        super().__init__()
        self.shape, self.tables, self.drafts = shape, tables, drafts

    @property
    @abstractmethod
    def layer(self) -> DraftLayer: ...

    @property
    @abstractmethod
    def ids(self) -> Tensor | None:
        """int64 [Vd], ascending: the tokens that the head can draft; None: all."""

    @abstractmethod
    def fused(self, example: Example) -> Tensor:
        """[T, H]: what the first step takes as the output of a step before it."""

    @abstractmethod
    def inputs(self, tokens: Tensor, before: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """(the layer's attention inputs, its residual) for tokens [R] and outputs of the step before [R, H].

        `first`: the position of the first row; the others follow it.
        """

    @abstractmethod
    def outputs(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """(logits [R, Vd], what the next step takes) from the residual stream after the layer."""

    def chain(self, example: Example, drafts: int) -> list[Tensor]:
        """The logits of every step: those of step j are [R - j, Vd], for chains from position prompt - 1 on."""
        tokens, start, count = example.tokens, example.prompt - 1, len(example.tokens)
        x, residual = self.inputs(tokens[1:], self.fused(example)[:-1], 0)
        cache = self.layer.self_attn.entries(x, torch.arange(count - 1))
        x, residual = x[start:-1], residual[start:-1]
        before = residual
        own, found = list[tuple[Tensor, Tensor]](), list[Tensor]()
        for step in range(min(drafts, count - 2 - start)):
            rows = count - 2 - start - step
            positions = torch.arange(start, start + rows)
            if step:
                x, residual = self.inputs(tokens[start + 1 + step : -1], before[:rows], start + step)
                own.append(self.layer.self_attn.entries(x, positions + step))
            q = self.layer.self_attn.queries(x, positions + step)
            visible = torch.arange(count - 1) <= positions.unsqueeze(1)
            mixed = self.layer.finish(attend(q, cache, visible, _stacked(own, rows)), residual)
            logits, before = self.outputs(mixed)
            found.append(logits)
        return found

    def loss(self, example: Example, generator: torch.Generator) -> tuple[Tensor, float]:
        """Cross-entropy of each step against the target's distribution over the draft vocabulary. Rows whose sample is
        not in it do not count."""
        total, weights, start = torch.zeros(()), 0.0, example.prompt - 1
        with torch.no_grad():
            target = self.tables.logits(example.final[start + 1 : -1], self.ids)
        for step, logits in enumerate(self.chain(example, self.drafts)):
            samples = example.tokens[start + 2 + step :]
            known = torch.ones(len(samples)) if self.ids is None else torch.isin(samples, self.ids).float()
            total = total + _DECAY**step * (cross_entropy(logits, target[step:]) * known).sum()
            weights += _DECAY**step * float(known.sum())
        return total, weights

    def agreement(self, example: Example) -> Tensor:
        """Chains that are complete alone: the last places of an answer have fewer drafts."""
        start, found = example.prompt - 1, []
        rows = len(example.tokens) - 2 - start - (self.drafts - 1)
        if rows < 1:
            return torch.zeros(0, self.drafts, dtype=torch.bool)
        draws = Draws(example, self.ids, self.shape.vocab)
        for step, logits in enumerate(self.chain(example, self.drafts)):
            positions = torch.arange(start + 2 + step, start + 2 + step + rows)
            found.append(draws.pick(logits[:rows], positions) == example.tokens[positions])
        return torch.stack(found, 1)


def _stacked(own: list[tuple[Tensor, Tensor]], rows: int) -> tuple[Tensor, Tensor] | None:
    if not own:
        return None
    keys, values = (torch.stack([part[:rows] for part in parts], 1) for parts in zip(*own, strict=True))
    return keys, values
