"""How many drafts of a head the target would accept."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

__all__ = ["HeldOutAcceptance"]


@dataclass(slots=True)
class HeldOutAcceptance:
    """Counts over all places of some answers."""

    drafts: int
    rows: dict[str, int] = field(default_factory=dict)
    """Places, by `greedy` or `sampled`."""
    accepted: dict[str, list[int]] = field(default_factory=dict)
    """Places whose drafts up to each position are all accepted."""

    def add(self, agreement: torch.Tensor, temperature: float) -> None:
        """`agreement` bool [R, drafts]: see `TrainingHead.agreement`."""
        kind = "sampled" if temperature else "greedy"
        counts = agreement.long().cumprod(1).sum(0).tolist()
        before = self.accepted.get(kind, [0] * self.drafts)
        self.rows[kind] = self.rows.get(kind, 0) + len(agreement)
        self.accepted[kind] = [one + more for one, more in zip(before, counts, strict=True)]

    def rates(self, kind: str | None = None) -> list[float]:
        """The share of places by position: all drafts up to it are accepted. None: of both kinds."""
        kinds = [kind] if kind else list(self.rows)
        rows = sum(self.rows.get(one, 0) for one in kinds)
        sums = [sum(self.accepted[one][at] for one in kinds if one in self.accepted) for at in range(self.drafts)]
        return [count / max(1, rows) for count in sums]

    def line(self) -> str:
        """One line for a person."""
        parts = [f"{' '.join(f'{rate:.3f}' for rate in self.rates())}, {1 + sum(self.rates()):.2f} tokens a step"]
        parts += [f"{kind} {' '.join(f'{rate:.3f}' for rate in self.rates(kind))}" for kind in sorted(self.rows)]
        return "; ".join(parts)
