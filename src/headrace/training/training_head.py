"""What the trainer knows of a head: its loss and its drafts for one answer, and what of it is published."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.kernels.logits.reference import soft_capped
from headrace.kernels.sample.philox import gumbel
from headrace.kernels.sample.reference import GREEDY_BELOW

__all__ = ["Draws", "Example", "TargetTables", "TrainingHead", "cross_entropy", "vocabulary_tables"]


@dataclass(frozen=True, slots=True)
class Example:
    """An answer with what the target computes for it. Position i holds token i, and `final[i]` gives the distribution
    of token i + 1."""

    tokens: Tensor
    """int64 [T]: the prompt, then the answer, which are the target's own samples."""
    prompt: int
    """The tokens of the prompt."""
    features: Tensor
    """float32 [T, m H]: the hidden states of the head's capture points, side by side."""
    final: Tensor
    """float32 [T, H]: after the last norm."""
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class TargetTables:
    """Tables of the target that heads read and never change, float32 [vocab, H]."""

    embedding: Tensor
    """With the family's scale."""
    head: Tensor
    soft_cap: float | None

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """[T, vocab], or of the tokens `rows` alone."""
        return soft_capped(hidden @ (self.head if rows is None else self.head[rows]).T, self.soft_cap)


class TrainingHead(nn.Module, ABC):
    """A head. Its parameters have the names that are published, up to the prefix of `tensors`."""

    method: str
    points: tuple[int, ...]
    """The capture points of its features: 0 is the embedding, n the residual stream after n layers."""
    drafts: int
    """Tokens of a draft."""

    @abstractmethod
    def loss(self, example: Example, generator: torch.Generator) -> tuple[Tensor, float]:
        """(the sum of the weighted losses, the sum of the weights)."""

    @abstractmethod
    def agreement(self, example: Example) -> Tensor:
        """bool [R, drafts]: whether each draft from R places of the answer equals the target's own sample, given that
        all drafts before it do."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What model.safetensors holds, by the published names."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What config.json holds."""

    @abstractmethod
    def warm_start(self, layers: Sequence[Mapping[str, Tensor]]) -> None:
        """Start from the weights of the target's last layers, in their order, by their names in a checkpoint."""


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """[R]: of the draft's distribution against the target's, both given as logits [R, V]; in float32."""
    return -(target.float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)


def vocabulary_tables(ids: Tensor, vocab: int) -> dict[str, Tensor]:
    """The published tables of a draft vocabulary `ids` [Vd]: `d2t` int64 [Vd], what is added to a draft's number, and
    `t2d` bool [vocab], whether a token is in it."""
    known = torch.zeros(vocab, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


class Draws:
    """Chooses tokens as a drafter does: greedily, or by the draws that the target has at their positions."""

    def __init__(self, example: Example, ids: Tensor | None, vocab: int) -> None:
        """For the positions of the answer. `ids` [Vd]: the token of each column of logits; None: the column itself."""
        self._ids, self._first = ids, example.prompt
        self._temperature = example.temperature if example.temperature >= GREEDY_BELOW else None
        if self._temperature is not None:
            positions = torch.arange(example.prompt, len(example.tokens))
            noise = gumbel(torch.full_like(positions, example.seed), positions, vocab)
            self._noise = noise if ids is None else noise[:, ids]

    def pick(self, logits: Tensor, positions: Tensor) -> Tensor:
        """int64 [R]: the tokens for `positions` [R], from logits [R, Vd]."""
        if self._temperature is not None:
            logits = logits / self._temperature + self._noise[positions - self._first]
        choice = logits.argmax(-1)
        return choice if self._ids is None else self._ids[choice]
