"""Opens the tiers that keep KV blocks beside the device, as the configuration asks."""

from __future__ import annotations

import logging
from dataclasses import replace

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.config import Config
from headrace.core.block_source import BlockSource
from headrace.core.fetches import Tiers
from headrace.core.tier_record import TierRecord
from headrace.engine.block_identity import KeepsInBlocks, block_identity, moves_blocks, rank_block_bytes
from headrace.engine.peer_loading import check_peers, open_peers
from headrace.engine.ranks.leader import Followers
from headrace.engine.runner import Runner
from headrace.engine.wire import TransferInfo
from headrace.errors import ConfigError
from headrace.platforms.interface import Device
from headrace.resolution import Resolved
from headrace.tiers.disk_tier import DiskTier
from headrace.tiers.host_tier import HostTier
from headrace.transfer.chain import first_hash, next_hash
from headrace.types import Capabilities

__all__ = ["check_tiers", "open_tiers", "tiers_of"]

_log = logging.getLogger(__name__)


def check_tiers(config: Config, capabilities: Capabilities, platform: str) -> None:
    """Raises ConfigError for tiers that this engine cannot have."""
    cache = config.cache
    wanted = {"kv_host_memory": cache.kv_host_memory, "kv_disk": cache.kv_disk, "role": config.transfer.role}
    for name in [name for name, value in wanted.items() if value is not None]:
        if not cache.prefix_caching:
            raise ConfigError(
                f"{name} needs blocks of cached prefixes, and prefix_caching is off: leave one of them out"
            )
    check_peers(config)
    if cache.kv_host_memory is not None and capabilities.host_memory:
        raise ConfigError(
            f"kv_host_memory: platform {platform} computes in the host's memory, so the KV cache lies there already: "
            "raise kv_memory, or keep blocks on a disk with kv_disk"
        )


def open_tiers(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    platform: str,
    resolved: Resolved,
    runner: Runner,
    followers: Followers,
    drafter: KeepsInBlocks | None,
    reasons: list[str],
) -> tuple[Tiers | None, TransferInfo | None]:
    """The tiers, and how other engines fetch blocks from this one; None for what the configuration does not ask for.
    Adds a line about each tier to `reasons`. Raises ConfigError."""
    cache = config.cache
    if not moves_blocks(config):
        return None, None
    own = rank_block_bytes(runner, platform)
    runner.share_blocks(slice(own))
    identity = block_identity(config, checkpoint, device, platform, resolved, followers.share_blocks(own), drafter)
    layout, block_bytes = identity.layout_id, identity.block_bytes
    source: BlockSource | None = None
    record = TierRecord()
    lines = []
    if cache.disk is not None:
        folder, limit = cache.disk
        disk = DiskTier(folder, limit, layout, block_bytes, resolved.kv_layout.block_size, record)
        lines.append(disk.describe())
        source = disk
    if cache.kv_host_memory is not None:
        lines.append(f"KV blocks in host memory: up to {cache.kv_host_memory // block_bytes} blocks")
        source = HostTier(cache.kv_host_memory, source, record)
    gives, transfer = None, None
    if config.transfer.role is not None:
        source, transfer, line = open_peers(config, resolved, identity, source)
        gives = source.gives
        lines.append(line)
    for line in lines:
        _log.info("%s", line)
    reasons += lines
    assert source is not None
    tiers = replace(tiers_of(source, layout, block_bytes), record=record)
    return tiers if gives is None else replace(tiers, gives=gives), transfer


def tiers_of(source: BlockSource, layout: bytes, block_bytes: int) -> Tiers:
    """A source for the scheduler of an engine whose blocks have this layout."""
    return Tiers(source, lambda adapter, salt: first_hash(layout, adapter, salt), next_hash, block_bytes, layout)
