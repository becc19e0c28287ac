"""Builds an engine from a configuration. One rank and many use the same code: one rank is a group without followers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.config import Config
from headrace.core import CoreConfig, Scheduler
from headrace.core.cache_events import CacheEvents
from headrace.core.fetches import Tiers
from headrace.engine.block_loading import BlockDraft, find_block_draft
from headrace.engine.block_rounds import BlockRounds
from headrace.engine.core_loop import EngineCore
from headrace.engine.draft_depth import describe_drafts
from headrace.engine.draft_loading import DraftCheckpoint, LoadedDraft, find_draft
from headrace.engine.draft_weights import check_host_drafter
from headrace.engine.drafting import Drafting
from headrace.engine.first_steps import first_plans
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_loading import HeadSource, find_head
from headrace.engine.memory_use import MemoryUse, kv_bytes, measure_use
from headrace.engine.profiling import profiler_of
from headrace.engine.rank_loading import LoadedRank, load_rank, open_rank
from headrace.engine.ranks.leader import COMMAND, Followers
from headrace.engine.ranks.pipeline import PipelineRunner
from headrace.engine.ranks.rank_messages import Loaded, Opened, Sizes
from headrace.engine.runner import Runner
from headrace.engine.sampling_defaults import describe, sampling_defaults
from headrace.engine.service import Progress
from headrace.engine.stages import all_stored, check_stages, describe_stages, shard_of, widest_stage
from headrace.engine.tier_loading import check_tiers, open_tiers
from headrace.engine.wire import EngineInfo, TransferInfo
from headrace.errors import ConfigError
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.loading import find_backend, open_backend
from headrace.kernels import named_logprobs
from headrace.kernels.spec import TorchTensors
from headrace.platforms.interface import ALL_TO_ALL, BusySeconds, ChecksDrafting, Device, Platform, TimesLaunches
from headrace.plugins import discover
from headrace.resolution import Resolved, resolve
from headrace.speculation.guarded import GuardedDrafter
from headrace.speculation.loading import make as make_drafter
from headrace.speculation.model_speculator import ModelSpeculator
from headrace.speculation.speculator import Speculator
from headrace.transfer.chain import first_hash, next_hash
from headrace.types import Capabilities
from headrace.wording import counted

__all__ = [
    "Engine",
    "build_engine",
    "build_on",
    "busy_seconds",
    "check_collectives",
    "check_devices",
    "find_drafts",
    "resolve_on",
]

_log = logging.getLogger(__name__)
_NEEDED = frozenset({"all_reduce", "all_gather"})
"""Collectives that a step over several ranks calls."""


@dataclass(slots=True)
class Engine:
    """A `service.BuiltEngine`."""

    core: EngineCore
    info: EngineInfo
    own: LoadedRank
    """Rank 0."""
    followers: Followers
    """The other ranks; none for a model on one device."""
    grammars: GrammarCompiler
    draft: LoadedDraft | None = None
    """The model of its own that drafts, if any."""
    blocks: BlockRounds | None = None
    """The block drafter, if any."""
    head: HeadDrafter | None = None
    """The draft head, if any."""
    tiers: Tiers | None = None
    """What keeps blocks beside the device, if anything."""

    @property
    def device(self) -> Device:
        return self.own.device

    @property
    def runner(self) -> Runner:
        return self.own.runner

    def close(self) -> None:
        self.grammars.close()
        if self.tiers is not None:
            self.tiers.source.close()
        self.followers.close()
        if self.draft is not None:
            self.draft.close()
        self.own.close()


def build_engine(config: Config, progress: Progress, follower: tuple[str, ...] = COMMAND) -> Engine:
    """Load everything, on every rank. `config.model.model` is a path or a name of the catalogue; `follower` is the
    command that starts another rank.

    A device gets its arithmetic from the options that the user set, `threads` and `dtype` (a platform without threads
    refuses the option). Otherwise the device follows `weight.scheme`, as `resolve` does. The KV dtype is in the layout
    that `alloc_kv` receives.

    Raises the errors of every rank: ModelNotFound, CheckpointError, UnsupportedModel, ConfigError, PluginError,
    PlatformError; ConfigError also if the model or the platform cannot have so many ranks.
    """
    progress("checkpoint", 0.0)
    size = config.parallel.world_size
    checkpoint = open_checkpoint(config.model.model)
    check_stages(config)
    checkpoint.facts(shard_of(config, 0))
    platform, why = discover().select_platform(config.device.platform)
    _log.info("platform %s", why)
    followers = Followers(config.for_engine(), size, lambda rank: _device_index(platform, config, rank), follower)
    device: Device | None = None
    try:
        device = open_rank(platform, config, config.device.index, 0, followers.rendezvous)
        if size > 1:
            _check_room(platform, device, config)
        followers.start()
        return build_on(device, platform.name, config, checkpoint, progress, followers)
    except BaseException:
        followers.close()
        if device is not None:
            device.close()
        raise


def build_on(
    device: Device,
    platform: str,
    config: Config,
    checkpoint: Checkpoint,
    progress: Progress,
    followers: Followers | None = None,
) -> Engine:
    """Build on an open device, which stays open if this raises. `followers` have been started; default: none."""
    followers = followers or Followers("", 1, lambda rank: 0)
    free_before, _ = device.memory()
    # Unknown names are refused before anything is loaded.
    make_backend = find_backend(config.model.grammar_backend)
    found, block, head = find_drafts(config, checkpoint, device)
    _check_drafting(config, device)
    check_tiers(config, device.capabilities(), platform)
    resolved, reasons = resolve_on(
        config, checkpoint, device, f"{platform} device {config.device.index}", followers.size, found or block or head
    )
    for reason in reasons:
        _log.info("%s", reason)
    progress("ranks", 0.0)
    followers.await_all(Opened)
    sizes = _sizes(resolved)
    followers.send(sizes)
    reader = block or head
    if reader is not None:
        reader.max_model_len = resolved.max_model_len
    own = load_rank(config, checkpoint, device, shard_of(config, 0), sizes, progress, reader)
    followers.await_all(Loaded)
    stages = config.parallel.pipeline_parallel_size
    runner = PipelineRunner(own.runner, followers) if stages > 1 else followers.runner(own.runner)
    progress("first step", 0.0)
    for plan in first_plans(own.runner.config, device.capabilities().static_shapes):
        runner.launch(plan).result()
    own.save_packed()
    vocab = checkpoint.decoder_config.vocab
    grammars = GrammarCompiler(lambda: open_backend(make_backend, checkpoint.path, vocab, checkpoint.eos_token_ids))
    draft = None if found is None else found.load(device, own.runner, resolved, progress, busy_seconds(device))
    blocks = None if block is None else block.model(device, own.runner, resolved, busy_seconds(device))
    heads = None if head is None else head.make(device, own.runner, resolved, busy_seconds(device))
    drafting = _drafting(config, draft, blocks, heads, own)
    tiers, transfer = open_tiers(config, checkpoint, device, platform, resolved, own.runner, followers, reader, reasons)
    scheduler = Scheduler(_core_config(config, resolved, vocab), drafting, tiers)
    # Events name blocks as tiers and transfers do, where there are any.
    layout = _layout_id(checkpoint, resolved) if tiers is None else tiers.layout_id
    record = None if tiers is None else tiers.record
    core = EngineCore(
        scheduler,
        runner,
        resolved.max_num_seqs,
        resolved.kv_layout.block_size,
        busy_seconds=busy_seconds(device),
        lost=followers.lost,
        explain=followers.explain,
        grammars=grammars,
        drafting=drafting,
        cache_events=CacheEvents(scheduler.tree, partial(first_hash, layout), next_hash, record),
        profiler=profiler_of(device, platform),
        stages=stages,
        times=device.extension(TimesLaunches),
    )
    drafted = found or block or head
    layouts = (resolved.kv_layout,) if drafted is None else (resolved.kv_layout, drafted.layout)
    cache = kv_bytes(device, layouts, resolved.num_blocks) + (config.cache.kv_host_memory or 0)
    memory = measure_use(device, free_before, cache, followers.size)
    defaults = _sampling(config, checkpoint)
    info = _engine_info(checkpoint, platform, resolved, vocab, layout, reasons, defaults, transfer, memory)
    by_name = device.op(named_logprobs.SPEC) is not None or device.extension(TorchTensors) is not None
    info = msgspec.structs.replace(info, names_tokens=by_name)
    if device.capabilities().computes:
        info = msgspec.structs.replace(info, embedding=checkpoint.embedding)
    return Engine(core, info, own, followers, grammars, draft, blocks, heads, tiers)


def _check_drafting(config: Config, device: Device) -> None:
    """Raise PlatformError if the device's operators for drafts are out of date, not with the first request."""
    checks = device.extension(ChecksDrafting)
    if config.scheduler.speculate is not None and checks is not None:
        checks.check_drafting()


