"""Loads one rank of a model on an open device: weights, KV cache, runner. A single rank has the complete model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.checkpoints.packed.cache import PackedCache, open_cache
from headrace.checkpoints.packing import Packing
from headrace.checkpoints.quantizing import quantizing
from headrace.config import Config
from headrace.engine.block_identity import moves_blocks, rank_block_bytes
from headrace.engine.draft_depth import by_passes, drafts_of
from headrace.engine.ranks.rank_messages import Loaded, Opened, RankMessage, Sizes, Start
from headrace.engine.runner import Runner, RunnerConfig
from headrace.engine.service import Progress
from headrace.engine.stage_runner import StageRunner
from headrace.engine.stages import connect_stages, shard_of
from headrace.errors import PlatformError
from headrace.kernels.ops import Ops
from headrace.kernels.registry import bind
from headrace.models.assemble import Finish
from headrace.models.decoder import Decoder, DecoderWeights
from headrace.models.features import Tap
from headrace.models.sharding import Collectives, Shard, StageLinks, local_config
from headrace.platforms.interface import Device, PackedForms, Platform, TorchTensors
from headrace.plugins import discover
from headrace.types import KVLayout, LayerKV

__all__ = [
    "SAVE_TIMEOUT",
    "LoadedRank",
    "TapSource",
    "device_options",
    "load_follower",
    "load_model",
    "load_rank",
    "open_rank",
    "packing_threads",
]

_PACKING_THREADS = 2
"""Threads that pack weights in the host's memory, each one weight at a time."""
SAVE_TIMEOUT = 2.0
"""Seconds to finish writing packed weights at the end."""


class TapSource(Protocol):
    """A drafter that reads the target's hidden states."""

    @property
    def layers(self) -> tuple[LayerKV, ...]:
        """Its layers of the target's cache."""

    def spare(self, sizes: Sizes) -> int:
        """Blocks of the cache that it needs beside those of sequences."""

    def load(
        self, device: Device, ops: Ops, weights: DecoderWeights, finish: Finish, place: Callable[[torch.Tensor], Any]
    ) -> None:
        """Read all weights of the drafter. `weights`: rank 0's part of the target's; `finish` and `place`: see
        `Checkpoint.build`."""

    def tap(self, layer: int) -> Tap:
        """What the target's steps must compute and keep, from this layer of the cache on; called after `load`."""


@dataclass(slots=True)
class LoadedRank:
    """One rank, ready for steps."""

    device: Device
    runner: Runner
    weights: DecoderWeights
    cache: PackedCache | None
    """The cache to save packed weights in; None if they were loaded from it, or are not saved."""
    answers: bool = False
    """Rank 0 gets the results of steps from this one."""

    def save_packed(self) -> None:
        """Start saving the packed weights in the cache, if they are not there yet."""
        if self.cache is not None:
            self.cache.save(self.weights)

    def finish_saving(self) -> None:
        """Wait a moment for the packed weights to be saved."""
        if self.cache is not None:
            self.cache.wait(SAVE_TIMEOUT)

    def close(self) -> None:
        self.finish_saving()
        self.device.close()


def open_rank(platform: Platform, config: Config, index: int, rank: int, rendezvous: str) -> Device:
    """Open the device of one rank. Raises PlatformError that names the rank, if there are several."""
    size, options = config.parallel.world_size, device_options(config)
    if size == 1:
        return platform.open(index, options)
    try:
        return platform.open(index, {**options, "rank": rank, "world_size": size, "rendezvous": rendezvous})
    except PlatformError as error:
        where = f"rank {rank} of {size}"
        raise PlatformError(f"{where} cannot open a device of platform {platform.name}: {error}") from error


def device_options(config: Config) -> dict[str, Any]:
    """The options that the user set, as `Platform.open` takes them."""
    given: dict[str, Any] = dict(config.device.options)
    if config.device.threads is not None:
        given["threads"] = config.device.threads
    if config.model.dtype != "auto":
        given["dtype"] = config.model.dtype
    return given


def load_follower(start: Start, send: Callable[[RankMessage], None], receive: Callable[[], RankMessage]) -> LoadedRank:
    """Load the rank that `start` names. Raises what loading raises."""
    config = Config.model_validate_json(start.config)
    checkpoint = open_checkpoint(config.model.model)
    platform, _ = discover().select_platform(config.device.platform)
    device = open_rank(platform, config, start.index, start.rank, start.rendezvous)
    try:
        send(Opened())
        sizes = receive()
        assert isinstance(sizes, Sizes)
        shard = shard_of(config, start.rank)
        loaded = load_rank(config, checkpoint, device, shard, sizes, lambda stage, done: None)
        loaded.answers = shard.stages > 1 and shard.samples and shard.rank == 0
        loaded.save_packed()
        send(Loaded(rank_block_bytes(loaded.runner, platform.name) if moves_blocks(config) else 0))
        return loaded
    except BaseException:
        device.close()
        raise


