"""A block drafter on a device, without an engine: the features of a text go in, drafts come out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from block_draft_checkpoints import CONFIGS, FEATURES, HIDDEN, TARGET_LAYERS, VOCAB, tensors
from block_draft_reading import Reading
from model_harness import one_sequence, reference_ops

from headrace.checkpoints.block_drafts import open_block_draft
from headrace.engine.block_batch import BlockPlace, block_arrays, block_batch
from headrace.engine.block_head import block_head
from headrace.kernels import paged
from headrace.kernels.inputs import sample_inputs_of
from headrace.kernels.registry import pack
from headrace.kernels.weight import Weight
from headrace.models.block_draft_weights import read_weights
from headrace.models.block_drafter import BlockDrafter, ContextTap
from headrace.models.config import DecoderConfig, LayerConfig, Rope
from headrace.models.decoder import DecoderWeights
from headrace.quant.weights import dense
from headrace.speculation.block_choice import BlockChoice, BlockRow, ChosenBlocks
from headrace.types import KVLayout

BLOCK = 16
CHOICES = 128
TARGET = DecoderConfig(
    "llama", HIDDEN, 4, 2, 16, 96, VOCAB, (LayerConfig(),) * TARGET_LAYERS, (Rope(10000.0, 16),), 256, 1e-6
)


class DraftHarness:
    """A drafter with random tables of a target. `device`: None for the reference operators."""

    def __init__(self, directory: Path, device: Any = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.embedding, self.head = (torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3 for _ in range(2))
        self.ops = reference_ops() if device is None else _bound(device)
        matrices = [dense(table, name) for table, name in ((self.embedding, "e"), (self.head, "h"))]
        for matrix, operator in zip(matrices, ("embedding", "logits"), strict=True):
            pack(self.ops, operator, matrix)
        draft = open_block_draft(directory, "dflash" if "dspark" not in directory.name else "dspark", TARGET_LAYERS)
        target = DecoderWeights(matrices[0], [], torch.ones(HIDDEN), matrices[1])
        weights = read_weights(
            draft.config, draft.source, "draft", target, lambda role, own: False, self._finish, lambda tensor: tensor
        )
        self.config = draft.config
        self.drafter = BlockDrafter(draft.config, self.ops, weights, 0, 256, lambda tensor: tensor)
        self.choice = BlockChoice(block_head(draft.config, weights.tables))
        self.side = weights.tables.side
        layout = KVLayout(draft.config.kv_layers, BLOCK, "float32")
        self.kv = paged.alloc(layout, 40, torch.device("cpu")) if device is None else device.alloc_kv(layout, 40)

    def inject(self, features: list[torch.Tensor], chunk: int = 1000, table: Any = None) -> None:
        """The entries of a text of so many tokens, in chunks. `table`: its blocks, which follow each other."""
        count = len(features[0])
        for start in range(0, count, chunk):
            batch = one_sequence([0] * count, start, start + chunk, BLOCK)
            if table is not None:
                batch = replace(batch, slot_mapping=batch.slot_mapping + (int(table[0]) - 1) * BLOCK)
            tap, total = ContextTap(self.drafter), None
            for point in range(TARGET_LAYERS + 1):
                hidden = features[self.config.features.index(point)] if point in self.config.features else torch.ones(1)
                total = tap.add(total, point, hidden[start : start + chunk])
            tap.keep(total, batch, self.kv)

    def draft(self, anchor: int, position: int, row: BlockRow | None = None) -> ChosenBlocks:
        place = BlockPlace(anchor, position, np.arange(1, 40, dtype=np.int32))
        arrays = block_arrays(self.config, [place], BLOCK)
        inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
        inputs["history"] = torch.zeros(1, 1, dtype=torch.int32)
        found = self.drafter.draft(block_batch(inputs), sample_inputs_of(inputs), self.kv, self.config.choices)
        return self.choose(arrays, found, [row or BlockRow(anchor, position + 1)])

    def choose(self, arrays: dict[str, Any], found: Any, rows: list[BlockRow]) -> ChosenBlocks:
        shape = (len(rows), self.config.drafts, -1)
        side = {}
        if "side" in found:
            parts = np.split(found["side"].numpy()[arrays["rows"]], np.cumsum([n for _, n in self.side])[:-1], axis=1)
            side = {name: part.reshape(shape) for (name, _), part in zip(self.side, parts, strict=True)}
        ids, scores = found["ids"].numpy().astype(np.int64), found["logprobs"].numpy()
        return self.choice.choose(rows, ids.reshape(shape), scores.reshape(shape), side)

    def _finish(self, weight: Weight, operators: tuple[str, ...]) -> Weight:
        for operator in operators:
            pack(self.ops, operator, weight)
        return weight


def _bound(device: Any) -> Any:
    from headrace.kernels.registry import bind

    return bind(device)


def reading(layout: str, harness: DraftHarness, candidates: int = CHOICES) -> Reading:
    return Reading(CONFIGS[layout], tensors(layout), harness.embedding, harness.head, candidates)


def features(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, HIDDEN, generator=generator) for _ in FEATURES]