def _method(config: Config) -> str:
    """The drafter that works on the host."""
    return config.scheduler.speculate or "predicted"


def _drafting(
    config: Config, draft: LoadedDraft | None, blocks: BlockRounds | None, head: HeadDrafter | None, own: LoadedRank
) -> Drafting:
    make = partial(Drafting, on_device=own.runner.config.drafts > 0, times=own.device.extension(TimesLaunches))
    if blocks is not None:
        return make(ModelSpeculator(blocks, blocks.method, blocks.drafts), model=blocks)
    passes = head if draft is None else draft.model
    if passes is not None:
        return make(ModelSpeculator(passes, passes.method), model=passes)
    drafter = GuardedDrafter(make_drafter(_method(config)))
    return make(Speculator(drafter), predicted_only=config.scheduler.speculate is None)


def busy_seconds(device: Device) -> Callable[[], float] | None:
    """The device's counter of the seconds in which it has worked; None if it has none."""
    found = device.extension(BusySeconds)
    return None if found is None else found.busy_seconds


def find_drafts(
    config: Config, checkpoint: Checkpoint, device: Device
) -> tuple[DraftCheckpoint | None, BlockDraft | None, HeadSource | None]:
    """What drafts: at most one of them, compared with the target; none for a drafter that works on the host. Raises
    ConfigError for an unknown method or a precision of nothing, and what opening a checkpoint raises."""
    found = find_draft(config, checkpoint, device)
    block, head = find_block_draft(config, checkpoint, device), find_head(config, checkpoint, device)
    if found is None and block is None and head is None:
        check_host_drafter(config, _method(config))
    return found, block, head


