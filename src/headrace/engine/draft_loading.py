"""Loads the model that drafts beside the target: `--speculate draft:MODEL`. Rank 0 alone has it, whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.checkpoints.drafter_weights import DraftWeights
from headrace.checkpoints.packed.cache import PackedCache
from headrace.checkpoints.quantizing import quantized_matrices
from headrace.config import DRAFT, CacheConfig, Config
from headrace.engine.draft_weights import draft_weights
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_passes import HeadPasses
from headrace.engine.rank_loading import SAVE_TIMEOUT, load_model
from headrace.engine.runner import Runner
from headrace.engine.service import Progress
from headrace.errors import ConfigError
from headrace.grammar.loading import read_vocabulary
from headrace.kernels.registry import bind
from headrace.models.draft_heads import DraftDecoder
from headrace.models.sharding import Shard
from headrace.platforms.interface import Device
from headrace.resolution import Resolved, resolve
from headrace.types import KVLayout

__all__ = ["DraftCheckpoint", "LoadedDraft", "find_draft"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedDraft:
    """The draft model, ready for rounds."""

    model: HeadDrafter
    cache: PackedCache | None
    """The one in which its packed weights are being saved, if any."""

    def close(self) -> None:
        """Finish saving. Its memory is the device's, which the target closes."""
        if self.cache is not None:
            self.cache.wait(SAVE_TIMEOUT)


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
        self,
        device: Device,
        runner: Runner,
        target: Resolved,
        progress: Progress,
        busy_seconds: Callable[[], float] | None,
    ) -> LoadedDraft:
        """Load it on the device of the target, whose `runner` has the tokens. Raises what loading raises."""
        resolved, _ = self._resolve(device, target)
        ops, longest, layout = bind(device), resolved.max_model_len, resolved.kv_layout
        model, cache = load_model(self.config, self.checkpoint, device, ops, Shard(0, 1), longest, progress)
        drafter = HeadDrafter(
            DRAFT,
            str(self.checkpoint.path),
            HeadPasses(device, runner, DraftDecoder(ops, model), layout, resolved.num_blocks),
            resolved.num_blocks,
            layout.block_size,
            resolved.max_num_batched_tokens,
            longest,
            self.checkpoint.decoder_config.vocab,
            zero_first=False,
            busy_seconds=busy_seconds,
            sharing=target.prefix_caching,
        )
        drafter.warm_up()
        runner.when_recovered.append(drafter.renew)
        if cache is not None:
            cache.save(model.weights)
        _log.info(
            "drafts by %s: dtype %s, weights %s, %.1f MB, KV cache %s",
            self.checkpoint.path,
            resolved.dtype,
            self.precision.name,
            self.total_bytes / 1e6,
            layout.dtype,
        )
        return LoadedDraft(drafter, cache)

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

    Raises ConfigError that names both models if their vocabularies differ, and what `open_checkpoint`,
    `load_tokenizer` and `resolve` raise.
    """
    path = config.scheduler.draft_model
    if path is None or config.scheduler.speculate != f"{DRAFT}:{path}":
        return None
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
