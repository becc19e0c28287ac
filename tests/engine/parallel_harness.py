"""Several ranks in one process, a thread each: the native device, its collectives and a recorded step, without an
engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_harness import one_sequence

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.kernels.inputs import batch_of
from headrace.kernels.registry import bind
from headrace.models.decoder import Decoder, DecoderWeights
from headrace.models.sharding import Shard
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.interface import Device
from headrace.types import Bucket, KVLayout

_CONTEXT = 64


def logits(
    model: Path,
    ids: list[int],
    size: int,
    directory: Path,
    dtype: str | None = "float32",
    steps: int = 0,
    opened: Callable[..., Device] = NativeDevice,
    read: Callable[[Checkpoint], Checkpoint] = lambda found: found,
    then: Callable[[DecoderWeights], DecoderWeights] = lambda weights: weights,
    shard: Callable[[int, int], Shard] = Shard,
) -> list[torch.Tensor]:
    """float32 [len(ids) + steps, vocab] of each rank: after every token of the prompt, then greedily onwards. `read`
    changes how the checkpoint is read, `then` what has been. The first error is raised."""
    directory.mkdir(exist_ok=True)

    def rank_main(rank: int) -> torch.Tensor:
        ranks = {"rank": rank, "world_size": size, "rendezvous": f"file://{directory}/meeting"}
        device = opened(threads=1, dtype=dtype, **(ranks if size > 1 else {}))
        try:
            group = None if size == 1 else device.communicator(range(size))
            decoder = read(open_checkpoint(model)).build(bind(device), _CONTEXT, shard=shard(rank, size), group=group)
            decoder.weights = then(decoder.weights)
            return greedy(device, decoder, list(ids), steps)
        finally:
            device.close()

    with ThreadPoolExecutor(size) as pool:
        return [found.result(300) for found in [pool.submit(rank_main, rank) for rank in range(size)]]


def greedy(device: Device, decoder: Decoder, ids: list[int], steps: int) -> torch.Tensor:
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
