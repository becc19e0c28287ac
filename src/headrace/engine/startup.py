"""From a configuration to an engine that is ready: checkpoint, device, choices, weights, cache, first step."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.checkpoints.packed.cache import PackedCache, open_cache
from headrace.config import Config, Resolved, resolve
from headrace.core import CoreConfig, Scheduler
from headrace.engine.core_loop import EngineCore
from headrace.engine.runner import Runner, RunnerConfig
from headrace.engine.service import BuiltEngine, Progress
from headrace.engine.wire import EngineInfo
from headrace.kernels.ops import Ops
from headrace.kernels.registry import bind, pack
from headrace.models.decoder import Decoder, DecoderWeights, LayerWeights
from headrace.platforms.interface import Device
from headrace.plugins import discover
from headrace.quant.online import quantize_weight

__all__ = [
    "LAST_WRITE",
    "Engine",
    "build_engine",
    "build_on",
    "busy_seconds",
    "core_config",
    "engine_info",
    "mover",
    "pack_weights",
    "packers",
    "quantized_weights",
    "wishes",
]

_log = logging.getLogger(__name__)
_PACKERS = 2
"""Threads that lay out weights in the host's memory, each a weight at a time."""
LAST_WRITE = 2.0
"""Seconds that packed weights still being written get at the end."""


@dataclass(slots=True)
class Engine:
    """A `service.BuiltEngine`."""

    core: EngineCore
    info: EngineInfo
    device: Device
    runner: Runner
    cache: PackedCache | None = None

    def close(self) -> None:
        if self.cache is not None:
            self.cache.wait(LAST_WRITE)
        self.device.close()


def build_engine(config: Config, progress: Progress) -> BuiltEngine:
    """Load everything, on every rank where there are several. `config.model.model` is a path or a name of the catalogue.

    How a device learns the arithmetic: `Platform.open` gets the user's own wishes, `threads` and `dtype`, where there are any
    (so a platform that knows no threads says so to those who ask for them). Without a wish the device follows
    `weight.scheme`, as `resolve` does; the KV dtype stands in the layout that `alloc_kv` is given.

    Raises what the parts raise: ModelNotFound, CheckpointError, UnsupportedModel, ConfigError, PluginError, PlatformError.
    """
    if config.parallel.tensor_parallel_size > 1:
        # Late: it is made of what stands here.
        from headrace.engine.ranks.startup import build_ranks

        return build_ranks(config, progress)
    progress("checkpoint", 0.0)
    checkpoint = open_checkpoint(config.model.model)
    platform, why = discover().select_platform(config.device.platform)
    _log.info("platform %s", why)
    device = platform.open(config.device.index, wishes(config))
    try:
        return build_on(device, platform.name, config, checkpoint, progress)
    except BaseException:
        device.close()
        raise


def wishes(config: Config) -> dict[str, Any]:
    """The user's own wishes, as options of `Platform.open`."""
    given: dict[str, Any] = dict(config.device.options)
    if config.device.threads is not None:
        given["threads"] = config.device.threads
    if config.model.dtype != "auto":
        given["dtype"] = config.model.dtype
    return given


def build_on(device: Device, platform: str, config: Config, checkpoint: Checkpoint, progress: Progress) -> Engine:
    """The same on a device that is open already, and that is left open where this raises."""
    capabilities = device.capabilities()
    facts = checkpoint.facts()
    free = max(0, device.memory()[0] - checkpoint.total_bytes)
    resolved, reasons = resolve(config, capabilities, facts, free, f"{platform} device {config.device.index}")
    for reason in reasons:
        _log.info("%s", reason)
    ops = bind(device)
    cache = open_cache(config, checkpoint.path, checkpoint.decoder_config, device.extension("packed_forms"))
    kept = None if cache is None else cache.load()
    if kept is None:
        model = _read(config, checkpoint, resolved, device, ops, progress)
    else:
        model = Decoder(checkpoint.decoder_config, ops, kept, resolved.max_model_len)
    progress("cache", 0.0)
    runner = Runner(device, model, ops, _runner_config(resolved, facts.vocab_size))
    progress("first step", 0.0)
    runner.warm_up()
    if cache is not None and kept is None:
        cache.save(model.weights)
    core = EngineCore(
        Scheduler(core_config(config, resolved, facts.vocab_size)),
        runner,
        resolved.max_num_seqs,
        resolved.kv_layout.block_size,
        busy_seconds=busy_seconds(device),
    )
    info = engine_info(checkpoint, platform, resolved, facts.vocab_size, tuple(reasons))
    return Engine(core, info, device, runner, cache)


