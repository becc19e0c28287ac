"""From a configuration to an engine over several ranks: rank 0 here, the others in processes that it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.checkpoints.packed.cache import PackedCache, open_cache
from headrace.checkpoints.quantizing import quantizing
from headrace.config import Config, Resolved, resolve
from headrace.core import Scheduler
from headrace.engine import startup
from headrace.engine.core_loop import EngineCore
from headrace.engine.plans import dummy_plan
from headrace.engine.ranks.leader import COMMAND, ParallelCore, ParallelRunner, Ranks
from headrace.engine.ranks.rank_messages import Loaded, Message, Opened, Sizes, Start
from headrace.engine.runner import Runner, RunnerConfig
from headrace.engine.service import Progress
from headrace.engine.wire import EngineInfo
from headrace.errors import ConfigError, PlatformError
from headrace.kernels.ops import Ops
from headrace.kernels.registry import bind
from headrace.models.decoder import Decoder
from headrace.models.sharding import Group, Shard, local_config
from headrace.platforms.interface import Device, Platform
from headrace.plugins import discover
from headrace.types import KVLayout

__all__ = ["LoadedRank", "ParallelEngine", "build_ranks", "load_rank"]

_log = logging.getLogger(__name__)
_NEEDED = frozenset({"all_reduce", "all_gather"})


@dataclass(slots=True)
class LoadedRank:
    """One rank, ready for steps."""

    device: Device
    runner: Runner
    cache: PackedCache | None
    """Where its packed weights are being kept; None where they were, or are not."""

    def close(self) -> None:
        if self.cache is not None:
            self.cache.wait(startup.LAST_WRITE)
        self.device.close()


@dataclass(slots=True)
class ParallelEngine:
    """A `service.BuiltEngine`."""

    core: EngineCore
    info: EngineInfo
    own: LoadedRank
    ranks: Ranks

    @property
    def device(self) -> Device:
        return self.own.device

    def close(self) -> None:
        self.ranks.close()
        self.own.close()


def build_ranks(config: Config, progress: Progress, command: tuple[str, ...] = COMMAND) -> ParallelEngine:
    """Load everything on every rank. Raises as `startup.build_engine` does, whichever rank it was, and ConfigError for a number of
    ranks that the model or the platform has no room for."""
    progress("checkpoint", 0.0)
    size = config.parallel.tensor_parallel_size
    checkpoint = open_checkpoint(config.model.model)
    checkpoint.facts(Shard(0, size))
    platform, why = discover().select_platform(config.device.platform)
    _log.info("platform %s", why)
    ranks = Ranks(
        config.model_dump_json(exclude={"server"}), size, lambda rank: _index(platform, config, rank), command
    )
    device: Device | None = None
    try:
        device = _open(platform, config.device.index, _options(config, 0, size, ranks.rendezvous))
        _check(platform, device, config)
        ranks.start()
        return _build(config, checkpoint, platform.name, device, ranks, progress)
    except BaseException:
        ranks.close()
        if device is not None:
            device.close()
        raise


def load_rank(start: Start, say: Callable[[Message], None], hear: Callable[[], Message]) -> LoadedRank:
    """One of the other ranks, ready for steps. Raises what loading raises."""
    config = Config.model_validate_json(start.config)
    checkpoint = open_checkpoint(config.model.model)
    platform, _ = discover().select_platform(config.device.platform)
    device = _open(platform, start.index, _options(config, start.rank, start.size, start.rendezvous))
    try:
        say(Opened())
        sizes = hear()
        assert isinstance(sizes, Sizes)
        loaded = _load(config, checkpoint, device, Shard(start.rank, start.size), sizes, lambda stage, done: None)
        say(Loaded())
        return loaded
    except BaseException:
        device.close()
        raise


def _build(
    config: Config, checkpoint: Checkpoint, platform: str, device: Device, ranks: Ranks, progress: Progress
) -> ParallelEngine:
    resolved, reasons = _resolve(config, checkpoint, device, f"{platform} device {config.device.index}", ranks.size)
    progress("ranks", 0.0)
    ranks.await_all(Opened)
    layout = resolved.kv_layout
    sizes = Sizes(
        resolved.max_model_len,
        layout.block_size,
        layout.dtype,
        resolved.num_blocks,
        resolved.max_num_seqs,
        resolved.max_num_batched_tokens,
    )
    ranks.tell(sizes)
    own = _load(config, checkpoint, device, Shard(0, ranks.size), sizes, progress)
    ranks.await_all(Loaded)
    runner = ParallelRunner(own.runner, ranks)
    progress("first step", 0.0)
    runner.launch(dummy_plan()).result()
    vocab = checkpoint.decoder_config.vocab
    scheduler = Scheduler(startup.core_config(config, resolved, vocab))
    core = ParallelCore(scheduler, runner, resolved.max_num_seqs, layout.block_size)
    return ParallelEngine(core, startup.engine_info(checkpoint, platform, resolved, vocab, tuple(reasons)), own, ranks)


def _resolve(
    config: Config, checkpoint: Checkpoint, device: Device, name: str, size: int
) -> tuple[Resolved, list[str]]:
    """The choices for every rank: as much as rank 0 has room for, of which ranks of one host get a share each."""
    capabilities, (free, _) = device.capabilities(), device.memory()
    if capabilities.host_memory:
        free = max(0, free - checkpoint.total_bytes) // size
    else:
        free = max(0, free - checkpoint.total_bytes // size)
    resolved, reasons = resolve(config, capabilities, checkpoint.facts(Shard(0, size)), free, name)
    reasons.append(f"{size} ranks, each with its part of every layer")
    for reason in reasons:
        _log.info("%s", reason)
    return resolved, reasons


def _load(
    config: Config, checkpoint: Checkpoint, device: Device, shard: Shard, sizes: Sizes, progress: Progress
) -> LoadedRank:
    """This rank's weights, cache and steps. Meets the other ranks first."""
    group, ops = device.communicator(range(shard.size)), bind(device)
    facts, forms = checkpoint.facts(shard), device.extension("packed_forms")
    cache = open_cache(config, checkpoint.path, checkpoint.decoder_config, forms, shard)
    kept = None if cache is None else cache.load()
    if kept is None:
        model = _read(config, checkpoint, device, ops, (shard, group), sizes.max_model_len, progress)
    else:
        cache = None
        model = Decoder(local_config(checkpoint.decoder_config, shard), ops, kept, sizes.max_model_len, group)
    progress("cache", 0.0)
    layout = KVLayout(facts.layers, sizes.block_size, sizes.kv_dtype)
    counts = (sizes.num_blocks, sizes.max_num_seqs, sizes.max_num_batched_tokens, sizes.max_model_len)
    runner = Runner(device, model, ops, RunnerConfig(layout, *counts, facts.vocab_size))
    if cache is not None:
        cache.save(model.weights)
    return LoadedRank(device, runner, cache)


