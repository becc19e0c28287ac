"""Block drafters guess what a plain reading of their definition guesses, in every published layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from block_draft_checkpoints import CONFIGS, save
from block_draft_harness import DraftHarness, features, reading

LENGTHS = (1, 5, 16, 37)


@pytest.mark.parametrize("layout", CONFIGS)
def test_greedy_drafts(layout: str, tmp_path: Path) -> None:
    harness = DraftHarness(save(layout, tmp_path / layout))
    plain = reading(layout, harness)
    for count in LENGTHS:
        text = features(count, count)
        harness.inject(text, chunk=7)
        found = harness.draft(count + 9, count)
        tokens, odds = plain.draft(text, count + 9)
        assert found.tokens == [tokens]
        if odds:
            assert found.survival is not None
            expected = [1.0]
            for one in odds:
                expected.append(expected[-1] * one)
            assert found.survival[0] == pytest.approx(expected[1:], rel=1e-4)
        else:
            assert found.survival is None
