"""What the bytes of this engine's blocks depend on, and how they are laid out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from headrace import __version__
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.packed.cache import directory_of
from headrace.checkpoints.packed.content import Contents, checkpoint_files
from headrace.config import Config
from headrace.engine.runner import Runner
from headrace.engine.stages import shard_of
from headrace.errors import ConfigError, PlatformError
from headrace.models.config import DecoderConfig
from headrace.models.sharding import Shard, local_config
from headrace.platforms.interface import Device, NamesChip, OrdersBlocks, PackedForms
from headrace.resolution import Resolved
from headrace.transfer.block_form import BlockForm, form_bytes
from headrace.transfer.chain import HASH_BYTES
from headrace.types import KVLayout, LayerKV

__all__ = ["BlockIdentity", "block_form", "block_identity", "moves_blocks", "rank_block_bytes"]


class KeepsInBlocks(Protocol):
    """A drafter with layers of its own in the target's cache."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """Of its checkpoint, which may be the target's."""

    @property
    def layers(self) -> tuple[LayerKV, ...]: ...


def moves_blocks(config: Config) -> bool:
    """Whether blocks of the cache go anywhere or come from anywhere."""
    cache = config.cache
    return cache.kv_host_memory is not None or cache.disk is not None or config.transfer.role is not None


def rank_block_bytes(runner: Runner, platform: str) -> int:
    """Bytes of a rank's part of a block. Raises ConfigError if its device cannot move blocks."""
    try:
        return runner.block_bytes()
    except PlatformError as error:
        raise ConfigError(
            f"platform {platform} cannot move KV blocks ({error}): leave kv_disk, kv_host_memory and role out"
        ) from error


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """An engine's blocks, as others compare them with theirs."""

    model: str
    """Digest of the checkpoint's files."""
    content_id: bytes
    """Names everything that the numbers of a block depend on, beside its tokens: the model's files, and how they are
    computed. Numbers of engines of the same content differ by the order of sums at most."""
    layout_id: bytes
    """Names how they are laid out, too: equal ids mean interchangeable bytes, and the same bits."""
    block_bytes: int
    """Of all ranks."""
    drafter: str
    """The method of the drafter that has a part of the blocks; empty: none has."""
    form: BlockForm | None
    """None: the device does not say how it orders them."""


def block_identity(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    platform: str,
    resolved: Resolved,
    rank_bytes: tuple[int, ...],
    drafter: KeepsInBlocks | None = None,
) -> BlockIdentity:
    """`rank_bytes`: bytes of each rank's part of a block. `drafter`: what keeps more in the blocks than the model's
    keys and values. Reads the files of both once; later their times identify them."""
    forms, named = device.extension(PackedForms), device.extension(NamesChip)
    contents = Contents(directory_of() / "contents.json")
    digest = contents.digest(checkpoint_files(checkpoint.path))
    drafts = None
    if drafter is not None:
        drafts = (drafter.method, contents.digest(checkpoint_files(Path(drafter.path))), repr(drafter.layers))
    content = {
        "files": digest,
        "decoder": repr(checkpoint.decoder_config),
        "quantize": config.model.quantize,
        "dtype": (config.model.dtype, resolved.dtype),
        "kv_dtype": resolved.kv_layout.dtype,
        "platform": platform,
        "form": "" if forms is None else forms.identity,
        "device": type(device).__name__,
        "chip": "" if named is None else named.chip,
        "options": sorted(f"{name}={value}" for name, value in config.device.options.items()),
        "drafter": drafts,
        "version": __version__,
    }
    shard = shard_of(config, 0)
    layout = {
        "content": content,
        "layout": repr(resolved.kv_layout),
        "bytes": rank_bytes,
        "split": (shard.size, shard.stages, shard.expert_parallel),
    }
    return BlockIdentity(
        model=digest,
        content_id=_hash(content),
        layout_id=_hash(layout),
        block_bytes=sum(rank_bytes),
        drafter="" if drafter is None else drafter.method,
        form=block_form(
            checkpoint.decoder_config,
            shard,
            device,
            resolved.kv_layout,
            rank_bytes,
            () if drafter is None else drafter.layers,
        ),
    )


def block_form(
    decoder: DecoderConfig,
    first: Shard,
    device: Device,
    layout: KVLayout,
    rank_bytes: tuple[int, ...],
    drafter: tuple[LayerKV, ...] = (),
) -> BlockForm | None:
    """The form of blocks of ranks like `first`; None if the device does not say it, or if its blocks have other sizes
    than that gives. `drafter`: layers that rank 0 alone has, behind its own."""
    orders = device.extension(OrdersBlocks)
    if orders is None:
        return None
    lanes, align = orders.block_padding
    padded = replace(layout, layers=(*decoder.kv_layers, *drafter)).padded(lanes)
    item = {"float32": 4, "int8": 1, "float8_e4m3": 1}.get(layout.dtype, 2)
    scales = (4, 4) if item == 1 else ()
    rows = tuple((layer.head_dim * item, layer.head_dim * item, *scales) for layer in padded.layers)
    shards = [Shard.of(n, first.size, first.stages, first.expert_parallel) for n in range(first.ranks)]
    ranks = [_layers_of(decoder, shard) for shard in shards]
    drafts = len(decoder.kv_layers)
    ranks[0] = (*ranks[0], *((drafts + at, 0, layer.num_kv_heads) for at, layer in enumerate(drafter)))
    form = BlockForm(rows, tuple(ranks), align)
    sizes = tuple(form_bytes(form, layout.block_size, rank) for rank in range(first.ranks))
    return form if sizes == rank_bytes else None


def _layers_of(decoder: DecoderConfig, shard: Shard) -> tuple[tuple[int, int, int], ...]:
    """(layer, first KV head, number of KV heads) of the layers of a rank."""
    begin, _ = shard.layers(decoder) if shard.stages > 1 else (0, 0)
    head = shard.kv_heads(decoder)[0] if shard.size > 1 else 0
    return tuple(
        (begin + at, head, layer.num_kv_heads) for at, layer in enumerate(local_config(decoder, shard).kv_layers)
    )


def _hash(facts: Mapping[str, object]) -> bytes:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=HASH_BYTES).digest()
