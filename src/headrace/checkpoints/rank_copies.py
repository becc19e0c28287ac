"""The stored bytes of a model's weights over all of its ranks: some weights lie in several ranks' memory."""

from __future__ import annotations

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.gguf_source import GGUFSource
from headrace.checkpoints.safetensors_source import SafetensorsSource
from headrace.models.sharding import Shard

__all__ = ["stored_on_ranks"]


def stored_on_ranks(checkpoint: Checkpoint, shard: Shard) -> int:
    """The bytes of all ranks together, as stored. `shard`: the part of any of them. A tied table is in the first and in
    the last of several stages, every rank of a stage has its complete routers, and with complete experts also complete
    shared experts. KV heads that several ranks read count once. Of a plugin's source the sizes of tensors are not
    known, and each counts once."""
    config, names, source = checkpoint.decoder_config, checkpoint.names, checkpoint.source
    if not isinstance(source, SafetensorsSource | GGUFSource):
        return checkpoint.total_bytes
    copies = dict[str, int]()
    """By the beginnings of names: how many ranks have the weight, beyond one."""
    untied = any(name.startswith(f"{names.head}.") for name in source.names)
    if shard.stages > 1 and config.tied and not untied:
        copies[f"{names.embedding}."] = 1
    if shard.size > 1 and config.moe is not None:
        shared = (names.shared_gate, names.shared_up, names.shared_down) if shard.expert_parallel else ()
        for name in filter(None, (names.router, names.shared_share, *shared)):
            copies |= {f"{name.format(i=index)}.": shard.size - 1 for index in range(len(config.layers))}
    if not copies:
        return checkpoint.total_bytes
    starts = tuple(copies)
    again = sum(
        size * next(count for start, count in copies.items() if name.startswith(start))
        for name, size in source.stored_sizes()
        if name.startswith(starts)
    )
    return checkpoint.total_bytes + again
