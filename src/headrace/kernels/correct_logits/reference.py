"""Reference of `correct_logits`; compilers of complete steps use it too, so nothing here depends on a value."""

from __future__ import annotations

import torch

__all__ = ["correct_logits"]


def correct_logits(logits: torch.Tensor, corrections: torch.Tensor, at: int, drafts: int) -> torch.Tensor:
    """float32 [N, V] of logits [N drafts, V] and corrections [N, V]: the rows of each block's draft `at`, corrected."""
    return logits[at::drafts].float() + corrections.float()
