"""Block drafters on devices of every kind: by reference, with static shapes, with captured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from block_draft_checkpoints import save, save_chain
from draft_engine import speculate_always
from test_head_platforms import answers, device, plain  # noqa: F401

from headrace.engine.placed_blocks import PlacedBlocks
from headrace.platforms.cpu.device import CpuDevice


@pytest.mark.parametrize("layout", ["speculators", "zlab-mask-vector", "dspark", "dspark-speculators"])
def test_answers_are_those_without_drafts(
    layout: str,
    device: Any,  # noqa: F811
    tiny_llama: Path,
    plain: dict[str, list[dict[str, list[int]]]],  # noqa: F811
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a vocabulary of its own, with a mask that is no token, with tokens that depend on the one before them."""
    method = "dspark" if layout.startswith("dspark") else "dflash"
    speculate_always(monkeypatch, 2)
    kind = request.node.callspec.params["device"]
    if kind not in plain:
        plain[kind], _ = answers(device, tiny_llama, None)
    found, engine = answers(device, tiny_llama, f"{method}:{save(layout, tmp_path / 'drafter')}")
    assert found == plain[kind]
    assert engine.blocks is not None
    assert engine.blocks.failures == 0
    assert isinstance(engine.blocks, PlacedBlocks) != isinstance(device, CpuDevice)
    (totals,) = engine.core.stats().speculation.methods
    assert totals.method == method
    assert sum(totals.drafted) > 10


def test_a_chain_that_knows_the_target_is_always_right(
    device: Any,  # noqa: F811
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its draws are the target's, and each follows the one before it."""
    speculate_always(monkeypatch, 2)
    target, drafter = save_chain(tmp_path, tiny_llama)
    wanted, _ = answers(device, target, None)
    found, engine = answers(device, target, f"dspark:{drafter}")
    assert found == wanted
    (totals,) = engine.core.stats().speculation.methods
    assert sum(totals.drafted) > 10
    if isinstance(engine.blocks, PlacedBlocks):
        assert totals.accepted == totals.drafted