def load_rank(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    shard: Shard,
    sizes: Sizes,
    progress: Progress,
    source: TapSource | None = None,
) -> LoadedRank:
    """Load the weights of `shard`, allocate its cache and bind its steps. Several ranks first connect to each other
    here. `source`: the drafter that reads hidden states, which rank 0 alone has.

    Raises CheckpointError, UnsupportedModel, OutOfMemory, PlatformError. The device stays open when this raises.
    """
    peers = [replace(shard, rank=rank).number for rank in range(shard.size)]
    group = device.communicator(peers) if shard.size > 1 else None
    ops = bind(device)
    model, cache = load_model(config, checkpoint, device, ops, shard, sizes.max_model_len, progress, group)
    sized = _runner_config(config, checkpoint, shard, sizes, drafts_of(config, device))
    if sized.head_drafts:
        sized = replace(sized, head_group=group)
    if source is not None:
        _load_source(source, checkpoint, device, ops, model)
        layers = sized.layout.layers
        model.tap = source.tap(len(layers))
        layout = replace(sized.layout, layers=(*layers, *source.layers))
        sized = replace(sized, layout=layout, num_blocks=sized.num_blocks + source.spare(sizes))
    progress("cache", 0.0)
    runner = (Runner if shard.samples else StageRunner)(device, model, ops, sized)
    return LoadedRank(device, runner, model.weights, cache)


def load_model(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    ops: Ops,
    shard: Shard,
    max_model_len: int,
    progress: Progress,
    group: Collectives | None = None,
) -> tuple[Decoder, PackedCache | None]:
    """The model with the weights of `shard`, and the cache to save them in, if they are not there yet. `group`: the
    collective operations of the ranks that share the weights. Raises as `load_rank`."""
    links = connect_stages(device, shard)
    # Kept weights come back as torch's tensors, vectors among them.
    forms = None if device.extension(TorchTensors) is None else device.extension(PackedForms)
    cache = open_cache(config, checkpoint.path, checkpoint.decoder_config, forms, shard)
    kept = None if cache is None else cache.load()
    if kept is None:
        return _read(config, checkpoint, device, ops, (shard, group, links), max_model_len, progress), cache
    local = local_config(checkpoint.decoder_config, shard)
    return Decoder(local, ops, kept, max_model_len, group, links=links), None


def _read(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    ops: Ops,
    place: tuple[Shard, Collectives | None, StageLinks],
    max_model_len: int,
    progress: Progress,
) -> Decoder:
    """This rank's part of the model from its checkpoint, with its weights packed for the device while it is read."""
    shard, group, links = place
    if config.model.quantize is not None:
        checkpoint = quantizing(checkpoint, config.model.quantize)
    move, place_vector = _movers(device)
    with Packing(ops, device, checkpoint.path, packing_threads(device, shard.ranks), move) as packing:
        return checkpoint.build(
            ops,
            max_model_len,
            lambda done, total: progress("weights", done * shard.ranks / max(1, total)),
            move=move,
            shard=shard,
            group=group,
            links=links,
            finish=packing.finish,
            place_vector=place_vector,
        )


def _load_source(source: TapSource, checkpoint: Checkpoint, device: Device, ops: Ops, model: Decoder) -> None:
    move, place_vector = _movers(device)
    with Packing(ops, device, checkpoint.path, packing_threads(device), move) as packing:
        source.load(device, ops, model.weights, packing.finish, place_vector or (lambda vector: vector))


def packing_threads(device: Device, ranks: int = 1) -> int:
    """Threads that pack weights on each of `ranks` ranks of one host."""
    shared = max(1, (os.cpu_count() or 1) // ranks) if ranks > 1 else _PACKING_THREADS
    return min(_PACKING_THREADS, shared) if device.capabilities().host_memory else 1


def _movers(
    device: Device,
) -> tuple[Callable[[torch.Tensor], torch.Tensor] | None, Callable[[torch.Tensor], Any] | None]:
    """Functions that put matrices and vectors on a device; None if they stay on the host. If the device's tensors are
    not torch tensors, vectors are `put` as float32 arrays, and operators read matrices from the host when they pack
    them."""
    if device.extension(TorchTensors) is None:
        return None, lambda vector: device.put(vector.float().contiguous().numpy())
    move = None if device.capabilities().host_memory else _to_device(device)
    return move, move


def _to_device(device: Device) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that puts torch's tensors on a device. Every dtype crosses as bytes: numpy has no bfloat16 and no
    float8."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.contiguous().reshape(-1)
        moved: torch.Tensor = device.put(flat.view(torch.uint8).numpy())
        return moved.view(tensor.dtype).reshape(tensor.shape)

    return move


def _runner_config(config: Config, checkpoint: Checkpoint, shard: Shard, sizes: Sizes, drafts: int) -> RunnerConfig:
    facts = checkpoint.facts(shard)
    return RunnerConfig(
        layout=KVLayout(facts.layers, sizes.block_size, sizes.kv_dtype),
        num_blocks=sizes.num_blocks,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        max_model_len=sizes.max_model_len,
        vocab_size=facts.vocab_size,
        drafts=drafts,
        head_drafts=drafts > 0 and by_passes(config),
    )
