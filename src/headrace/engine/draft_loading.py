"""Loads the model that drafts beside the target: `--speculate draft:MODEL`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.checkpoints.quantizing import quantized_matrices
from headrace.config import DRAFT, CacheConfig, Config
from headrace.core import CoreConfig, Scheduler
from headrace.engine.draft_model import DraftModel
from headrace.engine.draft_weights import DraftWeights, draft_weights
from headrace.engine.rank_loading import LoadedRank, load_rank
from headrace.engine.ranks.rank_messages import Sizes
from headrace.engine.service import Progress
from headrace.errors import ConfigError
from headrace.grammar.loading import read_vocabulary
from headrace.models.sharding import Shard
from headrace.platforms.interface import Device
from headrace.resolution import Resolved, resolve
from headrace.types import KVLayout

__all__ = ["DraftCheckpoint", "LoadedDraft", "find_draft"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedDraft:
    """The draft model, ready for rounds."""

    model: DraftModel
    own: LoadedRank

    def close(self) -> None:
        """Finish saving. Its memory is the device's, which the target closes."""
        self.own.finish_saving()


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """A checkpoint that may draft for the target."""

    checkpoint: Checkpoint
    config: Config
    layout: KVLayout
    """Of its cache, which has as many blocks as the target's."""
    precision: DraftWeights

    @property
    def total_bytes(self) -> int:
        """Of its weights in memory."""
        return self.checkpoint.total_bytes - self.precision.saved(quantized_matrices(self.checkpoint))

    def load(
        self, device: Device, target: Resolved, progress: Progress, busy_seconds: Callable[[], float] | None
    ) -> LoadedDraft:
        """Load it on the device of the target. Raises what loading raises."""
        resolved, _ = self._resolve(device, target)
        vocab = self.checkpoint.decoder_config.vocab
        sizes = Sizes(
            max_model_len=resolved.max_model_len,
            block_size=resolved.kv_layout.block_size,
            kv_dtype=resolved.kv_layout.dtype,
            num_blocks=resolved.num_blocks,
            max_num_seqs=resolved.max_num_seqs,
            max_num_batched_tokens=resolved.max_num_batched_tokens,
        )
        own = load_rank(self.config, self.checkpoint, device, Shard(0, 1), sizes, progress)
        core = CoreConfig(
            num_blocks=resolved.num_blocks,
            block_size=resolved.kv_layout.block_size,
            max_num_seqs=resolved.max_num_seqs,
            max_num_batched_tokens=resolved.max_num_batched_tokens,
            max_model_len=resolved.max_model_len,
            vocab_size=vocab,
        )
        name = str(self.checkpoint.path)
        model = DraftModel(name, Scheduler(core), own.runner, busy_seconds, isolated=not target.prefix_caching)
        model.warm_up()
        own.save_packed()
        _log.info(
            "drafts by %s: dtype %s, weights %s, %.1f MB, KV cache %s",
            name,
            resolved.dtype,
            self.precision.name,
            self.total_bytes / 1e6,
            resolved.kv_layout.dtype,
        )
        return LoadedDraft(model, own)

    def _resolve(self, device: Device, target: Resolved) -> tuple[Resolved, list[str]]:
        """The sizes of the target, but no longer context than the model's own."""
        facts = self.checkpoint.facts()
        config = self.config.model_copy(
            update={
                "model": self.config.model.model_copy(
                    update={"max_model_len": min(target.max_model_len, facts.max_position)}
                ),
                "cache": self.config.cache.model_copy(update={"num_blocks": target.num_blocks}),
            }
        )
        return resolve(config, device.capabilities(), facts, 0)


def find_draft(config: Config, target: Checkpoint, device: Device) -> DraftCheckpoint | None:
    """The checkpoint of the method `draft`, which has been compared with the target; None for other methods.

    Raises ConfigError that names both models if their vocabularies differ or there are several ranks, and what
    `open_checkpoint`, `load_tokenizer` and `resolve` raise.
    """
    path = config.scheduler.draft_model
    if path is None or config.scheduler.speculate != f"{DRAFT}:{path}":
        return None
    if config.parallel.tensor_parallel_size > 1:
        raise ConfigError(
            f"--speculate draft:{path}: a draft model needs tensor_parallel_size 1, and it is "
            f"{config.parallel.tensor_parallel_size}: choose another method"
        )
    checkpoint = open_checkpoint(path)
    _compare(target, checkpoint)
    # Two blocks: only the layout counts here.
    cache = CacheConfig(block_size=config.cache.block_size, kv_dtype=config.cache.kv_dtype, num_blocks=2)
    precision = draft_weights(config, target, device.capabilities()).of_model(checkpoint)
    update = {"model": path, "max_model_len": None, "quantize": precision.kind}
    own = config.model_copy(update={"model": config.model.model_copy(update=update), "cache": cache})
    resolved, _ = resolve(own, device.capabilities(), checkpoint.facts(), 0, "the device of the draft model")
    return DraftCheckpoint(checkpoint, own, resolved.kv_layout, precision)


def _compare(target: Checkpoint, draft: Checkpoint) -> None:
    """Raises ConfigError unless both models have the same tokens."""
    sizes = target.decoder_config.vocab, draft.decoder_config.vocab
    if sizes[0] != sizes[1]:
        raise _refusal(target, draft, f"has {sizes[1]} tokens and {target.path} has {sizes[0]}")
    theirs = [read_vocabulary(one.path, sizes[0], one.eos_token_ids) for one in (target, draft)]
    tokens = [one.token_bytes for one in theirs]
    if len(tokens[0]) != len(tokens[1]):
        raise _refusal(target, draft, f"names {len(tokens[1])} tokens and {target.path} names {len(tokens[0])}")
    for token, (own, other) in enumerate(zip(*tokens, strict=True)):
        if own != other:
            raise _refusal(target, draft, f"has {other!r} as token {token} and {target.path} has {own!r}")


def _refusal(target: Checkpoint, draft: Checkpoint, why: str) -> ConfigError:
    return ConfigError(
        f"--speculate draft:{draft.path}: it cannot draft for {target.path}, because it {why}: choose a smaller model "
        "of the same family"
    )
