"""Small heads, and answers of a target that is easy to guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headrace.models.config import Rope
from headrace.training.answers import Answer
from headrace.training.dflash_head import DFlashHead
from headrace.training.eagle3_head import Eagle3Head
from headrace.training.head_layers import HeadShape
from headrace.training.mtp_head import MTPHead
from headrace.training.training_head import Example, TargetTables, TrainingHead

SHAPE = HeadShape(
    hidden=16,
    intermediate=24,
    q_heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=40,
    layers=6,
    eps=1e-5,
    rope=Rope(1e4, 8),
    positions=64,
)
MASK = 39
IDS = torch.arange(0, 40, 2)
METHODS = ("eagle3", "mtp", "dflash", "dflash-all")
"""dflash-all: with all tokens in place of a draft vocabulary."""


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tables(vocab: int = SHAPE.vocab) -> TargetTables:
    return TargetTables(normal(vocab, SHAPE.hidden, seed=1), normal(vocab, SHAPE.hidden, seed=2), None)


def make(method: str, drafts: int = 3, ids: torch.Tensor = IDS, seed: int = 3, spread: float | None = None) -> Any:
    """A head with random weights; with `spread`, such that every part counts in the result."""
    generator = torch.Generator().manual_seed(seed)
    head: TrainingHead
    if method == "eagle3":
        head = Eagle3Head(SHAPE, tables(), ids, drafts, generator)
    elif method == "mtp":
        head = MTPHead(SHAPE, tables(), drafts, False, generator)
    else:
        head = DFlashHead(SHAPE, tables(), ids if method == "dflash" else None, drafts, 2, MASK, generator)
    if spread is not None:
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return head


def example(head: TrainingHead, count: int = 14, prompt: int = 4, temperature: float = 0.0) -> Example:
    tokens = torch.randint(SHAPE.vocab - 1, (count,), generator=torch.Generator().manual_seed(count))
    features = normal(count, len(head.points) * SHAPE.hidden, seed=4)
    return Example(tokens, prompt, features, normal(count, SHAPE.hidden, seed=5), temperature, 11)


class Counting:
    """A target that counts: after token t comes t + 2 modulo 38. Its last hidden state is the next token's row of the
    output matrix, so that its distribution is sharp there; its features are embeddings of its tokens."""

    def __init__(self, features: int) -> None:
        self._features, self._tables = features, tables()

    def read(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.tensor(tokens)
        embedded = self._tables.embedding[ids]
        return embedded.repeat(1, self._features), 2.0 * self._tables.head[(ids + 2) % 38]

    @staticmethod
    def answers(count: int = 32, length: int = 16) -> list[Answer]:
        made = []
        for number in range(count):
            tokens = [(2 * (number % 19) + 2 * at) % 38 for at in range(length)]
            made.append(Answer(tokens[:4], tokens[4:], 0.0, number, number % 8 == 7))
        return made
