"""Profiles one step of a model by operator: bytes read, time, and share of the machine's limits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.bench.machine_limits import MachineLimits, measure_limits
from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.config import Config
from headrace.engine.plans import single_sequence_plan
from headrace.engine.rank_loading import device_options
from headrace.engine.startup import Engine, build_on
from headrace.errors import ConfigError, PlatformError
from headrace.models.config import DecoderConfig
from headrace.platforms.interface import Device, Executable, OpProfile, Profiled, StepFn
from headrace.plugins import discover
from headrace.types import Bucket, KVLayout

__all__ = ["OperatorProfile", "StepProfile", "profile_step"]

_LEAST_RUNS, _LEAST_SECONDS = 5, 0.5


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """All calls of one operator with one shape together. `share` is of the limit that binds: the larger of both."""

    name: str
    shapes: str
    weight: str
    calls: int
    bytes: int
    operations: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Profile of a step. `seconds` is the sum over all operators, `wall` the time from the launch to the result."""

    model: str
    tokens: int
    context: int
    limits: MachineLimits
    operators: tuple[OperatorProfile, ...]
    bytes: int
    operations: int
    seconds: float
    wall: float
    share: float


class _CompileRecorder:
    """A device that records the executables that it compiles."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.compiled: list[Executable] = []

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        self.compiled.append(self.device.compile(step_fn, bucket))
        return self.compiled[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)


def profile_step(config: Config, tokens: int = 1, context: int = 128) -> StepProfile:
    """Profile a step of `tokens` tokens of one sequence after `context` others. `config.model.model` is a path.

    Raises ConfigError for a step that the model cannot run, PlatformError if the platform records no tape, and what
    loading a model raises.
    """
    if tokens < 1 or context < 0:
        raise ConfigError(f"a step of {tokens} tokens after {context}: give at least one, and 0 or more")
    checkpoint = open_checkpoint(config.model.model)
    most = checkpoint.decoder_config.max_position
    if tokens + context > most:
        raise ConfigError(f"{tokens} tokens after {context}: the model has {most} positions")
    platform = discover().select_platform(config.device.platform)[0]
    device = _CompileRecorder(platform.open(config.device.index, device_options(config)))
    try:
        sized = _sized(config, device.device, tokens, context)
        engine = build_on(device, platform.name, sized, checkpoint, lambda stage, done: None)
        found, wall = _measure(engine, device, tokens, context, platform.name)
        limits = measure_limits(config.device.threads)
        layout = KVLayout(checkpoint.facts().layers, engine.info.block_size, engine.info.kv_dtype)
        counter = _Counter(checkpoint.decoder_config, layout, tokens, context)
        return _report(Path(config.model.model).name, counter, limits, found, wall)
    finally:
        device.device.close()


def _sized(config: Config, device: Device, tokens: int, context: int) -> Config:
    """The configuration with room for this step and no more."""
    block = config.cache.block_size or device.capabilities().block_sizes[0]
    cache = config.cache.model_copy(update={"num_blocks": -(-(tokens + context) // block) + 2})
    budget = max(tokens, config.scheduler.max_num_batched_tokens)
    scheduler = config.scheduler.model_copy(update={"max_num_seqs": 1, "max_num_batched_tokens": budget})
    return config.model_copy(update={"cache": cache, "scheduler": scheduler})


def _measure(
    engine: Engine, device: _CompileRecorder, tokens: int, context: int, platform: str
) -> tuple[list[OpProfile], float]:
    plan = single_sequence_plan(tokens, context, engine.info.block_size)
    engine.runner.launch(plan).result()
    executable = device.compiled[-1]
    if not isinstance(executable, Profiled):
        raise PlatformError(
            f"{platform} records no tape that could be shown: choose --platform cpu, with its native kernels"
        )
    profile, runs = executable.profile, list[list[OpProfile]]()
    walls: list[float] = []
    start = time.perf_counter()
    profile(True)
    while len(runs) < _LEAST_RUNS or time.perf_counter() - start < _LEAST_SECONDS:
        before = time.perf_counter()
        engine.runner.launch(plan).result()
        walls.append(time.perf_counter() - before)
        runs.append(profile(True))  # Of this launch alone: each call starts counting again.
    profile(False)
    # The median of each, since a thread that waits for a core makes one operator of one run a hundred times slower.
    medians = [statistics.median(one.seconds for one in calls) for calls in zip(*runs, strict=True)]
    operators = [replace(one, seconds=seconds) for one, seconds in zip(runs[0], medians, strict=True)]
    return operators, statistics.median(walls)


@dataclass(frozen=True, slots=True)
class _Counter:
    """Counts the operations of a step's operators from the model's shapes, and the bytes of KV cache that they use."""

    decoder: DecoderConfig
    layout: KVLayout
    tokens: int
    context: int

    def operations(self, name: str, shapes: Sequence[Sequence[Any]]) -> int:
        """Operations of products alone: two per weight and row; in attention, two per query-key pair and dimension of
        the keys, and the same for the values."""
        if name in ("linear", "gated_linear", "logits"):
            rows, halves = 1 if name == "logits" else self.tokens, 2 if name == "gated_linear" else 1
            return 2 * rows * int(shapes[0][1]) * halves * int(shapes[1][1])
        if name == "attention":
            pairs = self.tokens * self.context + self.tokens * (self.tokens + 1) // 2
            return 4 * pairs * self.decoder.num_q_heads * self.decoder.head_dim
        return 0

    def cache_bytes(self, name: str) -> int:
        """Bytes of one layer, as the mean of all layers: attention reads every key and value once, the rotation writes
        those of its tokens."""
        touched = {"attention": self.context + self.tokens, "rotary_cache": self.tokens}.get(name, 0)
        return touched * self.layout.bytes_per_block // (self.layout.block_size * len(self.layout.layers))


def _report(
    model: str, counter: _Counter, limits: MachineLimits, found: Sequence[OpProfile], wall: float
) -> StepProfile:
    groups: dict[tuple[str, str, str], list[OpProfile]] = {}
    for one in found:
        shapes = " ".join("×".join(map(str, shape)) for shape in one.shapes if len(shape) > 1)
        groups.setdefault((one.name, shapes, one.weight), []).append(one)
    operators, spent = [], 0.0
    for (name, shapes, weight), calls in groups.items():
        size = sum(one.bytes + counter.cache_bytes(name) for one in calls)
        operations = sum(counter.operations(name, one.shapes) for one in calls)
        seconds = sum(one.seconds for one in calls)
        least = max(size / limits.read, operations / limits.arithmetic(calls[0].arithmetic))
        spent += least
        share = least / seconds if seconds else 0.0
        operators.append(OperatorProfile(name, shapes, weight, len(calls), size, operations, seconds, share))
    total = sum(one.seconds for one in operators)
    return StepProfile(
        model,
        counter.tokens,
        counter.context,
        limits,
        tuple(operators),
        sum(one.bytes for one in operators),
        sum(one.operations for one in operators),
        total,
        wall,
        spent / total if total else 0.0,
    )