def busy_seconds(device: Device) -> Callable[[], float] | None:
    """What tells how long the device has worked, where the device knows."""
    found = device.extension("busy_seconds")
    return found if callable(found) else None


def _read(
    config: Config, checkpoint: Checkpoint, resolved: Resolved, device: Device, ops: Ops, progress: Progress
) -> Decoder:
    """The model from its checkpoint, its weights laid out for the device."""
    model = checkpoint.build(
        ops,
        resolved.max_model_len,
        lambda done, total: progress("weights", done / max(1, total)),
        move=None if device.capabilities().host_memory else mover(device),
    )
    if config.model.quantize is not None:
        model.weights = quantized_weights(model.weights, config.model.quantize)
    pack_weights(ops, model.weights, lambda done: progress("packing", done), packers(device))
    return model


def quantized_weights(weights: DecoderWeights, kind: str) -> DecoderWeights:
    """Every matrix of the layers; embedding and head stay wide. Raises UnsupportedModel for what is quantised already."""
    names = ("qkv", "output", "gate_up", "down")

    def narrow(layer: LayerWeights) -> LayerWeights:
        made: dict[str, Any] = {name: quantize_weight(getattr(layer, name), kind) for name in names}
        if layer.shared is not None:
            gate_up, down = (quantize_weight(weight, kind) for weight in (layer.shared.gate_up, layer.shared.down))
            made["shared"] = replace(layer.shared, gate_up=gate_up, down=down)
        return replace(layer, **made)

    return replace(weights, layers=[narrow(layer) for layer in weights.layers])


def packers(device: Device, ranks: int = 1) -> int:
    """Threads that pack on each of so many ranks of one host."""
    shared = max(1, (os.cpu_count() or 1) // ranks) if ranks > 1 else _PACKERS
    return min(_PACKERS, shared) if device.capabilities().host_memory else 1


def pack_weights(ops: Ops, weights: DecoderWeights, progress: Callable[[float], None], workers: int = 1) -> None:
    """Let each operator lay out the weights that it will be called with, once each; `workers` threads at a time."""
    uses = [("logits", weights.head)]
    for layer in weights.layers:
        uses += [("linear", w) for w in (layer.qkv, layer.output, layer.router) if w is not None]
        uses += [("linear" if layer.router is None else "moe", w) for w in (layer.gate_up, layer.down)]
        if layer.shared is not None:
            share = layer.shared.share
            uses += [("linear" if share is None else "moe", w) for w in (layer.shared.gate_up, layer.shared.down)]
            uses += [] if share is None else [("linear", share)]
    if workers == 1:
        for at, (name, weight) in enumerate(uses):
            progress(at / len(uses))
            pack(ops, name, weight)
    else:
        # A thread each: torch would divide every one of thousands of small operations between them.
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for at, _ in enumerate(pool.map(lambda use: pack(ops, *use), uses)):
                progress(at / len(uses))
    # Last and alone: it may be the head, which is packed once.
    pack(ops, "embedding", weights.embedding)


def mover(device: Device) -> Callable[[torch.Tensor], torch.Tensor]:
    """What puts weights on a device. Tensors of every dtype cross as bytes, since numpy does not know bfloat16 or float8."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.contiguous().reshape(-1)
        moved: torch.Tensor = device.put(flat.view(torch.uint8).numpy())
        return moved.view(tensor.dtype).reshape(tensor.shape)

    return move


def _runner_config(resolved: Resolved, vocab_size: int) -> RunnerConfig:
    return RunnerConfig(
        resolved.kv_layout,
        resolved.num_blocks,
        resolved.max_num_seqs,
        resolved.max_num_batched_tokens,
        resolved.max_model_len,
        vocab_size,
    )


def core_config(config: Config, resolved: Resolved, vocab_size: int) -> CoreConfig:
    return CoreConfig(
        num_blocks=resolved.num_blocks,
        block_size=resolved.kv_layout.block_size,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        vocab_size=vocab_size,
        prefix_caching=resolved.prefix_caching,
        max_waiting=config.scheduler.max_waiting,
    )


def engine_info(
    checkpoint: Checkpoint, platform: str, resolved: Resolved, vocab_size: int, reasons: tuple[str, ...]
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
        reasons=reasons,
    )
