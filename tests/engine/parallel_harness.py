"""Several ranks in one process, a thread each: the native device, its collectives and a recorded step, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from model_harness import one_sequence

from headrace.engine.loading.checkpoint import open_checkpoint
from headrace.kernels.inputs import batch_of
from headrace.kernels.registry import bind
from headrace.models.decoder import Decoder
from headrace.models.sharding import Shard
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.types import Bucket, KVLayout

T = TypeVar("T")
_CONTEXT = 64


def on_ranks(
    size: int, directory: Path, work: Callable[[NativeDevice, int], T], dtype: str | None = "float32"
) -> list[T]:
    """What `work(device, rank)` gives on every rank, one thread each. The first error is raised."""
    meeting = f"file://{directory}/meeting"

    def rank_main(rank: int) -> T:
        ranks = {} if size == 1 else {"rank": rank, "world_size": size, "rendezvous": meeting}
        device = NativeDevice(threads=1, dtype=dtype, **ranks)  # type: ignore[arg-type]
        try:
            return work(device, rank)
        finally:
            device.close()

    with ThreadPoolExecutor(size) as pool:
        return [found.result(120) for found in [pool.submit(rank_main, rank) for rank in range(size)]]


def logits(
    model: Path, ids: list[int], size: int, directory: Path, dtype: str | None = "float32", steps: int = 0
) -> list[torch.Tensor]:
    """float32 [len(ids) + steps, vocab] of each rank: after every token of the prompt, then greedily onwards."""
    directory.mkdir(exist_ok=True)

    def work(device: NativeDevice, rank: int) -> torch.Tensor:
        shard = Shard(rank, size)
        group = None if size == 1 else device.communicator(range(size))
        decoder = open_checkpoint(model).build(bind(device), _CONTEXT, shard=shard, group=group)
        return greedy(device, decoder, list(ids), steps)

    return on_ranks(size, directory, work, dtype)


def greedy(device: NativeDevice, decoder: Decoder, ids: list[int], steps: int) -> torch.Tensor:
    def step(kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        return kv, {"logits": decoder.forward(batch_of(inputs), kv, inputs["history"])}

    layout = KVLayout(decoder.config.kv_layers, 16, "float32")
    kv = device.alloc_kv(layout, _CONTEXT // 16 + 1)
    executable = device.compile(step, Bucket(_CONTEXT, 1, _CONTEXT, _CONTEXT // 16))
    history, found, start = device.put(np.zeros((1, _CONTEXT), np.int32)), [], 0
    for _ in range(steps + 1):
        batch = one_sequence(ids, start, len(ids), block=16)
        inputs = {field.name: getattr(batch, field.name) for field in fields(batch)} | {"history": history}
        kv, outputs = executable(kv, inputs)
        found.append(torch.from_numpy(device.get(outputs["logits"]).result()))
        start = len(ids)
        ids.append(int(found[-1][-1].argmax()))
    return torch.cat(found)


def nmse(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).square().mean() / wanted.square().mean())