def _read(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    ops: Ops,
    place: tuple[Shard, Group],
    max_model_len: int,
    progress: Progress,
) -> Decoder:
    """The rank's part of the model from its checkpoint, its weights laid out for the device."""
    shard, group = place
    if config.model.quantize is not None:
        checkpoint = quantizing(checkpoint, config.model.quantize)
    model = checkpoint.build(
        ops,
        max_model_len,
        lambda done, total: progress("weights", done * shard.size / max(1, total)),
        move=None if device.capabilities().host_memory else startup.mover(device),
        shard=shard,
        group=group,
    )
    workers = startup.packers(device, shard.size)
    startup.pack_weights(ops, model.weights, lambda done: progress("packing", done), workers)
    return model


def _open(platform: Platform, index: int, options: Mapping[str, Any]) -> Device:
    try:
        return platform.open(index, options)
    except PlatformError as error:
        where = f"rank {options['rank']} of {options['world_size']}"
        raise PlatformError(f"{where} cannot open a device of platform {platform.name}: {error}") from error


def _options(config: Config, rank: int, size: int, rendezvous: str) -> Mapping[str, Any]:
    return {**startup.wishes(config), "rank": rank, "world_size": size, "rendezvous": rendezvous}


def _index(platform: Platform, config: Config, rank: int) -> int:
    """Each rank has a device of its own, but for a platform whose one device is the machine."""
    count = len(platform.devices())
    return config.device.index + (rank if count > 1 else 0)


def _check(platform: Platform, device: Device, config: Config) -> None:
    size, capabilities = config.parallel.tensor_parallel_size, device.capabilities()
    missing = sorted(_NEEDED - capabilities.collectives)
    if missing:
        raise ConfigError(
            f"tensor_parallel_size {size}: platform {platform.name} has no {' and no '.join(missing)} between ranks: leave it out"
        )
    first, count = config.device.index, len(platform.devices())
    if not capabilities.host_memory and first + size > count:
        raise ConfigError(
            f"tensor_parallel_size {size}: platform {platform.name} has {count} devices, and device {first} is the first to be "
            f"used: choose at most {count - first}"
        )
