"""Loads a block drafter beside the target: `--speculate dflash:CHECKPOINT` and `dspark:CHECKPOINT`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.checkpoints.block_drafts import BlockDraftCheckpoint, open_block_draft
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.drafter_weights import DraftWeights, head_bytes
from headrace.config import CacheConfig, Config
from headrace.engine.block_head import block_head
from headrace.engine.block_model import BlockDraftModel
from headrace.engine.block_rounds import BlockRounds, BlockSizes, blocks_together, spare_blocks
from headrace.engine.draft_depth import drafts_of
from headrace.engine.draft_weights import draft_weights
from headrace.engine.placed_blocks import PlacedBlocks
from headrace.engine.ranks.rank_messages import Sizes
from headrace.engine.runner import Runner
from headrace.kernels.ops import Ops
from headrace.models.assemble import Finish
from headrace.models.block_draft_config import BLOCK_METHODS, Method, check_block_draft
from headrace.models.block_draft_weights import BlockDraftWeights
from headrace.models.block_drafter import BlockDrafter, ContextTap
from headrace.models.decoder import DecoderWeights
from headrace.platforms.interface import Device
from headrace.resolution import ModelFacts, Resolved, resolve
from headrace.speculation.block_choice import BlockChoice
from headrace.types import KVLayout, LayerKV

__all__ = ["BlockDraft", "find_block_draft"]

_log = logging.getLogger(__name__)
_COPIED = ("self_attn.k_proj", "self_attn.v_proj")
"""Matrices of which the text's keys and values have a copy (`BlockLayer.context`)."""


@dataclass(slots=True)
class BlockDraft:
    """A block drafter that fits the target: a `rank_loading.TapSource`, and afterwards the model that drafts."""

    checkpoint: BlockDraftCheckpoint
    target: Checkpoint
    layout: KVLayout
    """Of its own layers of the cache."""
    precision: DraftWeights
    draws: bool = False
    """The device draws the tokens."""
    max_model_len: int = 0
    """The engine's, which must be set before `tap`."""
    _weights: BlockDraftWeights | None = field(default=None, init=False)
    _ops: Ops | None = field(default=None, init=False)
    _place: Callable[[torch.Tensor], Any] | None = field(default=None, init=False)
    _drafter: BlockDrafter | None = field(default=None, init=False)

    @property
    def method(self) -> str:
        return self.checkpoint.config.method

    @property
    def path(self) -> str:
        return str(self.checkpoint.path)

    @property
    def layers(self) -> tuple[LayerKV, ...]:
        return self.checkpoint.config.kv_layers

    @property
    def total_bytes(self) -> int:
        """Of the weights in its files, as they lie in memory."""
        return head_bytes(self.checkpoint.path, self.checkpoint.source, self.precision, _COPIED)

    def spare(self, sizes: Sizes) -> int:
        config = self.checkpoint.config
        return blocks_together(config.drafts, sizes.max_num_seqs) * spare_blocks(config.rows, sizes.block_size)

    def load(
        self, device: Device, ops: Ops, weights: DecoderWeights, finish: Finish, place: Callable[[torch.Tensor], Any]
    ) -> None:
        own = weights if weights.first_token is None else None
        mine = self.precision.of_head(finish)
        self._weights = self.checkpoint.weights(own, self.target, finish, place, mine, self.draws)
        self._ops, self._place = ops, place

    def tap(self, layer: int) -> ContextTap:
        assert self._ops is not None
        assert self._weights is not None
        assert self._place is not None
        self._drafter = BlockDrafter(
            self.checkpoint.config, self._ops, self._weights, layer, self.max_model_len, self._place
        )
        return ContextTap(self._drafter)

    def model(
        self, device: Device, runner: Runner, target: Resolved, busy_seconds: Callable[[], float] | None
    ) -> BlockRounds:
        """The model that drafts, after `tap`, warmed up. Raises what the device raises."""
        assert self._drafter is not None
        config, weights, goal = self.checkpoint.config, self._drafter.weights, self.target.decoder_config
        sizes = BlockSizes(target.kv_layout.block_size, target.num_blocks, target.max_num_seqs, target.max_model_len)
        path, head = str(self.checkpoint.path), block_head(config, weights.tables)
        found: BlockDraftModel | PlacedBlocks
        if self.draws:
            found = PlacedBlocks(path, device, runner, self._drafter, sizes, head.columns(goal.vocab), busy_seconds)
        else:
            found = BlockDraftModel(path, device, runner, self._drafter, BlockChoice(head), sizes, busy_seconds)
        found.warm_up()
        runner.when_recovered.append(found.renew)
        _log.info(
            "%s drafts %d tokens at a time, by the target's hidden states after layers %s: weights %s, %.1f MB",
            self.checkpoint.path,
            config.drafts,
            ", ".join(map(str, config.features)),
            self.precision.name,
            self.precision.loaded / 1e6,
        )
        return found


def find_block_draft(config: Config, target: Checkpoint, device: Device) -> BlockDraft | None:
    """The checkpoint of a method of `BLOCK_METHODS`, which has been compared with the target; None for other methods.

    Raises ConfigError that names the setting if it was made for another target, and what `open_block_draft` and
    `resolve` raise.
    """
    method, path = config.scheduler.draft_method, config.scheduler.draft_model or ""
    if method not in BLOCK_METHODS:
        return None
    known: Method = "dflash" if method == "dflash" else "dspark"
    checkpoint = open_block_draft(path, known, len(target.decoder_config.layers))
    draft, goal = checkpoint.config, target.decoder_config
    check_block_draft(draft, goal, path)
    if draft.target_name and draft.target_name.rpartition("/")[2] not in str(target.path):
        _log.warning("%s was trained for %s: with another model its drafts are seldom right", path, draft.target_name)
    # Two blocks: only the layout counts here.
    cache = CacheConfig(block_size=config.cache.block_size, kv_dtype=config.cache.kv_dtype, num_blocks=2)
    convolved = frozenset({"block_conv"} if draft.convolution is not None else ())
    facts = ModelFacts(
        draft.kv_layers,
        goal.max_position,
        goal.vocab,
        target.weight_dtype,
        draft.decoder.attention_needs,
        (convolved,) * len(draft.kv_layers),
    )
    model = config.model.model_copy(update={"max_model_len": None})
    own = config.model_copy(update={"cache": cache, "model": model})
    resolved, _ = resolve(own, device.capabilities(), facts, 0, "the device of the drafter")
    precision, draws = draft_weights(config, target, device.capabilities()), drafts_of(config, device) > 0
    return BlockDraft(checkpoint, target, resolved.kv_layout, precision, draws)