def resolve_on(
    config: Config,
    checkpoint: Checkpoint,
    device: Device,
    name: str,
    size: int,
    draft: DraftCheckpoint | BlockDraft | HeadSource | None,
) -> tuple[Resolved, list[str]]:
    """The choices for every rank, from the free memory of rank 0, which ranks of one host share. A draft model's
    or head's weights and cache take their part."""
    capabilities, (free, _) = device.capabilities(), device.memory()
    stored = all_stored(config, checkpoint)
    free = max(0, free - stored) // size if capabilities.host_memory else max(0, free - stored // size)
    beside = None
    if draft is not None:
        free, beside = max(0, free - draft.total_bytes), draft.layout
    facts = checkpoint.facts(widest_stage(config, checkpoint.decoder_config))
    resolved, reasons = resolve(config, capabilities, facts, free, name, beside)
    reasons += [] if draft is None else draft.precision.reasons
    return resolved, reasons + describe_stages(config, checkpoint.decoder_config) + describe_drafts(config, device)


def _sizes(resolved: Resolved) -> Sizes:
    return Sizes(
        max_model_len=resolved.max_model_len,
        block_size=resolved.kv_layout.block_size,
        kv_dtype=resolved.kv_layout.dtype,
        num_blocks=resolved.num_blocks,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
    )


