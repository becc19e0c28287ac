"""What the stages of a pipeline need of a configuration, a device and a model."""

from __future__ import annotations

from dataclasses import replace

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.rank_copies import stored_on_ranks
from headrace.config import Config
from headrace.errors import ConfigError, PlatformError
from headrace.models.config import DecoderConfig
from headrace.models.sharding import RowPipe, Shard, StageLinks, local_config
from headrace.platforms.interface import Device, PassesRows

__all__ = ["all_stored", "check_stages", "connect_stages", "describe_stages", "shard_of", "widest_stage"]


def check_stages(config: Config) -> None:
    """Raises ConfigError for options that a model in stages cannot have."""
    stages, method = config.parallel.pipeline_parallel_size, config.scheduler.draft_method
    if stages > 1 and (config.scheduler.draft_model is not None or method == "mtp"):
        raise ConfigError(
            f"pipeline_parallel_size {stages}: what {method} drafts with reads a model that is whole on one rank: "
            "speculate with ngram or suffix, or leave one of them out"
        )


def shard_of(config: Config, rank: int) -> Shard:
    """The part of the model that a rank has."""
    parallel = config.parallel
    return Shard.of(rank, parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.expert_parallel)


def all_stored(config: Config, checkpoint: Checkpoint) -> int:
    """The bytes of the weights of all ranks together, as stored."""
    return stored_on_ranks(checkpoint, shard_of(config, 0))


def widest_stage(config: Config, decoder: DecoderConfig) -> Shard:
    """The part whose blocks of the KV cache are largest: memory for it suffices for every stage. Raises ConfigError if
    the model cannot be split so."""

    def width(shard: Shard) -> int:
        return sum(layer.num_kv_heads * layer.head_dim for layer in local_config(decoder, shard).kv_layers)

    first = shard_of(config, 0)
    return max((replace(first, stage=stage) for stage in range(first.stages)), key=width)


def describe_stages(config: Config, decoder: DecoderConfig) -> list[str]:
    """A line about the ranks, for the log; none for a single one."""
    shard, found = shard_of(config, 0), []
    if shard.stages > 1:
        runs = [replace(shard, stage=stage).layers(decoder) for stage in range(shard.stages)]
        found.append(f"{shard.stages} stages of {', '.join(str(end - begin) for begin, end in runs)} layers")
    if shard.size > 1:
        of = "every layer" if shard.stages == 1 else "every layer of its stage"
        found.append(f"{shard.ranks} ranks, each with its part of {of}")
    if shard.expert_parallel and decoder.moe is not None:
        found.append(f"{decoder.moe.experts} experts of a layer: complete ones, distributed over {shard.size} ranks")
    return found


def connect_stages(device: Device, shard: Shard) -> StageLinks:
    """Connect a rank to its neighbours, each of which calls this, too. Raises PlatformError."""

    def pipe(first: int) -> RowPipe:
        ranks = [replace(shard, stage=stage).number for stage in (first, first + 1)]
        found = device.communicator(ranks)
        if not isinstance(found, PassesRows):
            raise PlatformError(f"pipeline_parallel_size {shard.stages}: the communicator of {ranks} passes no rows")
        return found

    # All ranks connect from the first stage on, so that each pair meets.
    before = None if shard.embeds else pipe(shard.stage - 1)
    return StageLinks(before, None if shard.samples else pipe(shard.stage))
