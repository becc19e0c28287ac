"""What starting an engine would choose, from the headers of the checkpoint and an open device. No weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.checkpoints.quantizing import check_quantizing
from headrace.config import Config
from headrace.engine.peer_loading import try_peers
from headrace.engine.rank_loading import device_options
from headrace.engine.stages import all_stored, check_stages, shard_of
from headrace.engine.startup import check_collectives, check_devices, find_drafts, resolve_on
from headrace.engine.tier_loading import check_tiers
from headrace.grammar.loading import find_backend
from headrace.platforms.interface import WorksInGroups
from headrace.plugins import discover
from headrace.resolution import Resolved

__all__ = ["EnginePlan", "plan_engine"]


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Bytes are those of rank 0's memory: a device's own, or the host's, which holds every rank."""

    layers: int
    vocab_size: int
    weight_dtype: str
    weight_bytes: int
    """As stored in the checkpoint; packed weights may take less or more."""
    draft_bytes: int
    """Of the weights of what drafts beside the model, as they lie in memory."""
    draft_quantization: str | None
    """That option's value as it was chosen: `int8`, `int4` or `none`. None: nothing drafts beside the model."""
    cache_bytes: int
    free_bytes: int
    total_bytes: int
    platform: str
    """With the reason."""
    resolved: Resolved
    reasons: tuple[str, ...]


def plan_engine(config: Config) -> EnginePlan:
    """Open the checkpoint and the device of rank 0, and choose. `config.model.model` is a path. Raises what building
    the engine would raise before it loads."""
    size = config.parallel.world_size
    checkpoint = open_checkpoint(config.model.model)
    check_stages(config)
    facts = checkpoint.facts(shard_of(config, 0))
    if config.model.quantize is not None:
        check_quantizing(checkpoint, config.model.quantize)
    platform, why = discover().select_platform(config.device.platform)
    device = platform.open(config.device.index, device_options(config))
    try:
        grouped = device.extension(WorksInGroups)
        if size > 1 and grouped is not None:
            check_collectives(platform, grouped.as_one_of_several(), config)
        check_devices(platform, device, config)
        find_backend(config.model.grammar_backend)
        found, block, head = find_drafts(config, checkpoint, device)
        drafts = found or block or head
        name = f"{platform.name} device {config.device.index}"
        check_tiers(config, device.capabilities(), platform.name)
        resolved, reasons = resolve_on(config, checkpoint, device, name, size, drafts)
        capabilities = device.capabilities()
        lanes, alone = capabilities.kv_lanes, 1 if capabilities.host_memory else size
        layouts = [resolved.kv_layout, *([] if drafts is None else [drafts.layout])]
        block_bytes = sum(layout.padded(lanes).bytes_per_block for layout in layouts)
        free, total = device.memory()
        try_peers(config, resolved, block_bytes)
    finally:
        device.close()
    return EnginePlan(
        layers=len(checkpoint.decoder_config.layers),
        vocab_size=facts.vocab_size,
        weight_dtype=checkpoint.weight_dtype,
        weight_bytes=all_stored(config, checkpoint) // alone,
        draft_bytes=0 if drafts is None else drafts.total_bytes,
        draft_quantization=None if drafts is None else drafts.precision.kind or "none",
        cache_bytes=size // alone * resolved.num_blocks * block_bytes,
        free_bytes=free,
        total_bytes=total,
        platform=why,
        resolved=resolved,
        reasons=tuple(reasons),
    )
