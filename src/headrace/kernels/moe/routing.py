"""How a router's scores become experts and their shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Routing"]


@dataclass(frozen=True, slots=True)
class Routing:
    """The same for every token of a layer.

    A token's scores are softmax or sigmoid of the router's output. The `top_k` experts with the largest scores are taken,
    equal ones by the lower id; a correction bias is added for this choice alone (arXiv:2408.15664). With `groups` > 1 the
    experts are equal runs, and only those of the `top_groups` best runs can be taken, a run being worth the sum of its
    `group_best` largest biased scores (arXiv:2412.19437). Shares are the chosen scores, summing to 1 where `renormalize` says
    so, times `scale`.
    """

    top_k: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2

    def fits(self, experts: int) -> bool:
        """Whether so many experts can be chosen among."""
        if self.groups < 1 or experts % self.groups or not 1 <= self.top_groups <= self.groups:
            return False
        run = experts // self.groups
        return self.group_best >= 1 and 1 <= self.top_k <= self.top_groups * run
