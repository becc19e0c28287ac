"""Drafts for tests: right ones, wrong ones, and any mixture, at steps drawn at random."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from headrace.core.drafts import DraftRow, StepSize
from headrace.types import Request

__all__ = ["PlacedDrafts", "SeededDrafts"]


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

    def places(self, request: Request) -> bool:
        return False

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        self._known[sequence] += len(tokens)
        self._held[sequence] = self._held[sequence] or self._random.random() < self._eager

    def pause(self, sequence: str, keep: bool) -> None:
        pass

    def end(self, sequence: str, keep: bool) -> None:
        del self._known[sequence], self._held[sequence]

    def held(self, sequence: str) -> bool:
        return self._held[sequence]

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        found = [self._drafts(row) for row in rows]
        self._steps[step] = [len(drafts) for drafts in found]
        return found

    def rest(self) -> int:
        return self._random.randint(0, 3)

    def verified(self, step: int, accepted: Sequence[int | None], made: Sequence[int]) -> None:
        assert self._steps.pop(step, []) == list(made)
        for drafted, right in zip(made, accepted, strict=True):
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


class PlacedDrafts:
    """A `core.drafts.DraftSource` for devices that draft by themselves: asks for any number of drafts, up to `most`, at
    steps drawn at random. `eager`: as in `SeededDrafts`."""

    def __init__(self, eager: float, seed: int, most: int = 8) -> None:
        self._eager, self._most = eager, most
        self._random = random.Random(seed)
        self._held: dict[str, bool] = {}
        self.drafted = self.accepted = self.ahead = 0
        """`ahead`: rows that were planned while it was not known how many tokens come before them."""

    def begin(self, request: Request) -> bool:
        self._held[request.id] = False
        return True

    def places(self, request: Request) -> bool:
        return True

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        self._held[sequence] = self._held[sequence] or self._random.random() < self._eager

    def pause(self, sequence: str, keep: bool) -> None:
        pass

    def end(self, sequence: str, keep: bool) -> None:
        del self._held[sequence]

    def held(self, sequence: str) -> bool:
        return self._held[sequence]

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        found = [[0] * self._random.randint(0, max(0, min(row.most, self._most))) for row in rows]
        for row, drafts in zip(rows, found, strict=True):
            self.ahead += row.ahead is not None and row.ahead > 1
            if not drafts:
                self._held[row.sequence] = self._random.random() < self._eager
        return found

    def rest(self) -> int:
        return self._random.randint(0, 3)

    def verified(self, step: int, accepted: Sequence[int | None], made: Sequence[int]) -> None:
        for drafted, right in zip(made, accepted, strict=True):
            if right is not None:
                self.drafted += drafted
                self.accepted += right