def _core_config(config: Config, resolved: Resolved, vocab_size: int) -> CoreConfig:
    return CoreConfig(
        num_blocks=resolved.num_blocks,
        block_size=resolved.kv_layout.block_size,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        vocab_size=vocab_size,
        prefix_caching=resolved.prefix_caching,
        max_waiting=config.scheduler.max_waiting,
        stages=config.parallel.pipeline_parallel_size,
    )


def _layout_id(checkpoint: Checkpoint, resolved: Resolved) -> bytes:
    """Equal for engines of one checkpoint whose blocks hold the same bytes for the same tokens."""
    layout = resolved.kv_layout
    text = f"{checkpoint.path}|{resolved.dtype}|{layout.dtype}|{layout.block_size}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _sampling(config: Config, checkpoint: Checkpoint) -> dict[str, int | float]:
    """The sampling defaults of the checkpoint, which a log line reports."""
    found = {} if config.model.generation_config == "none" else sampling_defaults(checkpoint.path, checkpoint.metadata)
    if found:
        _log.info("sampling unless a request states it: %s (the checkpoint's)", describe(found))
    return found


def _engine_info(
    checkpoint: Checkpoint,
    platform: str,
    resolved: Resolved,
    vocab_size: int,
    layout: bytes,
    reasons: Sequence[str],
    sampling: dict[str, int | float],
    transfer: TransferInfo | None,
    memory: MemoryUse,
) -> EngineInfo:
    return EngineInfo(
        path=str(checkpoint.path),
        max_model_len=resolved.max_model_len,
        vocab_size=vocab_size,
        eos_token_ids=checkpoint.eos_token_ids,
        platform=platform,
        dtype=resolved.dtype,
        kv_dtype=resolved.kv_layout.dtype,
        block_size=resolved.kv_layout.block_size,
        num_blocks=resolved.num_blocks,
        max_num_seqs=resolved.max_num_seqs,
        layout_id=layout,
        reasons=tuple(reasons),
        transfer=transfer,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        sampling_defaults=sampling,
        memory_bytes=memory.used,
        device_bytes=memory.device_total,
    )


def _device_index(platform: Platform, config: Config, rank: int) -> int:
    """The device of a rank: each rank has its own, unless the platform's only device is the host."""
    count = len(platform.devices())
    return config.device.index + (rank if count > 1 else 0)


def _check_room(platform: Platform, device: Device, config: Config) -> None:
    """Raises ConfigError for a platform without what several ranks need, or with fewer devices than ranks."""
    check_collectives(platform, device.capabilities(), config)
    check_devices(platform, device, config)


def check_collectives(platform: Platform, capabilities: Capabilities, config: Config) -> None:
    """Raises ConfigError for a platform without what several ranks need. `capabilities`: of one of them."""
    size, stages = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    needed, asked = _NEEDED, f"tensor_parallel_size {size}"
    if config.parallel.expert_parallel:
        needed, asked = needed | {ALL_TO_ALL}, f"expert_parallel with {asked}"
    missing = sorted(needed - capabilities.collectives)
    if missing and size > 1:
        raise ConfigError(
            f"{asked}: platform {platform.name} has no {' and no '.join(missing)} between ranks: leave it out"
        )
    if stages > 1 and not capabilities.passes_rows:
        raise ConfigError(
            f"pipeline_parallel_size {stages}: platform {platform.name} passes no hidden states from one rank to the "
            "next: leave it out, or use tensor_parallel_size"
        )


def check_devices(platform: Platform, device: Device, config: Config) -> None:
    """Raises ConfigError for a platform with fewer devices than ranks."""
    size, capabilities = config.parallel.world_size, device.capabilities()
    first, count = config.device.index, len(platform.devices())
    if not capabilities.host_memory and first + size > count:
        raise ConfigError(
            f"{counted(size, 'rank')}: platform {platform.name} has {counted(count, 'device')}, and device {first} is "
            f"the first to be used: choose at most {count - first} by tensor_parallel_size and pipeline_parallel_size"
        )
