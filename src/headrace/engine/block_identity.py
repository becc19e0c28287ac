"""What the bytes of this engine's blocks depend on, and how they are laid out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace import __version__
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.packed.cache import directory_of
from headrace.checkpoints.packed.content import Contents, checkpoint_files
from headrace.config import Config
from headrace.engine.stages import shard_of
from headrace.models.config import DecoderConfig
from headrace.models.sharding import Shard, local_config
from headrace.platforms.interface import Device, NamesChip, OrdersBlocks, PackedForms
from headrace.resolution import Resolved
from headrace.transfer.block_form import BlockForm, form_bytes
from headrace.transfer.chain import HASH_BYTES
from headrace.types import KVLayout

__all__ = ["BlockIdentity", "block_form", "block_identity"]


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
    form: BlockForm | None
    """None: the device does not say how it orders them."""


def block_identity(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    platform: str,
    resolved: Resolved,
    rank_bytes: tuple[int, ...],
) -> BlockIdentity:
    """`rank_bytes`: bytes of each rank's part of a block. Reads the model's files once; later their times identify
    them."""
    forms, named = device.extension(PackedForms), device.extension(NamesChip)
    digest = Contents(directory_of() / "contents.json").digest(checkpoint_files(checkpoint.path))
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
        form=block_form(checkpoint.decoder_config, shard, device, resolved.kv_layout, rank_bytes),
    )


def block_form(
    decoder: DecoderConfig, first: Shard, device: Device, layout: KVLayout, rank_bytes: tuple[int, ...]
) -> BlockForm | None:
    """The form of blocks of ranks like `first`; None if the device does not say it, or if its blocks have other sizes
    than that gives."""
    orders = device.extension(OrdersBlocks)
    if orders is None:
        return None
    lanes, align = orders.block_padding
    padded = replace(layout, layers=decoder.kv_layers, block_size=1).padded(lanes)
    item = {"float32": 4, "int8": 1, "float8_e4m3": 1}.get(layout.dtype, 2)
    scales = (4, 4) if item == 1 else ()
    rows = tuple((layer.head_dim * item, layer.head_dim * item, *scales) for layer in padded.layers)
    form = BlockForm(
        rows,
        tuple(
            _layers_of(decoder, Shard.of(n, first.size, first.stages, first.expert_parallel))
            for n in range(first.ranks)
        ),
        align,
    )
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
