"""Block drafters guess what a plain reading of their definition guesses, in every published layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_draft_checkpoints import CONFIGS, save
from block_draft_harness import BLOCK, DraftHarness, features, reading

from headrace.core.drafts import DraftRow
from headrace.engine.block_model import BlockDraftModel
from headrace.engine.block_rounds import BlockSizes
from headrace.platforms.cpu.device import CpuDevice
from headrace.types import Capabilities, Request, SamplingParams

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


class PaddedDevice(CpuDevice):
    """Its steps are compiled for fixed sizes, as far as the engine sees."""

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), static_shapes=True)


class Cache:
    """A `StepCache` of a harness."""

    def __init__(self, kv: Any) -> None:
        self.kv = kv

    def read(self, executable: Any, inputs: Any, with_history: bool = False) -> Any:
        self.kv, outputs = executable(self.kv, inputs)
        return outputs


@pytest.mark.parametrize("layout", ["zlab", "dflash2", "dspark-rnn"])
def test_rounds_of_several_texts_on_padded_inputs(layout: str, tmp_path: Path) -> None:
    harness, device = DraftHarness(save(layout, tmp_path / layout)), PaddedDevice(threads=1)
    sizes = BlockSizes(BLOCK, 30, 3, 250)
    model = BlockDraftModel("d", device, Cache(harness.kv), harness.drafter, harness.choice, sizes)
    model.warm_up()
    plain, texts = reading(layout, harness), [features(count, count) for count in (21, 5, 40)]
    blocks = [np.arange(1, 3, dtype=np.int32), np.arange(3, 4, dtype=np.int32), np.arange(4, 7, dtype=np.int32)]
    for at, (text, table) in enumerate(zip(texts, blocks, strict=True)):
        harness.inject(text, table=table)
        tokens = (*[9] * len(text[0]), 50 + at)
        model.begin(Request(f"r{at}", tokens, SamplingParams(temperature=0.0)))
        model.place(DraftRow(f"r{at}", 9, len(tokens), at, table))
    for names in (["r0"], ["r2", "r0", "r1"], ["r1", "r2"]):
        made = model.draft([(name, 3) for name in names])
        for name, tokens in zip(names, made.tokens, strict=True):
            assert tokens == plain.draft(texts[int(name[1])], 50 + int(name[1]))[0]
    assert model.failures == 0
    assert model.room("r0") == harness.config.drafts
    for at in range(3):
        model.end(f"r{at}", keep=True)
    device.close()
