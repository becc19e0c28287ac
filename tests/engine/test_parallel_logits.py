"""Two ranks give what one gives: every family, every container of weights, on recorded steps and shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from parallel_harness import logits, nmse

from headrace.platforms.cpu.native import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
DATA = Path(__file__).parent.parent / "data" / "checkpoints"
IDS = [5, 17, 80, 33, 2, 9, 64, 71, 12, 12, 90, 41]
FAMILIES = (
    "llama", "llama-tied-bias", "llama-wide-heads", "mistral-window", "qwen2", "qwen3-bias-tied", "gemma3", "gemma3-cap",
)  # fmt: skip


@pytest.mark.parametrize("variant", FAMILIES)
def test_every_family_gives_the_same_logits_and_tokens(variant: str, tmp_path: Path) -> None:
    tiny_models.save(variant, tmp_path / "model", dtype=torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=6)
    first, second = logits(tmp_path / "model", IDS, 2, tmp_path / "two", steps=6)
    assert torch.equal(first, second), "the ranks' sums have the same bits"
    assert nmse(first, whole) < 1e-10
    assert torch.equal(first.argmax(-1), whole.argmax(-1))
