"""The rules by which a router's scores choose experts and their shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Routing", "expert_range"]


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of a layer, the same for all tokens.

    A token's scores are the softmax or sigmoid of the router's output. The `top_k` experts with the largest scores are
    chosen, ties by the lower id; a correction bias is added only for this choice (arXiv:2408.15664). With `groups` > 1,
    the experts form equal groups, and only experts of the `top_groups` best groups can be chosen; a group's score is
    the sum of its `group_best` largest biased scores (arXiv:2412.19437). The shares are the scores of the chosen
    experts, divided by their sum if `renormalize` is set, times `scale`.
    """

    top_k: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2

    def fits(self, experts: int) -> bool:
        """Whether this routing is possible with that number of experts."""
        if self.groups < 1 or experts % self.groups or not 1 <= self.top_groups <= self.groups:
            return False
        run = experts // self.groups
        return self.group_best >= 1 and 1 <= self.top_k <= self.top_groups * run


def expert_range(experts: int, rank: int, ranks: int) -> tuple[int, int]:
    """[begin, end) of the experts that a rank holds: as evenly as possible, in order.

    Expert e is in the range of rank ((e + 1) ranks - 1) div experts, which the forms of `mix_experts` compute.
    """
    return experts * rank // ranks, experts * (rank + 1) // ranks
