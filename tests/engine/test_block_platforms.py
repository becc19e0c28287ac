"""Block drafters on devices of every kind: by reference, with static shapes, with captured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from block_draft_checkpoints import save
from draft_engine import speculate_always
from test_head_platforms import answers, device  # noqa: F401

from headrace.engine.placed_blocks import PlacedBlocks
from headrace.platforms.cpu.device import CpuDevice


@pytest.mark.parametrize("layout", ["speculators", "zlab-mask-vector"])
def test_answers_are_those_without_drafts(
    layout: str,
    device: Any,  # noqa: F811
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a vocabulary of its own, and with a mask that is no token."""
    speculate_always(monkeypatch, 2)
    plain, _ = answers(device, tiny_llama, None)
    found, engine = answers(device, tiny_llama, f"dflash:{save(layout, tmp_path / 'drafter')}")
    assert found == plain
    assert engine.blocks is not None
    assert engine.blocks.failures == 0
    assert isinstance(engine.blocks, PlacedBlocks) != isinstance(device, CpuDevice)
    (totals,) = engine.core.stats().speculation.methods
    assert totals.method == "dflash"
    assert sum(totals.drafted) > 10
