"""Drafts for tests: right ones, wrong ones, and any mixture, at steps drawn at random."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from headrace.core.drafts import DraftRow, StepSize
from headrace.types import Request

__all__ = ["SeededDrafts"]


class SeededDrafts:
    """A `core.drafts.DraftSource` that knows the answers, by request id. `right`: the probability that a draft is
    right; `eager`: that a sequence is held after a token."""

    def __init__(self, answers: Mapping[str, Sequence[int]], right: float, eager: float, seed: int, vocab: int) -> None:
        self._answers, self._right, self._eager, self._vocab = answers, right, eager, vocab
        self._random = random.Random(seed)
        self._known: dict[str, int] = {}
        self._held: dict[str, bool] = {}
        self._steps: dict[int, list[int]] = {}
        self.drafted = self.accepted = 0

    def begin(self, request: Request) -> bool:
        self._known[request.id], self._held[request.id] = 0, False
        return True

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        self._known[sequence] += len(tokens)
        self._held[sequence] = self._held[sequence] or self._random.random() < self._eager

    def end(self, sequence: str, keep: bool) -> None:
        del self._known[sequence], self._held[sequence]

    def held(self, sequence: str) -> bool:
        return self._held[sequence]

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        found = [self._drafts(row) for row in rows]
        self._steps[step] = [len(drafts) for drafts in found]
        return found

    def verified(self, step: int, accepted: Sequence[int | None]) -> None:
        for drafted, right in zip(self._steps.pop(step, []), accepted, strict=True):
            if right is not None:
                self.drafted += drafted
                self.accepted += right

    def _drafts(self, row: DraftRow) -> list[int]:
        at = self._known[row.sequence]
        answer = self._answers[row.sequence][at : at + self._random.randint(0, min(row.most, 9))]
        if not answer:
            self._held[row.sequence] = self._random.random() < self._eager
        draw = self._random.random
        return [token if draw() < self._right else (token + 1) % self._vocab for token in answer]
